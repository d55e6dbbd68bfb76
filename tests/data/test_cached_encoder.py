"""Cached word-by-word encoding gives the same tokens as encoding complete texts."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import cached_encoder as module
from regard.data.cached_encoder import CachedEncoder, ragged_indices, segment_sums
from regard.data.tokenizer import Tokenizer
from regard.data.tokenizer_training import TOKENIZERS

ALPHABET = "abAB .,'12 \täö\u0301日本😀\u00a0\u2028 “”–_ "


def texts(count=300):
    draw = random.Random(2)
    return ["".join(draw.choices(ALPHABET, k=draw.randint(0, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def encoders():
    return {
        (kind, lower): CachedEncoder(Tokenizer.train([*texts(), ALPHABET], kind, 400, lowercase=lower))
        for kind in [kind for kind in TOKENIZERS if kind != "word-characters"]
        for lower in (False, True)
    }


def split(result):
    return [part.tolist() for part in np.split(result.tokens, np.cumsum(result.lengths)[:-1])]


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind != "word-characters"])
@given(
    st.lists(
        st.one_of(st.text(st.sampled_from(ALPHABET)), st.text(st.sampled_from("a. \t\u00a0")), st.text()),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=100)
def test_the_cached_encoder_equals_the_tokenizer(encoders, kind, lower, batch):
    encoder = encoders[kind, lower]
    assert split(encoder.encode(batch)) == [encoder.tokenizer.encode(text) for text in batch]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram"])
def test_the_cached_encoder_counts_the_tokens_of_each_pre_token(encoders, kind):
    encoder = encoders[kind, False]
    batch = texts()
    encoded = encoder.encode(batch)
    assert encoded.pieces.sum() == len(encoded.tokens)
    expected = [
        np.unique(pieces, return_counts=True)[1].tolist()
        for _, pieces in encoder.tokenizer.encode_pieces(batch)
    ]
    assert [
        part.tolist() for part in np.split(encoded.pieces, np.cumsum(encoded.piece_counts)[:-1])
    ] == expected


def test_a_full_cache_is_emptied_and_results_stay_the_same(encoders, monkeypatch):
    fresh = CachedEncoder(encoders["bpe", False].tokenizer)
    monkeypatch.setattr(module, "MAX_WORDS", 20)
    for at in range(0, 300, 10):
        part = texts()[at : at + 10]
        assert split(fresh.encode(part)) == [fresh.tokenizer.encode(text) for text in part]
    assert len(fresh._word_index) < 200


def test_selecting_rows_removes_the_others(encoders):
    batch = texts(50)
    keep = np.arange(50) % 3 == 1
    encoder = encoders["byte-bpe", False]
    encoded, expected = (
        encoder.encode(batch).select(keep),
        encoder.encode([text for text, kept in zip(batch, keep, strict=True) if kept]),
    )
    for name in ("tokens", "lengths", "pieces", "piece_counts"):
        assert np.array_equal(getattr(encoded, name), getattr(expected, name))


def test_ragged_and_sums():
    assert ragged_indices(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ragged_indices(np.array([], np.int64), np.array([], np.int64)).tolist() == []
    assert segment_sums(np.array([1, 2, 3, 4]), np.array([0, 2, 0, 2, 0])).tolist() == [0, 3, 0, 7, 0]
