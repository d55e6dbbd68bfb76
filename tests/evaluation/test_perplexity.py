"""Perplexity and bits per character against models whose answer is known."""

import math

import pytest

from regard.errors import DataError, OptionError
from regard.evaluation.perplexity import LanguageScores, bits, count_text, perplexity


def test_a_model_that_guesses_among_n_has_perplexity_n():
    assert perplexity(100 * math.log(50), 100) == pytest.approx(50)
    assert bits(100 * math.log(64), 100) == pytest.approx(6)


def test_a_text_is_measured_with_its_line_ends():
    text = ["naïve café", "", "日本"]
    result = count_text(text)
    assert (result.lines, result.words, result.characters, result.bytes) == (
        3,
        2 + 0 + 1 + 3,
        10 + 0 + 2 + 3,
        12 + 0 + 6 + 3,
    )
    assert result.characters == len("\n".join(text) + "\n")
    assert result.bytes == len(("\n".join(text) + "\n").encode())


def test_the_same_likelihood_gives_each_unit_its_own_rate():
    text = count_text(["the cat", "sat"])
    scores = LanguageScores(nll=10.0, tokens=4, text=text)
    assert scores.perplexity == pytest.approx(math.exp(10 / 4))
    assert scores.word_perplexity == pytest.approx(math.exp(10 / 5))  # three words, two line ends
    assert scores.bits_per_character == scores.bits_per_byte == pytest.approx(10 / math.log(2) / 12)
    assert scores.as_dict()["word_perplexity"] == scores.word_perplexity
    assert "12 characters" in str(scores)


def test_subword_segmentation_does_not_change_the_word_perplexity():
    text = count_text(["unlikely words"])
    full, pieces = LanguageScores(9.0, 3, text), LanguageScores(9.0, 7, text)
    assert full.word_perplexity == pieces.word_perplexity == full.perplexity
    assert pieces.perplexity < full.perplexity


def test_infinite_and_nan_values_are_kept():
    assert perplexity(1e9, 10) == math.inf
    assert math.isnan(perplexity(math.nan, 10))
    assert math.isnan(bits(math.nan, 10))
    assert perplexity(-1e-9, 10) == pytest.approx(1)  # rounding


def test_invalid_input_is_an_error():
    with pytest.raises(OptionError, match="units must be at least 1, got 0"):
        perplexity(1.0, 0)
    with pytest.raises(OptionError, match="never below 0, got -20; flip its sign"):
        bits(-20.0, 10)
    with pytest.raises(DataError, match="must be a list of lines, got one text 'abc'"):
        count_text("abc")
