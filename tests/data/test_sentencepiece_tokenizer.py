"""Tests of sentencepiece_tokenizer.py."""

import json

import pytest

from regard.data.cached_encoder import CachedEncoder
from regard.data.sentencepiece_tokenizer import SentencePieceTokenizer, packed
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError

MODEL = {
    "kind": "unigram",
    "pieces": [["▁", -3.0], ["▁a", -1.0], ["b", -2.0], ["▁rose", -2.5]],
    "user_defined": [],
    "unused": [],
    "byte_fallback": False,
    "rules": packed(b""),
    "normalizer": {
        "dummy_prefix": True, "remove_extra_whitespaces": True, "whitespace_as_suffix": False,
    },
}  # fmt: skip
NAMES = ["▁a", "b", "▁", ">>fra<<", "日", "<0xE6>", "<0x97>", "<0xA5>"]


def test_pieces_have_the_ids_of_the_vocabulary():
    tokenizer = SentencePieceTokenizer.from_model(MODEL, NAMES)
    assert tokenizer.encode("a ab  b") == [4, 4, 5, 6, 5]
    assert tokenizer.encode("a rose") == [4, 1]  # a piece that the vocabulary does not have is UNK
    assert tokenizer.encode("日") == [6, 8]  # an unknown character is looked up
    assert tokenizer.encode("日本") == [6, 1]  # several are one
    assert tokenizer.decode([4, 5, 1, 6, 8, 3]) == "ab\ufffd 日"
    assert tokenizer.tokens([4, 5, 1, 7]) == ["▁a", "b", "<unk>", ">>fra<<"]
    assert len(tokenizer) == 12 and tokenizer.vocabulary["b"] == 5 and not tokenizer.languages
    with pytest.raises(DataError, match="beyond the 12"):
        tokenizer.decode([12])


def test_an_unknown_character_is_its_bytes_with_byte_fallback():
    tokenizer = SentencePieceTokenizer.from_model(MODEL | {"byte_fallback": True}, NAMES)
    assert tokenizer.encode("日b") == [6, 9, 10, 11, 5]
    assert tokenizer.spans("日b") == [(0, 0), (0, 1), (0, 1), (0, 1), (1, 2)]
    assert tokenizer.decode([4, 9, 10, 11, 5]) == "a日b"
    assert tokenizer.decode([4, 9, 10, 5, 11]) == "a\ufffd\ufffdb\ufffd"  # one for each byte
    assert tokenizer.tokens([9]) == ["<0xE6>"]


def test_a_code_at_the_start_is_a_language_token():
    tokenizer = SentencePieceTokenizer.from_model(MODEL, NAMES, ["fra"])
    assert tokenizer.languages == ("fra",)
    for text in (">>fra<< a", ">>fra<<a", ">>fra<<   a"):
        assert tokenizer.encode(text) == [7, 4], text
    assert 7 not in tokenizer.encode("a >>fra<<") + tokenizer.encode(">>deu<< a")
    assert tokenizer.spans(">>fra<< a") == [(0, 7), (7, 9)]  # a space belongs to the next word
    assert tokenizer.decode([7, 4]) == "a"


def test_files_cached_encoding_and_damaged_files(tmp_path):
    tokenizer = SentencePieceTokenizer.from_model(MODEL, NAMES, ["fra"])
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(again, SentencePieceTokenizer) and again == tokenizer
    texts = [">>fra<< a b", "", "a  日本 ab", "b"]
    encoded = CachedEncoder(again).encode(texts)
    assert encoded.tokens.tolist() == [i for text in texts for i in tokenizer.encode(text)]
    assert encoded.piece_counts.tolist() == [3, 0, 3, 1]
    for change in ({"rules": "x"}, {"kind": "word"}, {"pieces": 3}):
        broken = json.dumps({"sentencepiece": MODEL | change, "vocabulary": NAMES, "languages": []})
        with pytest.raises(DataError, match="not a tokenizer file of regard"):
            Tokenizer.read(broken)
    with pytest.raises(DataError, match="not a tokenizer file of regard"):
        SentencePieceTokenizer.from_model(MODEL, NAMES, ["deu"])
