"""Tokenizers: lossless round trips, special ids never come from text, invalid vocabularies are refused.

Covers tokenizer_training.py, train_tokenizers.py.
"""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.bpe_dropout import BpeDropout
from regard.data.cached_encoder import CachedEncoder
from regard.data.tokenizer import BOS, EOS, PAD, SERIAL, UNK, Tokenizer
from regard.data.tokenizer_training import TOKENIZERS
from regard.errors import DataError, OptionError

KINDS = [kind for kind in TOKENIZERS if kind != "word-characters"]
ALPHABET = "abcdefg ABC.,!?'\"0123\t\näöüß\u0301\u0308éñ€日本語한글مرحبا😀👩\u200d👧🏽\u00a0\u2028\x85▁Ġ"
WORDS = "der Hund und die Katze gehen nach Hause , weil es regnet . aber sie haben keinen Schirm !".split(" ")


def lines():
    draw = random.Random(1)
    prose = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(400)]
    return [*prose, *("".join(draw.choices(ALPHABET, k=30)) for _ in range(300)), ALPHABET]


@pytest.fixture(scope="module")
def trained():
    sizes = {"bpe": 400, "byte-bpe": 500, "unigram": 300, "word": 400, "character": 400}
    return {kind: Tokenizer.train(lines(), kind, size) for kind, size in sizes.items()}


@given(st.text())
@settings(max_examples=300)
def test_byte_bpe_round_trips_any_text(trained, text):
    assert trained["byte-bpe"].decode(trained["byte-bpe"].encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "character"])
@given(st.text(st.sampled_from(ALPHABET)))
@settings(max_examples=300)
def test_text_of_known_characters_round_trips(trained, kind, text):
    ids = trained[kind].encode(text)
    assert UNK not in ids
    assert trained[kind].decode([BOS, *ids, EOS, PAD, PAD]) == text


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "character"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  ",
        " a",
        "a ",
        "a  b",
        "\t",
        "a\tb\n",
        "e\u0301",
        "👩\u200d👧🏽",
        "日本語 한글",
        "a\u00a0b",
        "\u2028",
        "▁a ▁",
    ],
)
def test_spaces_punctuation_and_scripts_round_trip(trained, kind, text):
    assert trained[kind].decode(trained[kind].encode(text)) == text


@given(st.lists(st.sampled_from(WORDS)))
def test_known_words_round_trip_with_single_spaces(trained, words):
    ids = trained["word"].encode("  ".join(words) + " ")
    assert len(ids) == len(words)
    assert trained["word"].decode(ids) == " ".join(words)


def test_word_tokens_are_split_at_spaces_only():
    tokenizer = Tokenizer.train(["don't stop\tnow <unk> x.y\u00a0z"], "word", 20)
    assert len(tokenizer) == 4 + 4
    ids = tokenizer.encode("stop\tnow <unk> don't x.y\u00a0z other")
    assert ids[-1] == UNK and UNK not in ids[:-1]
    assert tokenizer.decode(ids) == "stop\tnow <unk> don't x.y\u00a0z <unk>"


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_spells_a_special_token_is_text(kind):
    spelled = ["<pad> <unk> <s> </s> < pad > < unk > < s > < /s > [PAD] <pad", "a<s>b</s>c<pad><pad>"]
    tokenizer = Tokenizer.train(spelled * 50, kind, 300)
    for text in spelled:
        ids = tokenizer.encode(text)
        assert min(ids) > EOS
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_whitespace_that_the_vocabulary_lacks_is_read_as_a_space(kind):
    tokenizer = Tokenizer.train(["a b\u00a0c"] * 9, kind, 30, languages=["de"])
    spaced, plain = "a\tb\r\x0bc\u2009a\u00a0", "a b  c a\u00a0"
    assert tokenizer.encode(spaced) == tokenizer.encode(plain)
    assert UNK not in tokenizer.encode(spaced)
    assert tokenizer.spans(spaced) == tokenizer.spans(plain)
    assert tokenizer.encode_batch([f">>de<< {spaced}"] * SERIAL)[-1] == tokenizer.encode(f">>de<< {plain}")
    assert tokenizer.encode_pieces([spaced]) == tokenizer.encode_pieces([plain])


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_characters_are_those_that_become_unk(kind):
    tokenizer = Tokenizer.train(["a rose is a rose"] * 9, kind, 300, lowercase=kind == "bpe")
    found = tokenizer.unknown_characters(["A\trose <b>", "😀 is"])
    upper = set() if kind == "bpe" else {"A"}
    assert found == (set("<b>😀") | upper if kind in ("bpe", "unigram", "character") else set())


