"""Tagging metrics: entity-level precision, recall and F1, as in `conlleval` and seqeval.

A span is correct if its first word, last word and type are correct. Tags are read as in `conlleval` (see
`data.tag_schemes`), so ill-formed sequences are scored too, and the schemes of both sides may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.data.tag_schemes import Span, spans
from regard.errors import DataError


@dataclass(frozen=True)
class SpanScore:
    """Numbers of gold spans, predicted spans and correct spans."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Correct / predicted; 0 without predictions."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Correct / gold; 0 without gold spans."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.correct / (self.gold + self.predicted) if self.gold + self.predicted else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **vars(self)}


@dataclass(frozen=True)
class TaggingScores:
    """Scores by type, over all spans (micro) and averaged over types (macro)."""

    types: dict[str, SpanScore]
    words: int = 0
    correct_words: int = 0  # words with the correct tag, O included
    # micro scores with user mentions treated differently, see VIEWS
    views: dict[str, SpanScore] = field(default_factory=dict)

    @property
    def micro(self) -> SpanScore:
        """All types together."""
        scores = self.types.values()
        return SpanScore(
            *(sum(getattr(s, name) for s in scores) for name in ("gold", "predicted", "correct"))
        )

    @property
    def precision(self) -> float:
        return self.micro.precision

    @property
    def recall(self) -> float:
        return self.micro.recall

    @property
    def f1(self) -> float:
        """Micro F1, the metric to report."""
        return self.micro.f1

    @property
    def macro(self) -> dict[str, float]:
        """Unweighted means over the types."""
        count = max(1, len(self.types))
        names = ("precision", "recall", "f1")
        return {name: sum(getattr(score, name) for score in self.types.values()) / count for name in names}

    @property
    def accuracy(self) -> float:
        """Share of words with the correct tag. High even for a poor tagger, because most words are O."""
        return self.correct_words / self.words if self.words else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        result: dict[str, Any] = {
            "micro": self.micro.as_dict(),
            "macro": self.macro,
            "accuracy": self.accuracy,
        }
        for name, scores in (("types", self.types), ("views", self.views)):
            if scores:
                result[name] = {key: score.as_dict() for key, score in scores.items()}
        return result

    def __str__(self) -> str:
        """A table with one line per type, then the averages."""
        width = max(map(len, ("all (micro)", *self.types, *self.views)))
        line = lambda name, p, r, f, *n: "  ".join(  # noqa: E731
            [f"{name:{width}}", *(f"{100 * x:9.2f}" for x in (p, r, f)), *(f"{x:6d}" for x in n)]
        )
        rows = ["  ".join([" " * width, "precision", "   recall", "       F1", "  gold", "  pred"])]
        counted = [*sorted(self.types.items()), ("all (micro)", self.micro), *self.views.items()]
        rows += [line(name, s.precision, s.recall, s.f1, s.gold, s.predicted) for name, s in counted]
        rows.insert(len(rows) - len(self.views), line("macro mean", *self.macro.values()))
        return "\n".join(rows)


Tags = Sequence[Sequence[str]]
View = Callable[[Sequence[str], Sequence[Span]], Iterable[Span]]


def tagging_scores(
    gold: Tags, predicted: Tags, words: Sequence[Sequence[str]] | None = None
) -> TaggingScores:
    """Score predicted tags.

    Args:
        gold: the correct tags of each sentence.
        predicted: the predicted tags of each sentence.
        words: the words of each sentence; with user mentions ("@ name") among them, the result has `views`.
    """
    if len(gold) != len(predicted):
        raise DataError(
            f"{len(gold)} gold sentences but {len(predicted)} predicted ones; give the same sentences"
        )
    wrong = next((i for i, (a, b) in enumerate(zip(gold, predicted, strict=True)) if len(a) != len(b)), None)
    if wrong is not None:
        raise DataError(
            f"sentence {wrong + 1} has {len(gold[wrong])} gold tags and {len(predicted[wrong])} predicted "
            "tags; give one per word"
        )
    pairs = [(spans(a), spans(b)) for a, b in zip(gold, predicted, strict=True)]
    correct_words = sum(
        x == y for a, b in zip(gold, predicted, strict=True) for x, y in zip(a, b, strict=True)
    )
    views = {}
    if words is not None and any(
        join_mentions(text, a) != a for text, (a, _) in zip(words, pairs, strict=True)
    ):
        for name, view in VIEWS.items():
            viewed = [(view(text, a), view(text, b)) for text, (a, b) in zip(words, pairs, strict=True)]
            views[name] = TaggingScores(_count_spans(viewed)).micro
    return TaggingScores(_count_spans(pairs), sum(map(len, gold)), correct_words, views)


def _count_spans(pairs: Iterable[tuple[Iterable[Span], Iterable[Span]]]) -> dict[str, SpanScore]:
    counts: dict[str, Counter[str]] = {}
    for gold, predicted in pairs:
        both = set(gold) & set(predicted)
        for name, group in (("gold", gold), ("predicted", predicted), ("correct", both)):
            for span in group:
                counts.setdefault(span.type, Counter())[name] += 1
    return {kind: SpanScore(c["gold"], c["predicted"], c["correct"]) for kind, c in sorted(counts.items())}


# User mentions, "@ name", which some corpora tag as two spans.

MENTION = "@"


def join_mentions(words: Sequence[str], spans: Sequence[Span]) -> list[Span]:
    """Merge "@" and the following name into one span if both have the same type."""
    merged: list[Span] = []
    for span in spans:
        before = merged[-1] if merged else None
        is_mention = (
            before is not None
            and words[before.start : before.stop] == [MENTION]
            and (before.stop, before.type) == (span.start, span.type)
        )
        if is_mention:
            merged[-1] = Span(merged[-1].start, span.stop, span.type)
        else:
            merged.append(span)
    return merged


def drop_mentions(words: Sequence[str], spans: Sequence[Span]) -> list[Span]:
    """Drop spans that start at or directly after "@"."""
    return [span for span in spans if MENTION not in words[max(0, span.start - 1) : span.start + 1]]


VIEWS: dict[str, View] = {'"@ name" as one': join_mentions, "without mentions": drop_mentions}
