"""Tests of attention_weights.py, coverage.py and pipelines/attention_file.py: weights of any search, by one
forward pass.
"""

import json

import numpy as np
import pytest
import torch

from regard.attention.watching import watch
from regard.data.tokenizer import BOS, EOS, Tokenizer
from regard.decoding.attention_weights import (
    KINDS,
    AttentionMaps,
    attention_maps,
    attention_of_tokens,
    best_head,
    kind_of,
)
from regard.decoding.beam import Beam
from regard.decoding.limits import Limits
from regard.errors import FolderError, OptionError
from regard.models.autoregressive import AutoregressiveModel
from regard.pipelines.attention_file import save_attention
from regard.pipelines.translate import translate
from tests.decoding.enumeration import search
from tests.models.small import DECODERS, ENCODERS, make

WITH_ATTENTION = ["dot", "projected", "bilinear", "input feeding", "bahdanau", "transformer"]
SENTENCES = [[4, 5, 6, 7, 8, 9], [7, 5], [9, 8, 8, 4], [6]]


class Row:
    """A hypothesis in the beam: its sentence, the tokens read so far, and the weights of every step."""

    def __init__(self, sentence, read=(), seen=()):
        self.sentence, self.read, self.seen = sentence, read, seen


class RecordingState:
    """Decoder state together with the hypothesis of each row."""

    def __init__(self, inner, rows, recorder):
        self.inner, self.rows, self.recorder = inner, rows, recorder

    def reorder(self, rows):
        picked = rows.tolist()
        self.recorder.reorderings += picked != list(range(len(self.rows)))
        return RecordingState(self.inner.reorder(rows), [self.rows[i] for i in picked], self.recorder)


class RecordingModel(AutoregressiveModel):
    """Wraps a model and records the attention of each step; `weights_seen` maps (sentence, tokens read) to
    weights.
    """

    can_join = False

    def __init__(self, model):
        torch.nn.Module.__init__(self)
        self.model, self.weights_seen, self.reorderings = model, {}, 0

    def start(self, memory, batch):
        return RecordingState(self.model.start(memory, batch), [Row(i) for i in range(len(batch))], self)

    def step(self, tokens, state):
        with watch(self.model) as seen:
            scores, inner = self.model.step(tokens, state.inner)
        weights = {name: seen[name].weights()[:, :, 0] for name in seen}  # (rows, heads, keys)
        rows = []
        for i, (row, token) in enumerate(zip(state.rows, tokens.tolist(), strict=True)):
            now = {name: w[i] for name, w in weights.items()}
            rows.append(Row(row.sentence, (*row.read, token), (*row.seen, now)))
            self.weights_seen[row.sentence, rows[-1].read] = rows[-1].seen
        flat = scores / scores.abs().amax(-1, keepdim=True)  # flat scores, so that hypotheses compete
        flat[:, EOS] = 0.5 if len(rows[0].read) > 5 else -1  # outputs end after some steps
        return flat, RecordingState(inner, rows, self)


def padded(sentences):
    longest = max(map(len, sentences))
    return torch.tensor([s + [0] * (longest - len(s)) for s in sentences]), torch.tensor(
        [len(s) for s in sentences]
    )


@pytest.mark.parametrize("encoder", ["gru", "transformer"])
@pytest.mark.parametrize("decoder", WITH_ATTENTION)
def test_attention_maps_equal_the_weights_of_the_steps_of_a_beam_search(encoder, decoder):
    model = make(ENCODERS[encoder], DECODERS[decoder], vocab=10).eval()
    recorder, sources = RecordingModel(model), [[*s, EOS] for s in SENTENCES]
    with torch.inference_mode():
        memory = model.encode(*padded(sources))
    texts = search(recorder, memory, torch.full((4,), BOS), [12, 9, 9, 4], Beam(5))
    assert recorder.reorderings > 2  # rows were reordered, so a wrong order would fail below
    hypotheses = [(i, h) for i, result in enumerate(texts) for h in result]
    assert {h.ended for _, h in hypotheses} == {True, False}
    targets = [[*h.tokens, EOS] if h.ended else h.tokens for _, h in hypotheses]
    compared = 0
    for (i, _), target, attention in zip(
        hypotheses,
        targets,
        attention_maps([SENTENCES[i] for i, _ in hypotheses], targets, model),
        strict=True,
    ):
        steps = recorder.weights_seen[i, (BOS, *target[:-1])]
        assert len(steps) == len(target)
        for t, step in enumerate(steps):
            assert set(step) == {name for name in attention if kind_of(name) != "encoder"}
            for name, seen_weights in step.items():
                row = attention[name][:, t]
                keys = t + 1 if kind_of(name) == "decoder" else len(sources[i])
                torch.testing.assert_close(row[:, :keys], seen_weights[:, :keys], atol=1e-10, rtol=0)
                assert row[:, keys:].abs().sum() == 0 and seen_weights[:, keys:].abs().sum() == 0
                compared += 1
    assert compared > 50


