"""Tests of significance.py: sacreBLEU's p-values, the exact binomial test, and systems that do not differ."""

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, _compute_p_value
from scipy.stats import binomtest

from regard.errors import DataError, OptionError
from regard.evaluation import compare_labels, compare_tags, compare_translations, tagging_scores
from regard.evaluation import significance as module
from regard.evaluation.significance import Draws, compare_statistics

WORDS = "a small dog runs over the green grass and two men look at it from far away".split()


def noisy(lines, share, seed):
    """Lines with a share of random word replacements."""
    rng = np.random.default_rng(seed)
    replace = lambda word: rng.choice(WORDS) if rng.random() < share else word  # noqa: E731
    return [" ".join(replace(word) for word in line.split()) for line in lines]


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    references = [" ".join(rng.choice(WORDS, size=rng.integers(5, 14))) for _ in range(70)]
    return references, noisy(references, 0.25, 1), noisy(references, 0.3, 2)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("block", [module.BLOCK, 5000])  # all resamples at once, and in several blocks
def test_p_values_and_scores_equal_those_of_sacrebleu(texts, block, ties, monkeypatch):
    """BLEU and chrF are equal to sacreBLEU's; TER counts edits, so it has ties, which sacreBLEU ignores."""
    monkeypatch.setattr(module, "BLOCK", block)
    if not ties:
        monkeypatch.setattr(module, "_p_value", _compute_p_value)
    references, first, second = texts
    comparison = compare_translations(first, second, references, draws=Draws(300, 400))
    metrics = {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}
    systems = [("second", second), ("first", first)]
    for test, samples, name in (("bs", 300, "p_bootstrap"), ("ar", 400, "p_randomization")):
        _, expected = PairedTest(systems, metrics, [references], test, samples)()
        for metric, theirs in zip(comparison.metrics, ("BLEU", "chrF2", "TER"), strict=True):
            p = getattr(metric, name)
            assert p == pytest.approx(expected[theirs][1].p_value, abs=1e-12) or (
                ties and theirs == "TER" and p > expected[theirs][1].p_value
            )
            assert metric.score == pytest.approx(expected[theirs][1].score)
            assert metric.other == pytest.approx(expected[theirs][0].score)
    assert [m.metric for m in comparison.metrics] == ["BLEU", "chrF", "TER"]
    assert comparison.metrics[0].signature.startswith("nrefs:1|case:mixed")


def test_the_interval_contains_the_difference_and_shrinks_with_more_sentences(texts):
    references, first, second = texts
    few, many = (
        compare_translations(first[:n], second[:n], references[:n], metrics=["BLEU"], draws=Draws(400, 10))
        for n in (12, 70)
    )
    for comparison in (few, many):
        (bleu,) = comparison.metrics
        assert bleu.low < bleu.difference < bleu.high
    assert many.metrics[0].high - many.metrics[0].low < few.metrics[0].high - few.metrics[0].low


@pytest.mark.parametrize(("better", "worse"), [(9, 1), (6, 5), (2, 0), (20, 4)])
def test_randomisation_of_accuracy_is_the_exact_sign_test(better, worse):
    """Swapping the outputs of the texts on which one system is right is a sign test (exact McNemar test)."""
    gold = ["yes"] * 40
    first = ["yes"] * better + ["no"] * worse + ["yes"] * (40 - better - worse)
    second = ["no"] * better + ["yes"] * worse + ["yes"] * (40 - better - worse)
    (accuracy,) = compare_labels(gold, first, second, draws=Draws(trials=20000)).metrics
    exact = binomtest(better, better + worse).pvalue
    assert accuracy.p_randomization == pytest.approx(exact, abs=0.015)
    assert accuracy.difference == pytest.approx(100 * (better - worse) / 40)


def test_equal_systems_do_not_differ(texts):
    references, first, _ = texts
    same = compare_translations(first, first, references, metrics=["BLEU"], draws=Draws(50, 50))
    (bleu,) = same.metrics
    assert (bleu.difference, bleu.low, bleu.high, bleu.p_bootstrap, bleu.p_randomization) == (0, 0, 0, 1, 1)
    assert same.differing == 0 and "significant by both tests (p < 0.05): none" in str(same)


def test_spans_of_taggers_are_compared_by_f1():
    rng = np.random.default_rng(3)
    gold = [list(rng.choice(["O", "B-a", "I-a", "B-b"], size=8)) for _ in range(60)]
    corrupt = lambda share: [[t if rng.random() > share else "O" for t in tags] for tags in gold]  # noqa: E731
    first, second = corrupt(0.05), corrupt(0.4)
    (f1,) = compare_tags(gold, first, second, draws=Draws(200, 400)).metrics
    assert f1.score == pytest.approx(100 * tagging_scores(gold, first).f1)
    assert f1.other == pytest.approx(100 * tagging_scores(gold, second).f1)
    assert f1.significant and f1.low > 0


def test_the_false_alarm_rate_is_about_the_level():
    """Two systems with the same accuracy: p < 0.05 in about 5 of 100 comparisons."""
    rng, alarms = np.random.default_rng(4), 0
    for _ in range(200):
        first, second = (rng.integers(2, size=(60, 1)).astype(float) for _ in range(2))
        result = compare_statistics("mean", first, second, lambda s: float(s[0]), draws=Draws(1, 200))
        alarms += result.p_randomization < 0.05
    assert alarms <= 22  # 10 expected; more than 22 has a probability of 2 in 10 000


def test_bad_input_is_an_error_of_one_sentence(texts):
    references, first, second = texts
    with pytest.raises(DataError, match="got 70 and 69 lines"):
        compare_translations(first, second[:-1], references)
    with pytest.raises(OptionError, match="among BLEU, chrF, TER, got 'ROUGE'"):
        compare_translations(first, second, references, metrics=["ROUGE"])
    with pytest.raises(OptionError, match="trials must be an integer of at least 1, got 0"):
        Draws(trials=0)
    with pytest.raises(DataError, match="sentence 1 has 1 gold tags and 2 predicted"):
        compare_tags([["O"]], [["O"]], [["O", "O"]])
