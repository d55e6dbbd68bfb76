"""How many entities were found: precision, recall and F1 of whole spans, by type and over all; what `conlleval` and seqeval give.

A span counts when its first word, its last word and its type are right. Tags are read as `conlleval` reads them (see
`data.schemes`), so ill-formed ones are scored too, and gold and answers may be in different schemes.
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
    """Spans of the gold, spans that were found, and those that are in both."""

    gold: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """Of what was found, the share that is right; 0 where nothing was."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Of what was to be found, the share that was; 0 where there was nothing."""
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        return 2 * self.right / (self.gold + self.found) if self.gold + self.found else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **vars(self)}


@dataclass(frozen=True)
class TaggingScores:
    """Counts by type; over all (micro) and as the mean of the types (macro)."""

    types: dict[str, SpanScore]
    words: int = 0
    right_words: int = 0  # whose tag is right, O among them
    views: dict[str, SpanScore] = field(default_factory=dict)  # other ways to count, by name

    @property
    def micro(self) -> SpanScore:
        """All types together."""
        each = self.types.values()
        return SpanScore(sum(s.gold for s in each), sum(s.found for s in each), sum(s.right for s in each))

    @property
    def precision(self) -> float:
        return self.micro.precision

    @property
    def recall(self) -> float:
        return self.micro.recall

    @property
    def f1(self) -> float:
        """The figure to quote: micro F1."""
        return self.micro.f1

    @property
    def macro(self) -> dict[str, float]:
        """The means over the types, every type alike."""
        count = max(1, len(self.types))
        names = ("precision", "recall", "f1")
        return {name: sum(getattr(score, name) for score in self.types.values()) / count for name in names}

    @property
    def accuracy(self) -> float:
        """Words with the right tag; nearly all are O, so this says little."""
        return self.right_words / self.words if self.words else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        parts = {"types": self.types, "views": self.views}
        return {
            "micro": self.micro.as_dict(), "macro": self.macro, "accuracy": self.accuracy,
            **{name: {key: score.as_dict() for key, score in part.items()} for name, part in parts.items() if part},
        }  # fmt: skip

    def __str__(self) -> str:
        """A table: a type a line, then the means."""
        wide = max(map(len, ("all (micro)", *self.types, *self.views)))
        line = lambda name, p, r, f, *n: "  ".join(  # noqa: E731
            [f"{name:{wide}}", *(f"{100 * x:9.2f}" for x in (p, r, f)), *(f"{x:6d}" for x in n)]
        )
        rows = ["  ".join([" " * wide, "precision", "   recall", "       F1", "  gold", " found"])]
        counted = [*sorted(self.types.items()), ("all (micro)", self.micro), *self.views.items()]
        rows += [line(name, s.precision, s.recall, s.f1, s.gold, s.found) for name, s in counted]
        rows.insert(len(rows) - len(self.views), line("macro mean", *self.macro.values()))
        return "\n".join(rows)


Tags = Sequence[Sequence[str]]
View = Callable[[Sequence[str], Sequence[Span]], Iterable[Span]]


def tagging_scores(gold: Tags, found: Tags, words: Sequence[Sequence[str]] | None = None) -> TaggingScores:
    """Score tags against gold, sentence by sentence; with the words, in two more ways where mentions, "@ name", are two spans."""
    if len(gold) != len(found):
        raise DataError(
            f"{len(gold)} sentences of gold and {len(found)} that were tagged; they have to be the same"
        )
    wrong = next((i for i, (a, b) in enumerate(zip(gold, found, strict=True)) if len(a) != len(b)), None)
    if wrong is not None:
        raise DataError(
            f"sentence {wrong + 1} has {len(gold[wrong])} gold tags and {len(found[wrong])} answers; each word has one"
        )
    pairs = [(spans(a), spans(b)) for a, b in zip(gold, found, strict=True)]
    right_words = sum(x == y for a, b in zip(gold, found, strict=True) for x, y in zip(a, b, strict=True))
    views = {}
    if words is not None and any(join_mentions(text, a) != a for text, (a, _) in zip(words, pairs, strict=True)):
        for name, view in VIEWS.items():
            seen = [(view(text, a), view(text, b)) for text, (a, b) in zip(words, pairs, strict=True)]
            views[name] = TaggingScores(_counted(seen)).micro
    return TaggingScores(_counted(pairs), sum(map(len, gold)), right_words, views)


def _counted(pairs: Iterable[tuple[Iterable[Span], Iterable[Span]]]) -> dict[str, SpanScore]:
    counts: dict[str, Counter[str]] = {}
    for gold, found in pairs:
        both = set(gold) & set(found)
        for name, part in (("gold", gold), ("found", found), ("right", both)):
            for span in part:
                counts.setdefault(span.type, Counter())[name] += 1
    return {kind: SpanScore(c["gold"], c["found"], c["right"]) for kind, c in sorted(counts.items())}


# — user mentions, "@ name", that a corpus writes as two words and tags as two spans —

MENTION = "@"


def join_mentions(words: Sequence[str], found: Sequence[Span]) -> list[Span]:
    """ "@" and the name behind it as one span where both are spans of one type."""
    kept: list[Span] = []
    for span in found:
        before = kept[-1] if kept else None
        at = (
            before is not None
            and words[before.start : before.stop] == [MENTION]
            and before[1:] == (span.start, span.type)
        )
        if at:
            kept[-1] = Span(kept[-1].start, span.stop, span.type)
        else:
            kept.append(span)
    return kept


def drop_mentions(words: Sequence[str], found: Sequence[Span]) -> list[Span]:
    """No span that begins with "@" or right behind it."""
    return [span for span in found if MENTION not in words[max(0, span.start - 1) : span.start + 1]]


VIEWS: dict[str, View] = {'"@ name" as one': join_mentions, "without mentions": drop_mentions}