@pytest.mark.parametrize("decoder", WITH_ATTENTION)
def test_batching_changes_no_weight(decoder):
    model = make(ENCODERS["transformer"], DECODERS[decoder])
    targets = [[5, 6, EOS], [7, 8, 9, 10, 11], [EOS], [4, EOS]]
    together = attention_maps(SENTENCES, targets, model)
    assert model.training  # unchanged
    for source, target, result in zip(SENTENCES, targets, together, strict=True):
        (alone,) = attention_maps([[*source, EOS]], [target], model)  # EOS is not added a second time
        assert list(alone) == list(result)
        for name in result:
            rows, columns = result.pieces(name)
            assert result[name].shape[1:] == (len(rows), len(columns))
            torch.testing.assert_close(result[name], alone[name], atol=1e-12, rtol=0)
            torch.testing.assert_close(result[name].sum(-1), torch.ones_like(result[name][..., 0]))


def test_encoder_weights_are_those_of_a_watched_pass():
    model = make(ENCODERS["attention on gru"], DECODERS["transformer"]).eval()
    (maps,) = attention_maps([[4, 5, 6]], [[7, EOS]], model)
    with torch.no_grad(), watch(model) as seen:
        model(torch.tensor([[4, 5, 6, EOS]]), torch.tensor([[BOS, 7]]))
    assert list(maps) == list(seen)
    assert [len(maps.names(kind)) for kind in KINDS] == [1, 1, 1]
    for name in seen:
        torch.testing.assert_close(maps[name], seen[name].weights(batch=0), atol=1e-12, rtol=0)


def test_a_language_model_has_only_self_attention_and_columns_are_its_inputs():
    model = make(None, DECODERS["transformer"]).eval()
    (maps,) = attention_maps(None, [[7, 8, 9]], model)
    assert (maps.source, maps.target, maps.inputs) == ([], ["7", "8", "9"], ["2", "7", "8"])
    assert maps.names("decoder") == list(maps) and not maps.names("cross")
    with torch.no_grad(), watch(model) as seen:
        model(torch.tensor([[BOS, 7, 8]]))
    torch.testing.assert_close(
        maps["decoder.layers.0.attention.self"], seen["decoder.layers.0.attention.self"].weights(batch=0)
    )
    with pytest.raises(OptionError, match="no cross-attention"):
        maps.cross()
    with pytest.raises(OptionError, match="choose a head"):
        maps.best_head()


def test_pieces_are_tokens_and_batches_are_computed_lazily():
    model = make(ENCODERS["gru"], DECODERS["bahdanau"], vocab=30)
    tokenizer = Tokenizer.train(["ab cd", "d c b a"], "character", 30)
    model.source_tokenizer = model.target_tokenizer = tokenizer
    sources = [tokenizer.encode(text) for text in ("ab", "cd cd")]
    at, result = next(attention_of_tokens(sources, [[*s, EOS] for s in sources], model, kinds=("cross",)))
    assert at == 1  # the longest comes first
    assert result.source == ["c", "d", "▁", "c", "d", "</s>"] == result.target
    assert result.inputs == ["<s>", "c", "d", "▁", "c", "d"]
    assert list(result) == ["decoder.attention.cross"]


def test_translations_have_the_attention_of_each_hypothesis():
    tokenizer = Tokenizer.train(["ab cd", "d c b a"], "character", 30)
    model = make(ENCODERS["transformer"], DECODERS["transformer"], vocab=len(tokenizer)).eval()
    model.source_tokenizer = model.target_tokenizer = tokenizer
    translations = translate(
        ["ab cd", "", "d"], model, beam=4, nbest=3, attention=True, limits=Limits(max_length=6)
    )
    assert [len(t.hypotheses) for t in translations] == [3, 0, 3]
    for translation in translations:
        for h in translation.hypotheses:
            target = [*h.tokens, EOS] if h.ended else h.tokens
            assert h.attention.target == tokenizer.tokens(target)
            assert h.attention.source == tokenizer.tokens([*translation.source_tokens, EOS])
            (alone,) = attention_maps([translation.source_tokens], [target], model)
            assert all(torch.allclose(h.attention[name], alone[name], atol=1e-12, rtol=0) for name in alone)
    assert translate(["ab"], model)[0].hypotheses[0].attention is None


def attention(**layers):
    weights = {
        f"decoder.layers.{i}.cross": torch.tensor(w, dtype=torch.float64)
        for i, w in enumerate(layers.values())
    }
    return AttentionMaps(["a", "b", "</s>"], ["x", "y"], ["<s>", "x"], weights)


SPREAD = [[1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3]]
CONSTANT = [[0, 0, 1], [0, 0, 1]]  # all weight on the end-of-sentence token
FOLLOWING = [[0.9, 0.1, 0], [0.1, 0.9, 0]]


