"""Reading word vectors of word2vec and GloVe files; errors of one sentence."""

import gzip
import lzma
import struct

import numpy as np
import pytest

from regard.data import word_vectors
from regard.data.word_vectors import read_vectors
from regard.errors import DataError

WORDS = ["the", "naïve", "日本", "."]
NUMBERS = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def glove(words=WORDS, numbers=NUMBERS):
    return "".join(
        f"{word} {' '.join(repr(float(x)) for x in row)}\n" for word, row in zip(words, numbers, strict=True)
    ).encode()


def text(words=WORDS, numbers=NUMBERS):
    return b"%d %d\n" % numbers.shape + glove(words, numbers)


def binary(words=WORDS, numbers=NUMBERS, end=b"\n"):
    """The format of word2vec.c: "%s ", then each float as bytes."""
    rows = (
        word.encode() + b" " + struct.pack(f"<{len(row)}f", *row) + end
        for word, row in zip(words, numbers, strict=True)
    )
    return b"%d %d\n" % numbers.shape + b"".join(rows)


def write(tmp_path, data, name="vectors"):
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gzip", "xz"])
@pytest.mark.parametrize(
    "form", [glove, text, binary, lambda: binary(end=b"")], ids=["glove", "text", "binary", "no line feeds"]
)
def test_every_format_gives_the_words_and_their_vectors(tmp_path, form, pack):
    words, vectors = read_vectors(write(tmp_path, pack(form())))
    assert words == WORDS
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, NUMBERS)
    words, vectors = read_vectors(tmp_path / "vectors", wanted=["日本", "the", "absent"])
    assert words == ["the", "日本"]
    np.testing.assert_array_equal(vectors, NUMBERS[[0, 2]])


@pytest.mark.parametrize("form", [glove, text, binary])
def test_blocks_of_any_size_give_the_same_vectors(tmp_path, form, monkeypatch):
    path = write(tmp_path, form())
    for block in (1, 3, 17):
        monkeypatch.setattr("regard.data.text_files.BLOCK", block)
        words, vectors = read_vectors(path)
        assert words == WORDS
        np.testing.assert_array_equal(vectors, NUMBERS)


def test_without_wanted_words_the_width_is_still_returned(tmp_path):
    for form in (glove, text, binary):
        words, vectors = read_vectors(write(tmp_path, form()), wanted=[])
        assert (words, vectors.shape) == ([], (0, 5))


def test_binary_vectors_are_never_mistaken_for_text(tmp_path):
    """Small, large, zero and constant vectors; the first row decides the format."""
    for value in (0.0, 1.0, -1.0, 0.01, 1e-30, 123456.0, 0.5):
        numbers = np.full((2, 3), value, np.float32)
        assert read_vectors(write(tmp_path, binary(["a", "b"], numbers)))[1].tolist() == numbers.tolist()
        assert read_vectors(write(tmp_path, text(["a", "b"], numbers)))[1].tolist() == numbers.tolist()


def test_words_with_spaces_trailing_blanks_and_repetitions_are_read(tmp_path):
    rows = b". . . 1 2\nat name@host 3 4\na\t5\t6\nb 7 8 \r\n\nb 9 9\n"
    words, vectors = read_vectors(write(tmp_path, b"the 0 1\n" + rows))
    assert words == ["the", ". . .", "at name@host", "a", "b"]
    assert vectors.tolist() == [[0, 1], [1, 2], [3, 4], [5, 6], [7, 8]]


def test_a_word_that_is_not_utf8_is_skipped(tmp_path):
    assert read_vectors(write(tmp_path, b"2 2\nb\xffd 1 2\ngood 3 4\n"))[0] == ["good"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a 1 2 3\nb 1 2\n", r"line 2 of .*vectors has 2 numbers and the lines before have 3"),
        (b"a 1 2 3\nb 1 2 3 4\n", r"line 2 of .* has 4 numbers and the lines before have 3"),
        (b"2 3\na 1 2 3\nb 1 2\n", r"line 3 of .* has 2 numbers and the lines before have 3"),
        (b"2 4\na 1 2 3\nb 1 2 3\n", r"line 2 of .* has 3 numbers and the lines before have 4"),
        (b"3 2\na 1 2\nb 1 2\n", r"line 1 of .* says 3 words and 2 follow; the file was cut off"),
        (b"1 2\na 1 2\nb 1 2\n", r"line 1 of .* says 1 words and 2 follow; its first line is wrong"),
        (b"0 300\n", "line 1 of .* says 0 words of 300 numbers"),
        (b"3 0\na\n", "line 1 of .* says 3 words of 0 numbers"),
        (b"3 99999999\na 1\n", "line 1 of .* says 3 words of 99999999 numbers"),
        (b"a 1 2\nb 1 x\n", r"line 2, column 3 of .* is 'x', where a number is expected"),
        (b"a 1 2\nb nan 2\n", r"line 2 of .* has a number that is NaN or infinite, for 'b'"),
        (b"a 1 2\nb 1 inf\n", r"line 2 of .* has a number that is NaN"),
        (b"a 1 1e39\n", r"line 1 of .* has a number that is NaN or infinite"),
        (b"word\n", r"line 1 of .* is 'word'; a line is a word and"),
        (b"\n\n", "has no vectors"),
        (b"", "is empty"),
        (binary()[:-9], r"ends at word 4 of the 4 that its first line names"),
        (binary()[:40], r"ends at word 2 of the 4"),
        (binary() + b"more 1234", "continues after the 4 words"),
        (binary(numbers=NUMBERS * np.nan), "word 1 of .* has a number that is NaN"),
        (b"2 3\n" + b"\xff" * 20_000, "ends at word 1 of the 2"),
        (b"2 3\na 1 2 3\nb" + b"1" * 20_000, "line 3 of .* has 0 numbers"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_position(tmp_path, data, message):
    with pytest.raises(DataError, match=message) as raised:
        read_vectors(write(tmp_path, data))
    assert "\n" not in str(raised.value)


def test_a_line_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "MAX_LINE", 100)
    with pytest.raises(DataError, match=r"line 2 of .* is longer than 100 characters"):
        read_vectors(write(tmp_path, b"a 1 2\nb" + b"1" * 1000 + b"\n"))


def test_words_that_are_not_requested_take_no_memory(tmp_path):
    words = [f"w{i}" for i in range(2000)]
    numbers = np.random.default_rng(1).normal(size=(2000, 50)).astype(np.float32)
    for form in (glove, binary):
        vectors = read_vectors(write(tmp_path, form(words, numbers)), wanted={"w7", "w1999"})
        assert vectors[0] == ["w7", "w1999"]
        np.testing.assert_array_equal(vectors[1], numbers[[7, 1999]])


def test_vectors_equal_those_of_gensim(tmp_path):
    gensim = pytest.importorskip(
        "gensim.models", reason="gensim is not installed; the files above are written by hand"
    )
    for form, is_binary in ((text, False), (binary, True)):
        theirs = gensim.KeyedVectors.load_word2vec_format(str(write(tmp_path, form())), binary=is_binary)
        words, vectors = read_vectors(tmp_path / "vectors")
        assert words == theirs.index_to_key
        np.testing.assert_array_equal(vectors, theirs.vectors)
        theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=is_binary)
        np.testing.assert_array_equal(read_vectors(tmp_path / "theirs")[1], theirs.vectors)
