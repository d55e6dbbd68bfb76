"""What came of one line, and the forms in which it is written down."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from regard.pipelines.align import Links, pharaoh, strongest
from regard.pipelines.input import Row, parsed
from regard.pipelines.long_lines import joined
from regard.pipelines.sentence_split import Piece
from regard.pipelines.translate import Translation

_BREAKS = re.compile(
    r"[\r\n]+"
)  # a model may write them, or a field of JSON hold them, and a line has to stay one
_CELL = re.compile(r"[\r\n\t]+")


@dataclass(frozen=True)
class Look:
    """Which words of a part were looked at: weights (target words, source words), and the words."""

    weights: Tensor
    source: list[str]
    target: list[str]


@dataclass
class Result:
    """A line (counted from 0), the parts it was cut into, and their translations; parts is empty for an empty line."""

    number: int
    row: Row
    pieces: Sequence[Piece] = ()
    parts: Sequence[Translation] = ()
    looks: Sequence[Look] = ()  # of each part, where asked for

    @property
    def line(self) -> str:
        """The best translation, as one line."""
        return _BREAKS.sub(" ", self.nbest()[0][0])

    def nbest(self) -> list[tuple[str, float]]:
        """The best translations with their scores, of a line in parts the mean of theirs."""
        found = [
            (text, sum(each.score for each in chosen) / len(chosen))
            for text, chosen in joined(self.pieces, self.parts)
        ]
        return found or [("", 0.0)]

    @property
    def links(self) -> Links:
        """Each target word and the source word it looks at most; a part's words are counted on from those of the parts before."""
        links: set[tuple[int, int]] = set()
        source = target = 0
        for look in self.looks:
            links |= {(s + source, t + target) for s, t in strongest(look.weights)}
            source, target = source + len(look.source), target + len(look.target)
        return frozenset(links)


class OutputFormat(Protocol):
    """How an answer is written; always whole lines."""

    def write(self, answer: Result) -> str: ...


@dataclass(frozen=True)
class Text:
    """The translation, one a line; with `align` the word alignment after a tab."""

    align: bool = False

    def write(self, answer: Result) -> str:
        return (
            f"{_CELL.sub(' ', answer.line)}\t{pharaoh(answer.links)}\n" if self.align else f"{answer.line}\n"
        )


@dataclass(frozen=True)
class Nbest:
    """`line ||| text ||| score`, lines counted from 0, as Moses wrote it."""

    def write(self, answer: Result) -> str:
        return "".join(
            f"{answer.number} ||| {_BREAKS.sub(' ', text)} ||| {score:.4f}\n"
            for text, score in answer.nbest()
        )


@dataclass(frozen=True)
class Table:
    """The line as it came and the translation as one more column."""

    align: bool = False

    def write(self, answer: Result) -> str:
        more = f"\t{pharaoh(answer.links)}" if self.align else ""
        return f"{answer.row.line}\t{_CELL.sub(' ', answer.line)}{more}\n"


@dataclass(frozen=True)
class Json:
    """One object a line: the one that came, or the source; with the translation and its score, and what else was asked for."""

    objects: bool = False  # lines are objects already
    nbest: bool = False
    align: bool = False

    def write(self, answer: Result) -> str:
        best = answer.nbest()
        given: dict[str, Any] = {"source": answer.row.text}
        if self.objects:
            given = parsed(answer.row.line) if answer.row.line.strip() else {}
        record = given | {"translation": best[0][0], "score": round(best[0][1], 4)}
        if self.nbest:
            record["nbest"] = [{"text": text, "score": round(score, 4)} for text, score in best]
        if self.align:
            record["alignment"] = pharaoh(answer.links)
        try:
            return json.dumps(record, ensure_ascii=False).encode().decode() + "\n"
        except UnicodeEncodeError:  # half a character, as JSON can spell it
            return json.dumps(record) + "\n"


@dataclass(frozen=True)
class Alignment:
    """The word alignment alone, for a file beside."""

    def write(self, answer: Result) -> str:
        return f"{pharaoh(answer.links)}\n"
