"""Tests of sentencepiece_segmentation.py: pieces are those of the library."""

import random

import pytest

from regard.data import sentencepiece_segmentation as segmentation
from regard.data.sentencepiece_segmentation import Bpe, CharacterMap, TextNormalizer, Unigram
from regard.data.sentencepiece_tokenizer import SentencePieceTokenizer
from regard.interchange.sentencepiece import read_sentencepiece
from tests.interchange.marian_folders import sentencepiece_model
from tests.interchange.small_models import ENGLISH, GERMAN

spm = pytest.importorskip("sentencepiece")
CHARACTERS = (
    "abcde ABC  éèüß\u0301\u0308日本語ｆｕｌｌ①ﬁ½\u200b\u200d\u00ad\ufeff😀👩\u200d👧"
    "…—\t\n\u3000\u00a0▁<>0x/s.!?가각\u1100\u1161\u11a8ｶﾞ\x00\x01\x07ǆक्षि"
)
TEXTS = [
    "",
    " ",
    "x" * 500,
    "ab " * 300,
    "Donaudampfschifffahrt" * 30,
    "▁x ▁▁ y▁",
    "< pad > </s> <s>",
    "<0x41>",
]


def texts(seed):
    draw = random.Random(seed)
    mixed = ["".join(draw.choices(CHARACTERS, k=draw.randrange(1, 40))) for _ in range(200)]
    repeated = ["".join(draw.choice("lfs.-!") * draw.randrange(1, 9) for _ in range(20)) for _ in range(50)]
    return [*TEXTS, *ENGLISH[:80], *GERMAN[:80], *mixed, *repeated, " ".join(ENGLISH[:60])]


OPTIONS = [
    {},
    {"model_type": "bpe"},
    {"byte_fallback": True},
    {"model_type": "bpe", "byte_fallback": True},
    {"user_defined_symbols": ("Tom", "日本")},
    {"model_type": "bpe", "user_defined_symbols": ("Tom", "日本")},
    {"normalization_rule_name": "nfkc_cf"},
    {"model_type": "bpe", "normalization_rule_name": "identity", "add_dummy_prefix": False},
    {"remove_extra_whitespaces": False},
    {"split_by_whitespace": False},
    {"treat_whitespace_as_suffix": True},
    {"model_type": "bpe", "treat_whitespace_as_suffix": True, "remove_extra_whitespaces": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pieces_equal_those_of_sentencepiece(tmp_path, options):
    path = tmp_path / "model.spm"
    path.write_bytes(sentencepiece_model("source", **options))
    theirs = spm.SentencePieceProcessor(str(path))
    names = [theirs.id_to_piece(i) for i in range(theirs.get_piece_size())]
    ours = SentencePieceTokenizer.from_model(read_sentencepiece(path), names)
    for text in texts(len(str(options))):
        pieces = theirs.encode(text, out_type=str)
        ids = ours.encode(text)
        assert ids == [ours._ids.get(piece, 1) for piece in pieces], text
        if not ours._byte_fallback:
            assert ours._segmenter.split(ours._normalizer(text)) == pieces, text
        assert len(ours.spans(text)) == len(ids), text
        if 1 not in ids:  # UNK
            assert ours.decode(ids) == theirs.decode(pieces).strip(), text


def test_unigram_and_bpe_by_hand():
    """Scores decide: for unigram the sum of a split, for BPE the piece that is merged first."""
    scores = {"a": -2.0, "b": -2.0, "c": -2.0, "ab": -3.0, "bc": -1.0, "abc": -9.0}
    assert Unigram(scores, {}, {}).split("abc") == ["a", "bc"]  # -3 against -5 (ab c), -6 (a b c), -9 (abc)
    assert Bpe(scores, {}, {}).split("abcab") == ["abc", "ab"]  # bc at -1, then ab at -3, then abc at -9
    assert Unigram(scores, {}, {}).split("axyb") == ["a", "xy", "b"]  # unknown characters are joined
    # an unused piece is merged and then split again
    assert Bpe({"a": -1.0, "b": -2.0, "c": -3.0, "abc": -4.0}, {}, {"ab": -1.0}).split("abab") == list("abab")
    assert Bpe({"a": -1.0, "b": -2.0, "c": -3.0, "abc": -4.0}, {}, {"ab": -1.0}).split("abc") == ["abc"]


def test_ties_are_decided_by_float32_sums_over_the_full_text(monkeypatch):
    """l + ll and ll + l have equal scores; rounding decides, so the preceding text matters."""
    scores = {"▁": -1.7, "l": -4.1, "ll": -5.3, "a": -3.3}
    cached, uncached = Unigram(scores, {}, {}), Unigram(scores, {}, {})
    monkeypatch.setattr(uncached, "_split_words", lambda text: [text])
    segmentations = [cached.split("▁a" * n + "▁lll") for n in range(60)]
    assert segmentations == [uncached.split("▁a" * n + "▁lll") for n in range(60)]
    assert len({tuple(pieces[-2:]) for pieces in segmentations}) == 2


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(segmentation, "MAX_WORDS", 3)
    unigram = Unigram({"a": -1.0, "b": -2.0, "▁": -3.0}, {}, {})
    for word in ("▁a", "▁b", "▁aa", "▁bb", "▁ab"):
        unigram.split(word)
    assert set(unigram._cache) == {"▁bb", "▁ab"}


def test_spans_are_positions_in_the_text_before_normalization(tmp_path):
    path = tmp_path / "model.spm"
    path.write_bytes(sentencepiece_model("source"))
    from sentencepiece import sentencepiece_model_pb2

    file = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    normalizer = TextNormalizer(CharacterMap(file.normalizer_spec.precompiled_charsmap))
    text, spans = normalizer.with_spans("  ﬁx e\u0301")
    assert text == "▁fix▁é"
    assert spans == [(0, 0), (2, 3), (2, 3), (3, 4), (4, 5), (5, 7)]
    assert TextNormalizer(CharacterMap(b""))(" a \ud800") == "▁a▁\ufffd"
