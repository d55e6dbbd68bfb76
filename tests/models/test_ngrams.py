"""Tests of ngrams.py: hashed n-grams against Python integers, and what a recipe may combine with them."""

import pytest
import torch

from regard.data.tokenizer import PAD
from regard.errors import RegardError
from regard.models.classifier import ClassifierOptions, predict
from regard.models.folder import load, save
from regard.models.ngrams import FACTOR, PRIME, NgramEmbedding
from regard.recipe.loading import load_recipe
from tests.models.small import batch_of
from tests.models.test_classifier import TEXTS, make, options


def row(ngram, buckets):
    """The row of an n-gram, with Python's integers, which do not overflow."""
    value = len(ngram)
    for token in ngram:
        value = (value * FACTOR + token + 1) % PRIME
    return value % buckets


def ngram_model(**changes):
    model = make("embedding", "mean", input={"kind": "ngrams", "sizes": [1, 3], "buckets": 64, **changes})
    torch.nn.init.normal_(model.source.table.weight, generator=torch.Generator().manual_seed(1))
    return model


def test_the_embedding_is_the_mean_over_the_ngrams_that_end_at_a_token():
    layer = NgramEmbedding(200_000, 4, sizes=(1, 2, 4), buckets=50).double()
    torch.nn.init.normal_(layer.table.weight, generator=torch.Generator().manual_seed(1))
    tokens = [7, 199_999, 8, 7, 199_999]
    padded = [PAD] * 3 + tokens
    for t, x in enumerate(layer(torch.tensor([tokens]))[0], 4):
        rows = torch.tensor([row(padded[t - n : t], 50) for n in (1, 2, 4)])
        torch.testing.assert_close(x, layer.table.weight[rows].mean(0))


def test_ngrams_of_different_sizes_and_orders_have_different_rows():
    layer, tokens = NgramEmbedding(300, 2, buckets=2**20), torch.arange(4, 300)[None]
    rows = torch.cat([layer.rows(tokens, n) for n in layer.sizes] + [layer.rows(tokens.flip(1), 2)])
    assert rows.unique().numel() > 0.99 * rows.numel()


def test_unseen_ngrams_have_no_influence_and_seen_ones_learn():
    torch.manual_seed(1)
    model = make("embedding", "mean", input="ngrams").train()
    assert not model.source.table.weight.any()
    batch = batch_of([model.source_tokenizer.encode("a good film")], [[4]])
    model.loss(batch).total.backward()
    seen = torch.cat([model.source.rows(batch.source, n).flatten() for n in model.source.sizes]).unique()
    learned = model.source.table.weight.grad.any(1).nonzero().flatten()
    assert learned.tolist() == seen.tolist()


def test_batches_and_padding_change_nothing():
    model = ngram_model()
    _, batched = predict(model, TEXTS)
    for text, expected in zip(TEXTS, batched, strict=True):
        assert predict(model, [text])[1][0] == pytest.approx(expected, abs=1e-6)
    assert abs(batched[0] - batched[1]).max() > 0.01  # the texts differ in one word


def test_word_order_counts_with_ngrams_of_several_tokens():
    texts = ["a good film", "good a film"]
    one, other = predict(ngram_model(), texts)[1]
    assert abs(one - other).max() > 0.001
    one, other = predict(ngram_model(sizes=[1]), texts)[1]
    assert one == pytest.approx(other, abs=1e-6)


def test_a_saved_model_gives_the_same_probabilities(tmp_path):
    model = ngram_model()
    block = {**options("embedding", "mean"), "input": {"kind": "ngrams", "sizes": [1, 3], "buckets": 64}}
    config = ClassifierOptions.model_validate(block).model_dump()
    save(tmp_path / "model", model, config, model.source_tokenizer, model.target_tokenizer, {})
    assert (predict(load(tmp_path / "model"), TEXTS)[1] == predict(model, TEXTS)[1]).all()


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("tag", {}, "model.input is ngrams, which a classifier reads, and this is a tagger"),
        ("translate", {}, "model.input is ngrams, which a classifier reads"),
        ("classify", {"vectors": "x.vec"}, "model.vectors is for an embedding per token"),
        ("classify", {"scale_embeddings": True}, "model.scale_embeddings is for an embedding per token"),
        (
            "classify",
            {"encoder": {"kind": "embedding", "embedding_dropout": 0.1}},
            "model.encoder.embedding_dropout drops the embeddings of tokens",
        ),
        ("classify", {"input": {"kind": "ngrams", "sizes": [0]}}, "model.input.sizes"),
    ],
)
def test_options_that_do_not_apply_to_ngrams_are_errors(task, changes, message):
    data, block = {"train": ["x.csv"], "hold_out": 0.1}, {"input": "ngrams", **changes}
    with pytest.raises(RegardError) as error:
        load_recipe({"task": task, "data": data, "tokenizer": {"kind": "word"}, "model": block})
    assert message in str(error.value)