def test_cross_is_the_mean_of_all_heads_or_of_those_named():
    maps = attention(low=[SPREAD, CONSTANT], high=[SPREAD, FOLLOWING])
    low, high = torch.tensor([SPREAD, CONSTANT]).double(), torch.tensor([SPREAD, FOLLOWING]).double()
    torch.testing.assert_close(maps.cross(), torch.cat([low, high]).mean(0))
    torch.testing.assert_close(maps.cross(layer=1), high.mean(0))
    torch.testing.assert_close(maps.cross(head=1), (low[1] + high[1]) / 2)
    torch.testing.assert_close(maps.cross(layer=-1, head=-1), high[1])
    for wrong in ({"layer": 2}, {"head": -3}):
        with pytest.raises(OptionError, match="does not exist; this model's cross-attention has 2"):
            maps.cross(**wrong)


def test_the_best_head_follows_the_text_and_not_one_position():
    assert attention(low=[SPREAD, CONSTANT], high=[SPREAD, FOLLOWING]).best_head() == (1, 1)
    assert best_head([attention(low=[FOLLOWING, CONSTANT]), attention(low=[CONSTANT, SPREAD])]) == (0, 0)


def test_wrong_arguments_of_attention_maps_are_errors():
    model = make(ENCODERS["gru"], DECODERS["dot"])
    for args, message in [
        ((None, [[4]], model), "must be given for a translator"),
        (([[4]], [[4]], make(None, DECODERS["transformer"])), "be None for a language model"),
        (([[4]], [[4], [5]], model), "1 sources and 2 targets"),
        (([[4]], [[4]], torch.nn.Linear(2, 2)), "got Linear"),
    ]:
        with pytest.raises(OptionError, match=message):
            attention_maps(*args)
    with pytest.raises(OptionError, match="there are decoder.attention.cross"):
        attention_maps([[4]], [[4]], model)[0]["decoder.3.cross"]
    with pytest.raises(OptionError, match="encoder, decoder, cross"):
        attention_maps([[4]], [[4]], model)[0].names("self")
    assert attention_maps([], [], model) == []


@pytest.fixture
def maps_of_two():
    model = make(ENCODERS["transformer"], DECODERS["transformer"])
    return attention_maps([[4, 5], [6]], [[7, EOS], [8, 9, 10, EOS]], model)


def test_json_lines_contain_every_matrix_with_six_digits(tmp_path, maps_of_two):
    with save_attention(tmp_path / "out.jsonl") as file:
        file.add(0, 0, maps_of_two[0], -0.5)
        file.add(2, 1, maps_of_two[1])
        assert not (tmp_path / "out.jsonl").exists()  # written when complete
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(r["line"], r["hypothesis"], r["score"]) for r in records] == [(0, 0, -0.5), (2, 1, None)]
    for record, result in zip(records, maps_of_two, strict=True):
        assert (record["source"], record["target"], record["inputs"]) == (
            result.source,
            result.target,
            result.inputs,
        )
        assert set(record["weights"]) == set(result)
        for name, rows in record["weights"].items():
            torch.testing.assert_close(
                torch.tensor(rows, dtype=torch.float64), result[name], atol=5.1e-7, rtol=0
            )


def test_an_archive_has_full_precision_and_needs_no_pickle(tmp_path, maps_of_two):
    with save_attention(tmp_path / "out.npz") as file:
        for line, result in enumerate(maps_of_two):
            file.add(line, 0, result, -1.5)
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        for line, result in enumerate(maps_of_two):
            about = json.loads(str(archive[f"{line}/0/text"]))
            assert about == {
                "score": -1.5,
                "source": result.source,
                "target": result.target,
                "inputs": result.inputs,
            }
            for name, w in result.items():
                assert np.array_equal(archive[f"{line}/0/{name}"], w.numpy())
        assert len(archive.files) == 2 * (1 + len(maps_of_two[0]))


@pytest.mark.parametrize("name", ["out.jsonl", "out.npz"])
def test_a_failed_write_keeps_the_old_file(tmp_path, maps_of_two, name):
    (tmp_path / name).write_text("old")

    def fail():
        with save_attention(tmp_path / name) as file:
            file.add(0, 0, maps_of_two[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / name).read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_an_unwritable_path_is_an_error_before_work(tmp_path):
    for path, message in [
        (tmp_path / "out.txt", "ends in .jsonl or .npz"),
        (tmp_path / "no" / "out.npz", "its folder does not exist"),
    ]:
        with pytest.raises(OptionError, match=message), save_attention(path):
            pass
    (tmp_path / "folder.npz").mkdir()
    with (
        pytest.raises(FolderError, match="folder.npz cannot be written"),
        save_attention(tmp_path / "folder.npz"),
    ):
        pass