@pytest.mark.parametrize("kind", KINDS)
def test_unseen_words_are_unk(trained, kind):
    ids = trained[kind].encode("Ω")
    if kind == "byte-bpe":
        assert trained[kind].decode(ids) == "Ω"
    else:
        assert UNK in ids
        assert trained[kind].decode(ids) == ("<unk>" if kind == "word" else "\ufffd")


@pytest.mark.parametrize("kind", KINDS)
def test_training_again_gives_the_same_vocabulary(trained, kind):
    again = Tokenizer.train(iter(lines()), kind, {"byte-bpe": 500, "unigram": 300}.get(kind, 400))
    assert again.fingerprint == trained[kind].fingerprint
    assert again == trained[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_loaded_unchanged(trained, kind, tmp_path):
    trained[kind].save(tmp_path / "deep" / "t.json")
    loaded = Tokenizer.load(tmp_path / "deep" / "t.json")
    assert (loaded.kind, loaded.fingerprint, len(loaded)) == (
        kind,
        trained[kind].fingerprint,
        len(trained[kind]),
    )
    assert loaded.encode_batch(lines()) == trained[kind].encode_batch(lines())


@pytest.mark.parametrize("kind", KINDS)
def test_the_saved_file_can_be_read_by_hugging_face_tokenizers(trained, kind, tmp_path):
    trained[kind].save(tmp_path / "t.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    text = "der Hund und die Katze ."
    assert theirs.encode(text).ids == trained[kind].encode(text)
    assert theirs.decode(theirs.encode(text).ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_batch_encoding_equals_single_encoding(trained, kind):
    texts = lines() * 2
    assert trained[kind].encode_batch(texts) == [trained[kind].encode(text) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase_applies_to_encoding(kind):
    tokenizer = Tokenizer.train(["Der HUND bellt"] * 9, kind, 300, lowercase=True)
    assert tokenizer.lowercase
    assert tokenizer.decode(tokenizer.encode("DER Hund BELLT")) == "der hund bellt"
    assert not Tokenizer.train(["Der Hund"], kind, 300).lowercase


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_a_vocabulary_smaller_than_the_alphabet_is_refused_with_both_numbers(kind):
    with pytest.raises(DataError, match=r"vocabulary of 20 cannot hold the (27|28) different characters"):
        Tokenizer.train(["abcdefghijklmnopqrstuvwxyz "], kind, 20)


def test_byte_bpe_needs_room_for_the_bytes():
    with pytest.raises(DataError, match="of 259 cannot hold 256 bytes"):
        Tokenizer.train(["abc"], "byte-bpe", 259)


@pytest.mark.parametrize("kind", KINDS)
def test_training_without_text_is_refused(kind):
    with pytest.raises(DataError, match="no text"):
        Tokenizer.train([], kind, 300)


def test_options_are_checked():
    with pytest.raises(OptionError, match="one of bpe"):
        Tokenizer.train(["a"], "bpee")
    with pytest.raises(OptionError, match="at least 5"):
        Tokenizer.train(["a"], "bpe", 4)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1, 2]", "not json", '{"model": {"type": "BPE"}, "pre_tokenizer": null}']
)
def test_a_file_that_is_not_a_tokenizer_is_an_error_of_one_sentence(tmp_path, text):
    (tmp_path / "t.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="not a tokenizer file") as caught:
        Tokenizer.load(tmp_path / "t.json")
    assert "\n" not in str(caught.value)


def test_a_foreign_tokenizer_is_refused(trained, tmp_path):
    record = json.loads(trained["word"].text)
    record["model"]["vocab"] = {"a": 0, "b": 1}
    record["model"]["unk_token"] = "a"
    (tmp_path / "t.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(DataError, match="ids 0 to 3"):
        Tokenizer.load(tmp_path / "t.json")
    with pytest.raises(DataError, match="there is no tokenizer file"):
        Tokenizer.load(tmp_path / "none.json")


def test_ids_outside_the_vocabulary_are_refused(trained):
    with pytest.raises(DataError, match="beyond the"):
        trained["bpe"].decode([10**6])


def test_tokens_of_ids_can_be_listed(trained):
    ids = trained["bpe"].encode("der Hund")
    assert "".join(trained["bpe"].tokens(ids)) == "▁der▁Hund"
    assert trained["bpe"].tokens([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert trained["byte-bpe"].tokens(trained["byte-bpe"].encode("der"))[0].startswith("▁")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_that_encoded_in_parallel_may_fork(trained, tmp_path):
    trained["bpe"].save(tmp_path / "t.json")
    code = (
        "import os, sys; from regard.data.tokenizer import Tokenizer\n"
        "t = Tokenizer.load(sys.argv[1]); texts = ['der Hund und die Katze'] * 500\n"
        "a = t.encode_batch(texts)\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if t.encode_batch(texts) == a else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "t.json")], timeout=60
        ).returncode
        == 0
    )


LINES = ["der Hund und die Katze", ">>de<< der Hund läuft", ">>fr<< le chien court", "a >> b << c >> d"]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "word", "character"])
def test_a_language_token_is_recognised_at_the_start_only(kind):
    size = 300 if kind == "byte-bpe" else 60
    tokenizer = Tokenizer.train(LINES * 5, kind, size, languages=["de", "fr"])
    assert tokenizer.languages == ("de", "fr")
    assert Tokenizer.train(LINES, kind, size).languages == ()
    assert tokenizer.encode(">>fr<< der Hund") == [5, *tokenizer.encode("der Hund")]
    assert tokenizer.encode(">>de<<")[:1] == [4]
    for text in ("der >>de<< Hund", " >>de<< Hund", ">>es<< Hund", ">>de<<Hund", ">>de << Hund"):
        assert not {4, 5} & set(tokenizer.encode(text)), text
    many = [">>de<< der Hund", "der Hund", "a >>fr<< b", ">>fr<<  x"] * 30
    ids = [tokenizer.encode(text) for text in many]
    assert tokenizer.encode_batch(many) == ids
    assert [pieces for pieces, _ in tokenizer.encode_pieces(many)] == ids
    encoded = CachedEncoder(tokenizer).encode(many)
    assert encoded.tokens.tolist() == [i for row in ids for i in row]
    assert tokenizer.decode(ids[0]) == tokenizer.decode(ids[1])
    assert tokenizer.tokens([4, 5]) == [">>de<<", ">>fr<<"]
    assert Tokenizer.read(tokenizer.text).languages == ("de", "fr")


def test_spans_count_the_language_token():
    tokenizer = Tokenizer.train(LINES, "word", 60, languages=["de"])
    assert tokenizer.spans(">>de<< der Hund") == [(0, 7), (7, 10), (11, 15)]
    assert tokenizer.spans("der Hund") == [(0, 3), (4, 8)]


def test_bpe_dropout_keeps_language_tokens():
    tokenizer = Tokenizer.train(LINES * 5, "bpe", 60, languages=["de"])
    encoded = CachedEncoder(tokenizer).encode([">>de<< der Hund"] * 3)
    draw = np.random.default_rng(0)
    for tokens, _ in BpeDropout(tokenizer, 0.5).variants(encoded.tokens, encoded.pieces, 4, draw):
        assert (tokens == 4).sum() == 3 and tokenizer.decode(tokens[: len(tokens) // 3]) != ""


@pytest.mark.parametrize("codes", [["d e"], [""], ["de", "de"], [3]])
def test_wrong_language_codes_are_refused(codes):
    with pytest.raises(OptionError, match="language"):
        Tokenizer.train(LINES, "word", 60, languages=codes)
