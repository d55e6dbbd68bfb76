"""BPE-dropout: plain encoding at rate 0, lossless at any rate, determined by the seed, right frequencies."""

import json
import random
from collections import Counter

import numpy as np
import pytest

from regard.data.bpe_dropout import BpeDropout
from regard.data.cached_encoder import CachedEncoder
from regard.data.tokenizer import SPECIALS, Tokenizer
from regard.errors import OptionError

WORDS = "lower lowest newer newest wider widest der Hunde Katzen 😀😀 naïve e\u0301e\u0301 2024 ... x".split(
    " "
)


def corpus():
    draw = random.Random(3)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 10))) for _ in range(500)]


def words_of(tokenizer, texts):
    encoded = CachedEncoder(tokenizer).encode(texts)
    return encoded.tokens, encoded.pieces


def sampled(tokenizer, texts, rate, count=1, seed=0):
    tokens, pieces = words_of(tokenizer, texts)
    return list(BpeDropout(tokenizer, rate).variants(tokens, pieces, count, np.random.default_rng(seed)))


@pytest.fixture(scope="module", params=["bpe", "byte-bpe"])
def tokenizer(request):
    return Tokenizer.train(corpus(), request.param, 400)


def test_rate_0_is_the_plain_encoding(tokenizer):
    tokens, pieces = words_of(tokenizer, corpus())
    for result, lengths in sampled(tokenizer, corpus(), 0.0, 3):
        assert np.array_equal(result, tokens)
        assert np.array_equal(lengths, pieces)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.99])
def test_the_text_is_the_same_at_any_rate(tokenizer, rate):
    for text in corpus()[:50]:
        for result, _ in sampled(tokenizer, [text], rate, 4, seed=5):
            assert tokenizer.decode(result) == text


def test_more_dropout_gives_more_tokens(tokenizer):
    sizes = [len(sampled(tokenizer, corpus(), rate)[0][0]) for rate in (0.0, 0.1, 0.3, 0.7)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 4


def test_the_seed_determines_the_encoding(tokenizer):
    one, again, other = (sampled(tokenizer, corpus(), 0.2, 2, seed) for seed in (1, 1, 2))
    assert all(
        np.array_equal(a, b) for x, y in zip(one, again, strict=True) for a, b in zip(x, y, strict=True)
    )
    assert not np.array_equal(one[0][0], other[0][0])
    assert not np.array_equal(one[0][0], one[1][0])  # variants differ


def hand_made(merges):
    """A tokenizer of the characters a, b, c with the given merges."""
    record = json.loads(Tokenizer.train(["abc"], "bpe", 9).text)
    pieces = [*SPECIALS, " ", "a", "b", "c", *("".join(pair) for pair in merges)]
    record["model"] |= {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges}
    return Tokenizer(json.dumps(record))


def test_each_merge_is_dropped_with_the_given_probability():
    """' ab' with the merges a+b, then space+ab: first ' a b' with p, then ' ab' in two tokens with p."""
    tokenizer = hand_made([["a", "b"], [" ", "ab"]])
    assert tokenizer.tokens(tokenizer.encode("ab")) == ["▁ab"]
    p, trials = 0.3, 4000
    seen = Counter()
    for seed in range(trials // 20):
        for result, _ in sampled(tokenizer, ["ab"], p, 20, seed):
            seen[tuple(tokenizer.tokens(result))] += 1
    # Each call samples 20 times from a pool of 20 encodings, so counts vary more than independent ones.
    expected = {("▁", "a", "b"): p, ("▁", "ab"): (1 - p) * p, ("▁ab",): (1 - p) ** 2}
    assert set(seen) == set(expected)
    for pieces, share in expected.items():
        assert abs(seen[pieces] / trials - share) < 6 * (2 * share * (1 - share) / trials) ** 0.5


def test_the_first_learned_of_the_remaining_merges_is_applied():
    """' abc' with a+b before b+c: b+c happens only when a+b was dropped and b+c was not."""
    tokenizer = hand_made([["a", "b"], ["b", "c"]])
    p, trials = 0.4, 4000
    seen = Counter()
    for seed in range(trials // 20):
        for result, _ in sampled(tokenizer, ["abc"], p, 20, seed):
            seen[tuple(tokenizer.tokens(result))] += 1
    expected = {("▁", "ab", "c"): 1 - p, ("▁", "a", "bc"): p * (1 - p), ("▁", "a", "b", "c"): p * p}
    for pieces, share in expected.items():
        assert abs(seen[pieces] / trials - share) < 6 * (2 * share * (1 - share) / trials) ** 0.5


def test_unknown_characters_stay_unknown():
    tokenizer = hand_made([["a", "b"]])
    plain = tokenizer.encode("abΩab")
    assert sampled(tokenizer, ["abΩab"], 0.0)[0][0].tolist() == plain
    assert Counter(sampled(tokenizer, ["abΩab"], 0.9)[0][0].tolist())[1] == 1


def test_a_very_long_word_is_not_dropped_out():
    tokenizer = hand_made([["a", "b"]])
    result, _ = sampled(tokenizer, ["ab" * 1000], 0.5)[0]
    assert result.tolist() == tokenizer.encode("ab" * 1000)


def test_other_kinds_and_rates_are_refused():
    with pytest.raises(OptionError, match="for the kinds bpe and byte-bpe, got word"):
        BpeDropout(Tokenizer.train(["a b"], "word", 9), 0.1)
    with pytest.raises(OptionError, match="below 1, got 1"):
        BpeDropout(hand_made([]), 1.0)
    assert sampled(hand_made([]), ["abc"], 0.5)[0][0].tolist() == hand_made([]).encode("abc")
