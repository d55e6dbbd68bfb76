"""Is the difference of two systems significant? Paired bootstrap and approximate randomisation.

Both tests work on statistics per sentence whose sums give the score (n-gram counts for BLEU, a 0 or 1 for
accuracy). With the same seed they give the p-values of `sacrebleu.significance` (Koehn 2004; Riezler and
Maxwell 2005); a test compares them. There is one deliberate difference: a tie counts as "at least as large".
sacreBLEU does not count ties, so two systems with equal outputs would get the smallest p-value there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.arguments import quoted
from regard.data.tag_schemes import spans
from regard.errors import DataError, OptionError
from regard.evaluation.bleu import bleu_metric, reference_documents

LEVEL = 0.05
BLOCK = 1 << 24  # draws at a time, to bound the memory
Score = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Draws:
    """Bootstrap resamples, randomisation trials and the seed of both; the defaults are sacreBLEU's."""

    resamples: int = 1000
    trials: int = 10000
    seed: int = 12345

    def __post_init__(self) -> None:
        for name, least in (("resamples", 1), ("trials", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name} must be an integer of at least {least}, got {quoted(value)}")


DEFAULT_DRAWS = Draws()


@dataclass(frozen=True)
class MetricComparison:
    """One metric of two systems, in per cent, with two p-values for "the systems are equally good".

    `difference` is `score` − `other`; `low` and `high` bound its 95 % confidence interval (bootstrap).
    """

    metric: str
    score: float
    other: float
    low: float
    high: float
    p_bootstrap: float
    p_randomization: float
    signature: str = ""

    @property
    def difference(self) -> float:
        return self.score - self.other

    @property
    def significant(self) -> bool:
        """Both p-values are below 0.05."""
        return max(self.p_bootstrap, self.p_randomization) < LEVEL


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same sentences; `differing` counts the sentences with different outputs."""

    metrics: tuple[MetricComparison, ...]
    sentences: int
    differing: int
    draws: Draws = DEFAULT_DRAWS
    name: str = "other"

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        rows = [asdict(m) | {"difference": m.difference, "significant": m.significant} for m in self.metrics]
        return asdict(self) | {"metrics": rows}

    def __str__(self) -> str:
        """A table with one line per metric, and what the tests are."""
        width = max(len("accuracy"), *(len(m.metric) for m in self.metrics))
        head = f"{'':{width}}  {'score':>7} {'other':>7} {'difference':>10}  {'95 % interval':^16}"
        rows = [
            f"compared with {self.name}: {self.differing} of {self.sentences} outputs differ",
            f"{head}  {'p bootstrap':>11}  {'p randomisation':>15}",
        ]
        for m in self.metrics:
            interval = f"[{m.low:+.2f}, {m.high:+.2f}]"
            rows.append(
                f"{m.metric:{width}}  {m.score:7.2f} {m.other:7.2f} {m.difference:+10.2f}  {interval:^16}"
                f"  {m.p_bootstrap:11.4f}  {m.p_randomization:15.4f}"
            )
        named = [m.metric for m in self.metrics if m.significant]
        verdict = f"significant by both tests (p < {LEVEL}): {', '.join(named) if named else 'none'}"
        draws = self.draws
        tests = (
            f"{draws.resamples} bootstrap resamples, {draws.trials} randomisation trials, seed {draws.seed}"
        )
        return "\n".join([*rows, verdict, tests])


def compare_statistics(
    metric: str,
    statistics: np.ndarray,
    other: np.ndarray,
    score: Score,
    *,
    draws: Draws = DEFAULT_DRAWS,
    signature: str = "",
) -> MetricComparison:
    """Compare two systems by statistics per sentence, (sentences, numbers); `score` maps sums to a score."""
    if statistics.shape != other.shape or statistics.ndim != 2 or not len(statistics):
        raise DataError(
            f"the statistics must be two (sentences, numbers) arrays of one shape, got "
            f"{statistics.shape} and {other.shape}"
        )
    first, second = score(statistics.sum(0)), score(other.sum(0))
    real = abs(first - second)
    drawn = np.concatenate(list(_bootstrap_differences(statistics, other, score, draws)))
    shuffled = np.concatenate(list(_randomized_differences(statistics, other, score, draws)))
    low, high = _interval(drawn)
    sizes = np.abs(drawn)
    return MetricComparison(
        metric,
        first,
        second,
        low,
        high,
        _p_value(sizes - sizes.mean(), real),
        _p_value(np.abs(shuffled), real),
        signature,
    )


def _bootstrap_differences(
    first: np.ndarray, second: np.ndarray, score: Score, draws: Draws
) -> Iterator[np.ndarray]:
    """Differences of the scores on sentences drawn with replacement, the same for both systems."""
    rng, count = np.random.default_rng(draws.seed), len(first)
    for size in _blocks(draws.resamples, count):
        places = rng.choice(count, size=(size, count), replace=True)
        yield np.array([score(first[row].sum(0)) - score(second[row].sum(0)) for row in places])


def _randomized_differences(
    first: np.ndarray, second: np.ndarray, score: Score, draws: Draws
) -> Iterator[np.ndarray]:
    """Differences of the scores after swapping the outputs of each sentence with probability 1/2."""
    rng, total = np.random.default_rng(draws.seed), first.sum(0) + second.sum(0)
    change = first - second
    for size in _blocks(draws.trials, len(first)):
        kept = rng.integers(2, size=(size, len(first)), dtype=bool)
        sums = second.sum(0) + kept.astype(np.float64) @ change  # (size, numbers)
        yield np.array([score(row) - score(total - row) for row in sums])


def _blocks(count: int, sentences: int) -> Iterator[int]:
    """Sizes of blocks of draws. Multiples of 32, so that numpy draws the same bits as in one call."""
    block = max(32, BLOCK // sentences // 32 * 32)
    for start in range(0, count, block):
        yield min(block, count - start)


def _interval(differences: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the sorted values, cut as sacreBLEU's `estimate_ci` does."""
    ordered, cut = np.sort(differences), len(differences) // 40
    return float(ordered[cut]), float(ordered[len(ordered) - cut - 1])


def _p_value(values: np.ndarray, real: float) -> float:
    """Share of values at least as large as the real difference; one is added to both counts, so p > 0."""
    return float((np.sum(values >= real - 1e-9) + 1) / (len(values) + 1))


def compare_translations(
    hypotheses: Sequence[str],
    other: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    metrics: Sequence[str] = ("BLEU", "chrF", "TER"),
    draws: Draws = DEFAULT_DRAWS,
    name: str = "other",
) -> Comparison:
    """Compare two translations of the same lines by BLEU, chrF and TER (lower is better)."""
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    known = {
        "BLEU": lambda: bleu_metric(tokenize, lowercase),
        "chrF": lambda: CHRF(lowercase=lowercase),
        "TER": TER,
    }
    documents = reference_documents(hypotheses, references)
    _check_same_length(hypotheses, other)
    comparisons = []
    for chosen in metrics:
        if chosen not in known:
            raise OptionError(f"metrics must be among {', '.join(known)}, got {quoted(chosen)}")
        scorer: Any = known[chosen]()
        both = [
            np.array(scorer._extract_corpus_statistics(list(lines), documents), dtype=np.float64)
            for lines in (hypotheses, other)
        ]

        def score(sums: np.ndarray, scorer: Any = scorer) -> float:
            return float(scorer._compute_score_from_stats(sums.tolist()).score)

        comparisons.append(
            compare_statistics(
                chosen, both[0], both[1], score, draws=draws, signature=str(scorer.get_signature())
            )
        )
    return _comparison(comparisons, hypotheses, other, draws, name)


def compare_labels(
    gold: Sequence[str],
    predicted: Sequence[str],
    other: Sequence[str],
    *,
    draws: Draws = DEFAULT_DRAWS,
    name: str = "other",
) -> Comparison:
    """Compare the accuracy of two classifiers on the same texts."""
    _check_same_length(gold, predicted)
    _check_same_length(gold, other)
    right = [
        np.array([[label == truth] for label, truth in zip(labels, gold, strict=True)], dtype=np.float64)
        for labels in (predicted, other)
    ]
    result = compare_statistics(
        "accuracy", right[0], right[1], lambda sums: 100 * float(sums[0]) / len(gold), draws=draws
    )
    return _comparison([result], predicted, other, draws, name)


def compare_tags(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    other: Sequence[Sequence[str]],
    *,
    draws: Draws = DEFAULT_DRAWS,
    name: str = "other",
) -> Comparison:
    """Compare two taggers on the same sentences by the F1 of spans."""
    from regard.evaluation.tagging import tagging_scores

    for tags in (predicted, other):
        tagging_scores(gold, tags)  # checks the numbers of sentences and words
    both = [
        np.array([_span_counts(a, b) for a, b in zip(gold, tags, strict=True)], dtype=np.float64)
        for tags in (predicted, other)
    ]
    result = compare_statistics("F1", both[0], both[1], _f1, draws=draws)
    return _comparison([result], predicted, other, draws, name)


def _span_counts(gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int]:
    """Correct spans, and gold plus predicted spans, of a sentence: F1 is 2 × the first / the second."""
    first, second = set(spans(gold)), set(spans(predicted))
    return len(first & second), len(first) + len(second)


def _f1(sums: np.ndarray) -> float:
    return 200 * float(sums[0] / sums[1]) if sums[1] else 0.0


def _comparison(
    comparisons: Sequence[MetricComparison],
    predicted: Sequence[object],
    other: Sequence[object],
    draws: Draws,
    name: str,
) -> Comparison:
    differing = sum(a != b for a, b in zip(predicted, other, strict=True))
    return Comparison(tuple(comparisons), len(predicted), differing, draws, name)


def _check_same_length(first: Sequence[object], second: Sequence[object]) -> None:
    if len(first) != len(second) or not first:
        raise DataError(
            f"two systems are compared on the same sentences, got {len(first)} and {len(second)} lines; give "
            "one output per sentence"
        )
