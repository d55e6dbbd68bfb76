"""The output formats of translations: text, n-best lists, tables, JSON lines, alignments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.pipelines.input import Row, parsed
from regard.pipelines.long_lines import join_hypotheses
from regard.pipelines.output_formats import LINE_ENDS, WithoutHeader, json_line, one_line, table_line
from regard.pipelines.sentence_split import Piece
from regard.pipelines.token_words import WordAlignment
from regard.pipelines.translate import Translation
from regard.pipelines.word_links import Links, pharaoh, strongest


@dataclass
class TranslatedLine:
    """The translation of a line.

    Attributes:
        number: the line number, from 0.
        row: the line.
        pieces: the pieces that were translated one by one; none for an empty line.
        translations: the translation of each piece.
        alignments: the word alignment of each piece, if requested.
    """

    number: int
    row: Row
    pieces: Sequence[Piece] = ()
    translations: Sequence[Translation] = ()
    alignments: Sequence[WordAlignment] = ()

    @property
    def text(self) -> str:
        """The best translation, as one line."""
        return LINE_ENDS.sub(" ", self.nbest()[0][0])

    @property
    def truncated(self) -> bool:
        """True if the maximum length cut off the best translation."""
        return any(not part.hypotheses[0].ended for part in self.translations if part.hypotheses)

    def nbest(self) -> list[tuple[str, float]]:
        """Return the best translations with their scores; the score of a split line is the mean of its
        pieces.
        """
        nbest = [
            (text, sum(h.score for h in hypotheses) / max(1, len(hypotheses)))
            for text, hypotheses in join_hypotheses(self.pieces, self.translations)
        ]
        return nbest or [("", 0.0)]

    @property
    def links(self) -> Links:
        """Each target word with its strongest source word, counted over all pieces."""
        links: set[tuple[int, int]] = set()
        source = target = 0
        for alignment in self.alignments:
            links |= {(s + source, t + target) for s, t in strongest(alignment.weights)}
            source += len(alignment.source_words)
            target += len(alignment.target_words)
        return frozenset(links)


@dataclass(frozen=True)
class TextFormat(WithoutHeader):
    """One translation per line; with `align` the word alignment after a tab."""

    align: bool = False

    def write(self, result: TranslatedLine) -> str:
        return f"{one_line(result.text)}\t{pharaoh(result.links)}\n" if self.align else f"{result.text}\n"


@dataclass(frozen=True)
class NbestFormat(WithoutHeader):
    """`line ||| text ||| score`, lines counted from 0, as Moses writes it."""

    def write(self, result: TranslatedLine) -> str:
        return "".join(
            f"{result.number} ||| {LINE_ENDS.sub(' ', text)} ||| {score:.4f}\n"
            for text, score in result.nbest()
        )


@dataclass(frozen=True)
class TableFormat:
    """The cells of the input, then the translation as the last column; separated by tabs, or CSV."""

    split: Callable[[Row], list[str]]
    align: bool = False
    commas: bool = False
    names: tuple[str, ...] = ()  # column names of the input; empty if it has no header

    def header(self) -> str:
        names = [*self.names, "translation", *["alignment"] * self.align]
        return table_line(names, self.commas) if self.names else ""

    def write(self, result: TranslatedLine) -> str:
        links = [pharaoh(result.links)] if self.align else []
        return table_line([*self.split(result.row), result.text, *links], self.commas)


@dataclass(frozen=True)
class JsonFormat(WithoutHeader):
    """One JSON object per line: the input object, or else the source text, plus translation and score;
    n-best list and alignment on request. `truncated` is set only if the maximum length cut off the text.
    """

    objects: bool = False  # the input lines are JSON objects
    nbest: bool = False
    align: bool = False

    def write(self, result: TranslatedLine) -> str:
        nbest = result.nbest()
        fields: dict[str, Any] = {"source": result.row.text}
        if self.objects:
            fields = parsed(result.row.line) if result.row.line.strip() else {}
        record = fields | {"translation": nbest[0][0], "score": round(nbest[0][1], 4)}
        if result.truncated:
            record["truncated"] = True
        if self.nbest:
            record["nbest"] = [{"text": text, "score": round(score, 4)} for text, score in nbest]
        if self.align:
            record["alignment"] = pharaoh(result.links)
        return json_line(record)


@dataclass(frozen=True)
class AlignmentFormat(WithoutHeader):
    """Only the word alignment, for a file beside the translations."""

    def write(self, result: TranslatedLine) -> str:
        return f"{pharaoh(result.links)}\n"
