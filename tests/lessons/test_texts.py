"""Tests of texts.py: the training texts of lessons."""

import pytest

from regard.errors import OptionError
from regard.lessons.texts import ALPHABET, letters, pairs, sentences


def test_sentences_are_in_the_same_random_order_at_every_call():
    first = sentences("en")
    assert first == sentences("en")
    assert len(first) == len(set(first)) > 10_000
    assert first != sorted(first)


def test_pairs_are_english_sentences_with_their_german_translations():
    german = dict(pairs())
    assert german["Tom is happy."] == "Tom ist glücklich."
    assert set(german) == set(sentences("en")) and set(german.values()) == set(sentences("de"))


def test_letters_are_27_symbols_with_single_spaces():
    ids = letters("de")
    assert ids.min() == 0 and ids.max() == 26
    text = "".join(ALPHABET[i] for i in ids[:5000].tolist())
    assert "  " not in text and " ich " in text


def test_another_language_is_refused():
    with pytest.raises(OptionError, match="'fr'"):
        sentences("fr")
