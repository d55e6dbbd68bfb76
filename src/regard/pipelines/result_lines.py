"""What came of one line, and the forms in which it is written down."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from regard.pipelines.input import Row, parsed
from regard.pipelines.long_lines import joined
from regard.pipelines.sentence_split import Piece
from regard.pipelines.table import one_line, table_line
from regard.pipelines.token_words import WordAlignment
from regard.pipelines.translate import Translation
from regard.pipelines.word_links import Links, pharaoh, strongest

_BREAKS = re.compile(
    r"[\r\n]+"
)  # a model may write them, or a field of JSON hold them, and a line has to stay one


@dataclass
class Result:
    """A line (counted from 0), the parts it was cut into, and their translations; parts is empty for an empty line."""

    number: int
    row: Row
    pieces: Sequence[Piece] = ()
    parts: Sequence[Translation] = ()
    alignments: Sequence[WordAlignment] = ()  # of each part, on request

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
        for alignment in self.alignments:
            links |= {(s + source, t + target) for s, t in strongest(alignment.weights)}
            source += len(alignment.source_words)
            target += len(alignment.target_words)
        return frozenset(links)


class OutputFormat(Protocol):
    """How an answer is written; always whole lines."""

    def begin(self) -> str:
        """What stands before the first answer."""
        ...

    def write(self, answer: Result) -> str: ...


class _Lines:
    """A form with nothing before the first answer."""

    def begin(self) -> str:
        return ""


@dataclass(frozen=True)
class Text(_Lines):
    """The translation, one a line; with `align` the word alignment after a tab."""

    align: bool = False

    def write(self, answer: Result) -> str:
        return f"{one_line(answer.line)}\t{pharaoh(answer.links)}\n" if self.align else f"{answer.line}\n"


@dataclass(frozen=True)
class Nbest(_Lines):
    """`line ||| text ||| score`, lines counted from 0, as Moses wrote it."""

    def write(self, answer: Result) -> str:
        return "".join(
            f"{answer.number} ||| {_BREAKS.sub(' ', text)} ||| {score:.4f}\n"
            for text, score in answer.nbest()
        )


@dataclass(frozen=True)
class Table:
    """The cells of the line as it came, and the translation as one more column; with tabs, or as .csv."""

    split: Callable[[Row], list[str]]
    align: bool = False
    commas: bool = False
    header: tuple[str, ...] = ()  # the names of the columns, where they have some

    def begin(self) -> str:
        names = [*self.header, "translation", *["alignment"] * self.align]
        return table_line(names, self.commas) if self.header else ""

    def write(self, answer: Result) -> str:
        links = [pharaoh(answer.links)] if self.align else []
        return table_line([*self.split(answer.row), answer.line, *links], self.commas)


@dataclass(frozen=True)
class Json(_Lines):
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
class Alignment(_Lines):
    """The word alignment alone, for a file beside."""

    def write(self, answer: Result) -> str:
        return f"{pharaoh(answer.links)}\n"
