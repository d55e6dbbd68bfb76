"""CoNLL files: one word per line with its tag in another column, and a blank line after each sentence.

Columns are separated by tabs, or by spaces if the file has no tabs. The first word's line determines the
number of columns. -DOCSTART- lines and comments are skipped. A comment is a line that starts with `#` before
the first word of a sentence and has no tag in the tag column, so a hashtag with a tag is a word. Rows are
sentences whose words are joined by spaces; therefore white space inside a word, and an empty word, become
`_`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from regard.data.readers import ROWS, Advance, Block, OneFile, ignore
from regard.data.tag_schemes import Scheme, is_tag, scheme, scheme_of
from regard.data.text_files import BAD, LONG, lines
from regard.errors import DataError, OptionError


@dataclass
class Sentence:
    """The words of a sentence: line numbers from 1, and the columns of each line."""

    numbers: list[int] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    separator: str = "\t"

    def column(self, number: int) -> list[str]:
        """A column, counted from 1; −1 is the last."""
        index = number - 1 if number > 0 else number
        return [row[index] for row in self.rows]

    def words(self, number: int = 1) -> list[str]:
        """The words, none of them empty or with white space."""
        return [one_word(word) for word in self.column(number)]

    def text(self, tags: Sequence[str] | None = None) -> str:
        """The lines of the sentence, with the blank line after it; `tags` become a further column."""
        rows = self.rows if tags is None else [[*row, tag] for row, tag in zip(self.rows, tags, strict=True)]
        return "".join(f"{self.separator.join(row)}\n" for row in rows) + "\n"


def one_word(word: str) -> str:
    """A word without white space, so that words can be joined by spaces."""
    return word if word and not any(map(str.isspace, word)) else "_".join(word.split()) or "_"


class Parser:
    """Parse lines of a CoNLL file into sentences; errors name the line and the column.

    `word` and `tag` are columns counted from 1, negative ones from the end. Without a `tag` column, a line
    that starts with `#` and a space is a comment unless a later cell is a tag.
    """

    def __init__(self, name: str, word: int = 1, tag: int | None = -1) -> None:
        self.name, self.word, self.tag = name, word, tag
        self.separator: str | None = None
        self.width = 0  # columns; known from the first word on

    def sentences(self, lines_of_file: Iterator[str]) -> Iterator[Sentence]:
        """Yield all sentences."""
        sentence = Sentence()
        for number, line in enumerate(lines_of_file, 1):
            if line in (BAD, LONG):
                raise DataError(
                    f"line {number} of {self.name} is {'not UTF-8' if line == BAD else 'too long'}; "
                    "fix or remove it"
                )
            if not line.strip():
                if sentence.rows:
                    yield sentence
                    sentence = Sentence()
            elif not self._is_comment(line, bool(sentence.rows)):
                sentence.rows.append(self._row(line, number))
                sentence.numbers.append(number)
                sentence.separator = self.separator or "\t"
        if sentence.rows:
            yield sentence

    def _is_comment(self, line: str, within: bool) -> bool:
        """True if a line has no word."""
        if line.startswith("-DOCSTART-"):
            return True
        if within or not line.startswith("#"):
            return False
        cells = self._cells(line)
        if self.tag is None:
            return line[1:2] in (" ", "\t") and not any(map(is_tag, cells[1:]))
        index = self.tag - 1 if self.tag > 0 else self.tag
        has_tag_column = self.width in (0, len(cells)) and -len(cells) <= index < len(cells)
        return not (has_tag_column and is_tag(cells[index]) and len(cells) > 1)

    def _cells(self, line: str) -> list[str]:
        separator = self.separator or ("\t" if "\t" in line else " ")
        return line.split("\t") if separator == "\t" else line.split()

    def _row(self, line: str, number: int) -> list[str]:
        cells = self._cells(line)
        if not self.width:
            self.separator = "\t" if "\t" in line else " "
            self.width = len(cells)
            for role, column in (("word", self.word), ("tag", self.tag)):
                if (
                    column is not None
                    and not 0 < (column if column > 0 else self.width + 1 + column) <= self.width
                ):
                    raise DataError(
                        f"line {number} of {self.name} has {self.width} column{'s' * (self.width > 1)} and "
                        f"the {role} should be in column {column}; name the right columns, counted from 1"
                    )
        if len(cells) != self.width:
            problem = (
                f"column {len(cells) + 1} is missing"
                if len(cells) < self.width
                else f"column {self.width + 1} is one too many"
            )
            raise DataError(
                f"line {number} of {self.name} has {len(cells)} column{'s' * (len(cells) > 1)} and the "
                f"lines before have {self.width}, so {problem}; fix the line, or use tabs where words "
                "contain spaces"
            )
        return cells


@dataclass(frozen=True)
class Conll(OneFile):
    """The sentences of a CoNLL file as rows: words joined by spaces, and tags joined by spaces.

    `columns` are those of words and tags, counted from 1, negative ones from the end. A tag sequence that
    breaks the rules of its scheme is an error, or with `repair` is read as `conlleval` reads it. The tags are
    converted to `scheme`, if that is given.
    """

    columns: tuple[int, int] = (1, -1)
    scheme: str | None = None
    repair: bool = False
    paired = True

    def __post_init__(self) -> None:
        if self.scheme is not None:
            scheme(self.scheme)
        for key, column in zip(("source", "target"), self.columns, strict=True):
            if column == 0:
                raise OptionError(f"data.{key} is a column counted from 1, or from the end by −1, got 0")

    def layout(self) -> dict[str, Any]:
        return {
            "layout": "conll",
            "columns": list(self.columns),
            "scheme": self.scheme,
            "repair": self.repair,
        }

    def sentences(self, advance: Advance = ignore) -> Iterator[Sentence]:
        """Yield the sentences of the file."""
        lines_of_file = (line for block in lines(self.path, advance=advance) for line in block)
        return Parser(str(self.path), *self.columns).sentences(lines_of_file)

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        sentences = self.sentences(advance)
        while rows := [self._pair(sentence) for sentence in islice(sentences, ROWS)]:
            yield tuple(list(column) for column in zip(*rows, strict=True))

    def _pair(self, sentence: Sentence) -> tuple[str, str]:
        word, tag = self.columns
        tags = sentence.column(tag)
        problems = [p for p in self.file_scheme.problems(tags) if not (self.repair and is_tag(tags[p.place]))]
        if problems:
            raise DataError(self._message(sentence, *problems[0]))
        output_scheme = self.file_scheme if self.scheme is None else scheme(self.scheme)
        return " ".join(sentence.words(word)), " ".join(output_scheme.convert(tags))

    def _message(self, sentence: Sentence, place: int, problem: str) -> str:
        tag = self.columns[1]
        column = tag if tag > 0 else len(sentence.rows[place]) + 1 + tag
        fix = (
            ""
            if "is not a tag" in problem
            else "; fix it, or set data.repair: true to read such tags as conlleval does"
        )
        return f"line {sentence.numbers[place]}, column {column} of {self.path}: {problem}{fix}"

    @cached_property
    def file_scheme(self) -> Scheme:
        """The tagging scheme of the file, by the prefixes of all tags."""
        tags = {tag for sentence in self.sentences() for tag in sentence.column(self.columns[1])}
        return scheme_of(tag for tag in tags if is_tag(tag))

    def place(self, row: int, column: int) -> str:
        sentence = next(islice(self.sentences(), row, None))
        return f"{self.path} line {sentence.numbers[0]}, column {self.columns[column]}"

    def problems(self) -> Iterator[str]:
        """Yield every tag that breaks the rules, with line and column."""
        for sentence in self.sentences():
            for problem in self.file_scheme.problems(sentence.column(self.columns[1])):
                yield self._message(sentence, *problem).partition("; fix it")[0]
