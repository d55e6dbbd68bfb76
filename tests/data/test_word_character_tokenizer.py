"""Words followed by their bytes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from regard.data.cached_encoder import CachedEncoder
from regard.data.tokenizer import UNK, Tokenizer
from regard.data.word_character_tokenizer import MAX_BYTES, WordCharacterTokenizer
from regard.errors import DataError

LINES = ["The cat sat", "the Cat ran", "the dog"]


@pytest.fixture
def spelled() -> WordCharacterTokenizer:
    tokenizer = Tokenizer.train(LINES, "word-characters", 100, lowercase=True, min_count=2)
    assert isinstance(tokenizer, WordCharacterTokenizer)
    return tokenizer


def test_a_word_is_encoded_as_its_id_and_its_bytes(spelled: WordCharacterTokenizer) -> None:
    base = len(spelled.words)
    assert spelled.words.vocabulary.keys() >= {"the", "cat"}
    assert "dog" not in spelled.words.vocabulary  # seen once
    the = spelled.words.vocabulary["the"]
    assert spelled.encode("The dög") == [
        the,
        *(base + b for b in b"The"),
        UNK,
        *(base + b for b in "dög".encode()),
    ]
    assert len(spelled) == base + 256


def test_an_unseen_word_keeps_its_characters_and_case(spelled: WordCharacterTokenizer) -> None:
    assert spelled.decode(spelled.encode("McX likes ünseen 😀 words")) == "McX likes ünseen 😀 words"


def test_a_long_word_keeps_the_bytes_of_both_ends(spelled: WordCharacterTokenizer) -> None:
    ids = spelled.encode("a" * 30 + "b" * 30)
    assert len(ids) == 1 + MAX_BYTES
    assert spelled.decode(ids) == "a" * 12 + "b" * 12


def test_repeated_spaces_are_ignored(spelled: WordCharacterTokenizer) -> None:
    assert spelled.encode(" the   cat ") == spelled.encode("the cat")


def test_corpus_encoding_equals_text_encoding(spelled: WordCharacterTokenizer) -> None:
    texts = ["the cat", "un seen", "", "The the THE"]
    encoded = CachedEncoder(spelled).encode(texts)
    assert encoded.tokens.tolist() == [i for text in texts for i in spelled.encode(text)]
    assert encoded.lengths.tolist() == [len(spelled.encode(text)) for text in texts]


def test_it_is_restored_from_its_file_and_pickled_to_another_process(
    spelled: WordCharacterTokenizer, tmp_path: Path
) -> None:
    spelled.save(tmp_path / "source.json")
    for loaded in (
        Tokenizer.load(tmp_path / "source.json"),
        pickle.loads(pickle.dumps(spelled)),
        Tokenizer.read(spelled.text),
    ):
        assert isinstance(loaded, WordCharacterTokenizer)
        assert loaded == spelled
        assert loaded.lowercase
        assert loaded.encode("The Xat") == spelled.encode("The Xat")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"word_characters": {"model": 3}}', encoding="utf-8")
    with pytest.raises(DataError, match=r"a.json: this is not a tokenizer file"):
        Tokenizer.load(tmp_path / "a.json")


def test_an_id_outside_the_vocabulary_is_refused(spelled: WordCharacterTokenizer) -> None:
    with pytest.raises(DataError, match="belongs to another model"):
        spelled.decode([len(spelled)])
