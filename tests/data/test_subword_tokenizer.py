"""Sub-word tokens of words: the first token of each word is marked, and saving keeps everything."""

import json

from regard.data.cached_encoder import CachedEncoder
from regard.data.subword_tokenizer import MAX_TOKENS, SubwordTokenizer
from regard.data.tokenizer import UNK, Tokenizer

LINES = ["low lower lowest", "new newer newest", "wide wider widest"] * 20
INNER = Tokenizer.train(LINES, "bpe", 30)
TOKENIZER = SubwordTokenizer.from_tokenizer(INNER)


def test_the_first_token_of_each_word_is_below_the_size_and_the_others_above():
    text = "lowest wider low"
    ids = TOKENIZER.encode(text)
    assert [i % TOKENIZER.size for i in ids] == INNER.encode(text)
    assert sum(i < TOKENIZER.size for i in ids) == 3 and ids[0] < TOKENIZER.size
    assert TOKENIZER.decode(ids) == text and len(TOKENIZER) == 2 * len(INNER)


def test_a_word_without_tokens_is_unk_and_a_long_one_is_truncated():
    cleaned = INNER._json | {
        "normalizer": {"type": "Replace", "pattern": {"String": "\u0007"}, "content": ""}
    }
    cleaned |= {"pre_tokenizer": {"type": "WhitespaceSplit"}}
    tokenizer = SubwordTokenizer.from_tokenizer(Tokenizer(json.dumps(cleaned)))
    assert tokenizer.encode("low \u0007 low").count(UNK) == 1
    assert len(TOKENIZER.encode("lwn" * 50)) == MAX_TOKENS


def test_a_saved_tokenizer_encodes_a_corpus_in_the_same_way(tmp_path):
    TOKENIZER.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(again, SubwordTokenizer) and again == TOKENIZER
    texts = ["lowest  newer", " wide", "", "lower widest"]
    assert CachedEncoder(again).encode(texts).tokens.tolist() == [
        i for text in texts for i in TOKENIZER.encode(text)
    ]
