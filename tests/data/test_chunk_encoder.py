"""Encoding of one chunk: dropped rows and their counts, and what the result depends on."""

import numpy as np
import pytest

from regard.data.chunk_encoder import ChunkEncoder, EncodingSettings
from regard.data.tokenizer import UNK, Tokenizer

COLUMNS = (["a", "a a a a", "a a a a a a", "b ?"], ["a a", "a", "a a a a a a a", "b"])


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["a b"], "word", 10)


def test_rows_that_are_too_long_or_too_unequal_are_counted(tokenizer):
    result = ChunkEncoder([tokenizer] * 2, EncodingSettings(max_length=6, max_ratio=2.0)).run(COLUMNS, 0)
    assert result.keep.tolist() == [True, False, False, True]
    assert result.counts == {
        "long": 1,
        "ratio": 1,
        "unknown": 1,
        "source_tokens": 1 + 2 + 2,
        "target_tokens": 2 + 1 + 2,
    }
    (source, lengths), (target, _) = (side[0] for side in result.sides)
    assert lengths.tolist() == [1, 2] and source.tolist()[-1] == UNK
    assert tokenizer.decode(target) == "a a b"


def test_no_lines_of_a_text_are_dropped(tokenizer):
    result = ChunkEncoder([tokenizer], EncodingSettings(max_length=1)).run(COLUMNS[:1], 0)
    assert result.keep.all() and "source_tokens" not in result.counts


def test_dropout_depends_on_chunk_number_and_seed_and_not_on_earlier_chunks():
    text = ["lower newest widest " * 5] * 50
    bpe = Tokenizer.train(text, "bpe", 60)
    settings = EncodingSettings(dropout=0.3, variants=2, seed=3)
    used = ChunkEncoder([bpe, bpe], settings)
    for number in range(3):
        used.run((text[:5], text[:7][:5]), number)
    fresh = ChunkEncoder([bpe, bpe], settings)

    def tokens(encoder, number):
        return [pair[0].tobytes() for side in encoder.run((text, text), number).sides for pair in side]

    assert tokens(used, 4) == tokens(fresh, 4)
    assert not set(tokens(used, 4)) & set(tokens(fresh, 5))
    assert len(set(tokens(fresh, 4))) == 4  # sides and variants differ
    assert not np.array_equal(
        tokens(ChunkEncoder([bpe, bpe], EncodingSettings(dropout=0.3, variants=2, seed=4)), 4),
        tokens(fresh, 4),
    )
