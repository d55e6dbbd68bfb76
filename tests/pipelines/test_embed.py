"""Tests of embed.py; embed_file.py is tested by tests/cli/test_texts_first.py."""

import numpy as np
import pytest
import torch

from regard.decoding.limits import Limits
from regard.errors import OptionError
from regard.files.progress import Progress
from regard.models import bert
from regard.pipelines import embed as pipeline
from regard.pipelines.embed import _batches, _pad, embed
from tests.models.tiny_bert import tiny_bert
from tests.search.small import TEXTS, embedder


def test_order_is_kept_and_batches_change_nothing():
    model = embedder()
    texts = [*TEXTS, "", TEXTS[0] + " " + TEXTS[1]] * 5
    alone = np.concatenate([embed([text], model) for text in texts])
    for options in ({"batch_tokens": 1}, {"batch_tokens": 64}, {"workers": 3, "batch_tokens": 40}):
        vectors = embed(texts, model, **options)
        assert vectors.dtype == np.float32 and vectors.shape == (len(texts), 32)
        np.testing.assert_allclose(vectors, alone, atol=2e-6)


def test_batches_have_similar_lengths_within_the_token_limit():
    rows = [[1] * n for n in (3, 9, 1, 4, 4, 7)]
    result = _batches(rows, 9)
    assert result == [[1], [5], [3, 4], [0, 2]]


def test_rows_are_padded_with_zeros():
    tokens, lengths = _pad([[5, 6], [7], [8, 9, 4]])
    assert tokens.tolist() == [[5, 6, 0], [7, 0, 0], [8, 9, 4]] and lengths.tolist() == [2, 1, 3]


def test_parts_that_are_queued_ahead_give_the_same_vectors(monkeypatch):
    model, texts = embedder(), [*TEXTS, "", TEXTS[0] + " " + TEXTS[1]] * 5
    monkeypatch.setitem(pipeline.TOKENIZED, "cpu", 7)
    out, bar = np.zeros((len(texts), 32), np.float32), Progress(len(texts), "embedding", "texts")
    with torch.inference_mode():
        pipeline._run_ahead(model.eval(), texts, out, Limits(batch_tokens=30), bar)
    np.testing.assert_allclose(out, embed(texts, model), atol=2e-6)
    assert bar.done == len(texts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_unit_vectors_in_float32(dtype):
    exact, vectors = embed(TEXTS, embedder()), embed(TEXTS, embedder().to(dtype))
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert 0 < np.abs(vectors - exact).max() < 0.03


def test_a_folder_of_a_sentence_encoder_is_a_model(tmp_path):
    folder = tiny_bert(tmp_path)
    np.testing.assert_array_equal(embed("the cat", str(folder)), embed("the cat", bert.read(folder)))


def test_a_long_text_is_truncated():
    model = embedder(
        encoder={
            "kind": "transformer",
            "layers": 1,
            "heads": 2,
            "inner": 16,
            "position": "learned",
            "max_positions": 8,
        }
    )
    assert model.longest == 8
    long, longer = "the cat sat on the mat " * 5, "the cat sat on the mat " * 6
    np.testing.assert_allclose(
        *embed([long, longer], model), rtol=0, atol=1e-6
    )  # rows of a product may be rounded differently


def test_a_model_in_training_mode_is_evaluated_without_dropout():
    model = embedder().train()
    np.testing.assert_array_equal(embed(TEXTS, model), embed(TEXTS, model))
    assert model.training


def test_no_texts_give_no_vectors():
    assert embed([], embedder()).shape == (0, 32)


def test_wrong_input_is_an_error_of_one_sentence():
    model = embedder()
    with pytest.raises(OptionError, match="batch_tokens must be an integer of at least 1, got 0"):
        embed(TEXTS, model, batch_tokens=0)
    with pytest.raises(OptionError, match="reads no source"):
        embed(TEXTS, torch.nn.Linear(2, 2))
