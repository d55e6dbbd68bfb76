"""Detect the layout of a table from its first rows: separator, header, and which columns have which role.

A column is named by the header or counted from 1. Columns that the user does not name are guessed, and
`ChosenColumns.note` reports what was assumed.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from regard.data.text_files import check_file, is_unreadable, lines, suffix
from regard.errors import DataError

MAX_LINES = 1000  # read to detect the layout
SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "pipes"}
MIN_ROWS = 4  # with fewer rows, nothing is guessed from the cells
LANGUAGES = frozenset(
    (  # noqa: SIM905 - a list would have a line for each language
        "ar bg bn ca cs da de el en es et eu fa fi fr ga gl he hi hr hu hy id is it ja ka ko lt lv mk ms mt "
        "nl no pl pt ro ru sk sl sq sr sv ta te th tl tr uk ur vi zh"
    ).split()
)
LANGUAGE_NAMES = frozenset(
    (  # noqa: SIM905 - a list would have a line for each language
        "arabic bulgarian bengali catalan czech danish german greek english spanish estonian basque persian "
        "finnish french irish galician hebrew hindi croatian hungarian armenian indonesian italian japanese "
        "korean lithuanian latvian macedonian marathi malay maltese dutch norwegian polish portuguese "
        "romanian russian slovak slovenian albanian serbian swedish tamil telugu thai turkish ukrainian urdu "
        "vietnamese chinese"
    ).split()
)
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")


@dataclass(frozen=True)
class ColumnRoles:
    """The roles of two columns, and the usual names of each in headers."""

    roles: tuple[str, str]
    names: tuple[tuple[str, ...], tuple[str, ...]]


LABELLED = ColumnRoles(
    ("text", "label"),
    (
        (
            "text",
            "sentence",
            "review",
            "content",
            "message",
            "question",
            "comment",
            "tweet",
            "document",
            "body",
            "utterance",
        ),
        (
            "label_text",
            "label_name",
            "class_name",
            "label",
            "labels",
            "class",
            "category",
            "sentiment",
            "intent",
            "stars",
            "rating",
            "polarity",
            "target",
            "gold",
            "y",
        ),
    ),
)
PAIRS = ColumnRoles(
    ("source", "target"),
    (
        ("source", "src", "text", "sentence", "original", "input"),
        ("target", "tgt", "trg", "translation", "translated", "reference", "output"),
    ),
)


@dataclass(frozen=True)
class TableSample:
    """The first rows of a table, split into cells."""

    path: Path
    separator: str
    rows: list[list[str]]

    @cached_property
    def width(self) -> int:
        """The most frequent number of columns."""
        return Counter(map(len, self.rows)).most_common(1)[0][0]

    def column(self, number: int, header: bool) -> list[str]:
        """The cells of a column, counted from 1, without the header."""
        return [row[number - 1].strip() if number <= len(row) else "" for row in self.rows[header:]]


@dataclass(frozen=True)
class ChosenColumns:
    """Two columns, counted from 1, and a note on what was assumed."""

    columns: tuple[int, int]
    header: bool
    note: str


def detect_table(path: Path, *, one_column: bool = False) -> TableSample:
    """Read the first lines of a table and find its separator: that of the extension, or the one most lines
    agree on.

    A table of one column is refused unless `one_column` is True.
    """
    check_file(path)
    if suffix(path) == "json":
        raise DataError(
            f"{path} is JSON and not a table; write one object per line, and end its name in .jsonl"
        )
    first = [
        line
        for line in islice(chain.from_iterable(lines(path)), MAX_LINES)
        if line.strip() and not is_unreadable(line)
    ]
    usual = {"tsv": "\t", "csv": ","}.get(suffix(path), "\t")
    best, agreed = TableSample(path, usual, []), 0.0
    for separator in dict.fromkeys((usual, *SEPARATORS)):
        rows = split(first, separator, quotes=not (suffix(path) == "tsv" and separator == "\t"))
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
        divided = [row for row in rows if len(row) > 1]
        if width < 2 and divided:
            width, count = Counter(map(len, divided)).most_common(1)[0]
        share = count / len(rows) if width > 1 else 0.0
        if (
            sum(cell[:1] == " " for row in divided for cell in row[1:])
            > sum(len(row) - 1 for row in divided) / 2
        ):
            share /= 2  # a space after it: more likely punctuation
        if share > agreed:
            best, agreed = TableSample(path, separator, rows), share
        if separator == usual and share >= 0.9:
            break
    if not agreed and one_column:
        return TableSample(path, usual, split(first, usual, quotes=suffix(path) == "csv") or [[""]])
    if not agreed:
        start = first[0][:40] if first else ""
        raise DataError(
            f"{path} has one column: no line is divided by {', '.join(SEPARATORS.values())} "
            f"(it begins {start!r}); separate the columns by one of them"
        )
    return best


def split(rows_of_text: Sequence[str], separator: str, quotes: bool = True) -> list[list[str]]:
    """Split lines into cells; a quoted cell may contain the separator and line ends."""
    if not quotes:
        return [line.split(separator) for line in rows_of_text]
    rows: list[list[str]] = []
    with suppress(csv.Error):  # a quote that is not closed
        rows += (
            row for row in csv.reader((f"{line}\n" for line in rows_of_text), delimiter=separator) if row
        )
    return rows


def column_number(column: str | int | None) -> int | None:
    """The number of a column, if a number is given; 0 is refused."""
    text = str(column)
    if column is None or not re.fullmatch(r"-?\d+", text):
        return None
    if int(text) < 1:
        raise DataError(
            f"there is no column {column}: columns are counted from 1, so take 1 for the first, 2 for the "
            "second"
        )
    return int(text)


def text_column(sample: TableSample, column: str | None, header: bool = False) -> tuple[int, bool]:
    """The number of the text column, and whether line 1 is a header.

    The column is given by name or number; else it is the one with a usual name in the header, or the only
    one.
    """
    first, number = [cell.strip() for cell in sample.rows[0]], column_number(column)
    header = header or any(_is_header(sample, first, kind) for kind in (LABELLED, PAIRS))
    if number is not None:
        return number, header
    candidates = PAIRS.names[0] + LABELLED.names[0] if column is None else (column,)
    number_by_name = next((match for name in candidates if (match := _find(name, first)) is not None), None)
    if number_by_name is not None:
        return number_by_name, True
    if column is None and sample.width == len(first) == 1:
        return 1, header
    shown = ", ".join(repr(cell[:30]) for cell in first[:8])
    raise DataError(
        f"line 1 of {sample.path} names no column {column or 'text'!r}; "
        f"it has {shown}: give one of them, or a number, as --column"
    )


def choose(
    sample: TableSample, source: str | int | None, target: str | int | None, kind: ColumnRoles
) -> ChosenColumns:
    """The two columns: as given by name or number, else by usual names in the header or by their content."""
    requested, first = (source, target), [cell.strip() for cell in sample.rows[0]]
    numbers = [_number(column, sample) for column in requested]
    names = [
        str(column)
        for column, number in zip(requested, numbers, strict=True)
        if column is not None and number is None
    ]
    numbers_by_name = {name: _find(name, first) for name in names}
    if (
        kind is PAIRS
        and not any(numbers_by_name.values())
        and all(_LANGUAGE.fullmatch(name) for name in names)
    ):
        numbers_by_name = {}  # names of languages, and a table without a header: the first columns
    for name, number in numbers_by_name.items():
        if number is None:
            shown = ", ".join(repr(cell[:30]) for cell in first[:8])
            raise DataError(
                f"{sample.path} line 1 names no column {name!r}; it has {shown}: name two of them, or count "
                "from 1"
            )
    columns = [
        numbers_by_name.get(str(column), number) for column, number in zip(requested, numbers, strict=True)
    ]
    header = bool(numbers_by_name) or _is_header(sample, first, kind)
    chosen = _with_guesses(sample, columns, header, kind, first)
    if kind is LABELLED and not header:
        header = _first_row_differs(sample, *chosen)
    if chosen[0] == chosen[1]:
        raise DataError(
            f"{kind.roles[0]} and {kind.roles[1]} are both column {chosen[0]} of {sample.path}; "
            "name two columns"
        )
    guessed = None in columns
    if kind is LABELLED:
        _refuse_swapped(sample, *chosen, header, guessed)
    return ChosenColumns(chosen, header, _note(sample, chosen, header, kind, first, guessed))


def _number(column: str | int | None, sample: TableSample) -> int | None:
    number = column_number(column)
    if number is not None and number > max(sample.width, len(sample.rows[0])):
        raise DataError(
            f"{sample.path} has {len(sample.rows[0])} columns in line 1 and no column {number}; "
            "columns are counted from 1"
        )
    return number


def _find(name: str, first: list[str]) -> int | None:
    """The number of a column by its name in the header; case matters only if two names differ by it."""
    if name in first:
        return first.index(name) + 1
    lower = [cell.lower() for cell in first]
    return lower.index(name.lower()) + 1 if lower.count(name.lower()) == 1 else None


def _is_header(sample: TableSample, first: list[str], kind: ColumnRoles) -> bool:
    """True if line 1 looks like a header: short, distinct cells, of which one is a usual column name and does
    not occur again in its column. A table of pairs needs two such names, or a name above a column of numbers.
    """
    lower = [cell.lower() for cell in first]
    if len(set(lower)) < len(lower) or not all(
        cell and len(cell) <= 40 and not _NUMBER.fullmatch(cell) for cell in lower
    ):
        return False
    if kind is PAIRS and len((LANGUAGES | LANGUAGE_NAMES).intersection(lower)) > 1:
        return True
    if kind is PAIRS and len(sample.rows) > MIN_ROWS:
        columns = (sample.column(number, True) for number in range(1, len(first) + 1))
        if sample.width > 2 and any(map(_numeric, columns)):
            return True
    usual = set(chain.from_iterable(kind.names))
    hits = [number for number, cell in enumerate(lower, 1) if cell in usual]
    distinct = [number for number in hits if first[number - 1] not in sample.column(number, True)]
    return len(distinct) >= (2 if kind is PAIRS else 1) and max(len(cell.split()) for cell in lower) <= 3


def _with_guesses(
    sample: TableSample, columns: list[int | None], header: bool, kind: ColumnRoles, first: list[str]
) -> tuple[int, int]:
    """The given columns, and guesses for the others."""
    lower = [cell.lower() for cell in first]
    result = list(columns)
    for role, usual in enumerate(kind.names):
        if result[role] is None and header:
            numbers = [lower.index(name) + 1 for name in usual if name in lower]
            result[role] = next((number for number in numbers if number not in result), None)
    for role in (0, 1):
        if result[role] is None:
            free = [number for number in range(1, max(sample.width, 2) + 1) if number not in result]
            if not free:
                raise DataError(
                    f"{sample.path} has no column left for the {kind.roles[role]}; name two columns"
                )
            picked = free[0]
            if kind is LABELLED and len(sample.rows) - header >= MIN_ROWS:
                picked = _text_like(sample, free, header) if role == 0 else _label_like(sample, free, header)
            if kind is PAIRS and len(sample.rows) - header >= MIN_ROWS:
                # A column of numbers, such as ids, only if there are too few others.
                texts = [number for number in free if not _numeric(sample.column(number, header))]
                picked = texts[0] if len(texts) >= result.count(None) else picked
            result[role] = picked
    assert result[0] is not None and result[1] is not None
    return result[0], result[1]


def _text_like(sample: TableSample, free: list[int], header: bool) -> int:
    """The column with the longest cells, most of them different."""
    best = free[0]
    for number in free[1:]:
        old, new = sample.column(best, header), sample.column(number, header)
        longer = _length(new) > 1.5 * _length(old) and len(set(new)) > len(set(old))
        if longer or (_numeric(old) and not _numeric(new)):
            best = number
    return best


def _label_like(sample: TableSample, free: list[int], header: bool) -> int:
    """The column with the fewest distinct values, at least two, that recur."""
    counts = {number: len(set(sample.column(number, header)) - {""}) for number in free}
    fitting = [number for number in free if 2 <= counts[number] <= max(2, (len(sample.rows) - header) // 2)]
    return min(fitting, key=counts.__getitem__, default=free[0])


def _first_row_differs(sample: TableSample, text: int, label: int) -> bool:
    """True if line 1 differs from the rest: a label that never recurs while others do, a shorter text."""
    texts, labels = sample.column(text, True), sample.column(label, True)
    first = [sample.column(number, False)[0] for number in (text, label)]
    if len(labels) < 6 or first[1] in labels or len(set(labels)) > len(labels) // 3 or not first[0]:
        return False
    numeric = _numeric(labels) and not _NUMBER.fullmatch(first[1])
    words = sum(len(cell.split()) for cell in texts) / len(texts)
    return len(first[0].split()) <= 3 and (numeric or words >= 3 * len(first[0].split()))


def _refuse_swapped(sample: TableSample, text: int, label: int, header: bool, guessed: bool) -> None:
    """Raise a DataError if nearly every row has a different label: swapped columns, or no labels."""
    texts, labels = sample.column(text, header), sample.column(label, header)
    rows, distinct_texts, distinct_labels = len(labels), len(set(texts)), len(set(labels))
    if rows < 10 or distinct_labels < 0.9 * rows:
        return
    if distinct_texts <= rows / 3 and _length(labels) > _length(texts):
        raise DataError(
            f"text and label look swapped in {sample.path}: column {label}, taken as the label, has "
            f"{distinct_labels} different values in {rows} rows, and column {text}, taken as the text, has "
            f"{distinct_texts}; set data.source={label} data.target={text}"
        )
    if guessed:
        raise DataError(
            f"no column of {sample.path} looks like labels: column {label} has {distinct_labels} different "
            f"values in {rows} rows; name the columns, data.source for the text and data.target for the label"
        )


def _note(
    sample: TableSample,
    columns: tuple[int, int],
    header: bool,
    kind: ColumnRoles,
    first: list[str],
    guessed: bool,
) -> str:
    """What was assumed, in one line."""
    shown = [
        f"{role} = column {number}" + (f" {first[number - 1]!r}" if header and number <= len(first) else "")
        for role, number in zip(kind.roles, columns, strict=True)
    ]
    is_evident = not guessed or (sample.width == 2 and columns == (1, 2))
    hint = "" if is_evident else " (guessed; data.source and data.target choose others)"
    separated = f"{sample.width} columns separated by {SEPARATORS[sample.separator]}"
    line_1 = "a header" if header else "no header"
    return f"{sample.path.name}: {separated}, {line_1}; {', '.join(shown)}{hint}"


def _length(cells: list[str]) -> float:
    return sum(map(len, cells)) / max(1, len(cells))


def _numeric(cells: list[str]) -> bool:
    return all(_NUMBER.fullmatch(cell) for cell in cells)
