"""Embedder: unit vectors that do not depend on the batch, and training on pairs."""

import numpy as np
import pytest
import torch

from regard.data.tokenizer import BOS, EOS
from regard.errors import OptionError
from regard.models.embedder import Embedder
from regard.models.folder import load, save
from regard.training.trainer import train
from tests.models.small import batch_of
from tests.search.small import TEXTS, embedder


def batch(pairs):
    return batch_of(*zip(*pairs, strict=True))


PAIRS = [([5, 6, 7], [8, 9]), ([10, 11], [12, 13, 14, 15]), ([16], [17, 18, 19])]


@pytest.mark.parametrize("prepend_bos", [False, True])
def test_the_loss_is_infonce_in_both_directions(prepend_bos):
    model = embedder(prepend_bos=prepend_bos, temperature=0.1)
    prefix = [BOS] if prepend_bos else []
    x, y = (
        torch.cat([model.encode(torch.tensor([[*prefix, *pair[side], EOS]])) for pair in PAIRS])
        for side in (0, 1)
    )
    scores = (x @ y.T / 0.1).detach().double()
    expected = -sum(s.log_softmax(-1).diagonal().sum().item() for s in (scores, scores.T)) / 2
    result = model.loss(batch(PAIRS))
    assert float(result.total) == pytest.approx(expected, rel=1e-5)
    assert float(result.nll) == pytest.approx(expected, rel=1e-5)
    assert result.tokens == 3


def test_label_smoothing_changes_the_loss_but_not_the_nll():
    model = embedder()
    plain, smooth = model.loss(batch(PAIRS)), model.loss(batch(PAIRS), 0.1)
    assert float(smooth.nll) == pytest.approx(float(plain.nll))
    assert float(smooth.total) != pytest.approx(float(plain.total))
    assert torch.isfinite(model.loss(batch([*PAIRS, PAIRS[0]]), 0.1).total)


def test_rows_with_the_same_source_are_not_negatives():
    """Two rows with the same source are not negatives of each other, so the loss is 0."""
    model = embedder()
    same_source = [PAIRS[0], (PAIRS[0][0], PAIRS[1][1])]
    assert float(model.loss(batch(same_source)).total) == pytest.approx(0.0, abs=1e-6)


def test_vectors_have_length_one_and_do_not_depend_on_the_batch():
    model = embedder()
    rows = model.source_tokenizer.encode_batch(TEXTS)
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    batched = model.encode(tokens, lengths)
    single = torch.cat([model.encode(torch.tensor([row])) for row in rows])
    assert torch.allclose(batched, single, atol=1e-5)
    assert torch.allclose(batched.norm(dim=1), torch.ones(len(rows)))


def test_an_embedder_can_use_the_encoder_of_any_model():
    model = embedder(pooling={"kind": "max"})
    other = torch.nn.Module()
    other.source, other.encoder, other.pooling = model.source, model.encoder, model.pooling
    other.training = False
    assert torch.equal(
        Embedder.of(other).encode(torch.tensor([[5, 6]])), model.encode(torch.tensor([[5, 6]]))
    )
    with pytest.raises(OptionError, match="reads no source"):
        Embedder.of(torch.nn.Linear(2, 2))


def test_saving_keeps_the_fingerprint_and_any_change_of_weights_changes_it(tmp_path):
    model = embedder()
    save(tmp_path / "m", model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    loaded = load(tmp_path / "m")
    assert isinstance(loaded, Embedder) and loaded.fingerprint() == model.fingerprint()
    with torch.no_grad():
        loaded.source.table.weight[7, 3] += 1e-6
    assert loaded.fingerprint() != model.fingerprint()
    assert embedder(seed=2).fingerprint() != model.fingerprint()


def test_training_on_pairs_makes_the_right_partner_rank_first(tmp_path):
    """The second text is the first in capitals; its tokens differ, so only training can relate them."""
    words = ["red", "green", "blue", "cat", "dog", "fish", "runs", "sits", "eats", "here", "there", "now"]
    draw = np.random.default_rng(1)
    lines = [" ".join(draw.choice(words, 4)) for _ in range(400)]
    for name, part in (("train", lines[:360]), ("test", lines[360:])):
        (tmp_path / f"{name}.tsv").write_text(
            "".join(f"{line}\t{line.upper()}\n" for line in part), encoding="utf-8"
        )
    recipe = {
        "name": "pairs", "task": "embed", "seed": 1,
        "data": {"train": [str(tmp_path / "train.tsv")], "validation": [str(tmp_path / "test.tsv")]},
        "tokenizer": {"kind": "word", "size": 100},
        "model": {"dim": 32, "dropout": 0.0, "encoder": {"kind": "embedding"}},
        "batch": {"tokens": 512}, "optimizer": {"lr": 0.01}, "schedule": {"kind": "constant"},
        "training": {"steps": 40, "validate_every": 40, "save_every": 40, "threads": 1, "device": "cpu"},
    }  # fmt: skip
    train(recipe, folder=tmp_path / "run")
    model = load(tmp_path / "run")
    from regard.evaluation.retrieval import pair_retrieval
    from regard.pipelines.embed import embed

    metrics = pair_retrieval(embed(lines[360:], model), embed([line.upper() for line in lines[360:]], model))
    assert metrics["mrr"] > 0.8
