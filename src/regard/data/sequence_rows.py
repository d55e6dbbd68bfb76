"""Rows of sequences of numbers and their targets: a table of file names, or an array and a text file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.data.column_detection import ColumnRoles
from regard.data.reader_choice import JSON, open_table
from regard.data.readers import ROWS, Advance, Block, ConcatRows, JsonLines, Rows, TextLines, ignore
from regard.data.row_formats import RowFormat
from regard.data.sequence_files import read_sequence, sequence_count, split_reference
from regard.data.text_files import check_file, is_unreadable, suffix
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError
from regard.files.checksums import file_sha256

MIN_ROWS = 500  # sequences; below this a warning is given
COLUMNS = ColumnRoles(
    ("file", "target"),
    (
        ("file", "path", "sequence", "recording", "frames"),
        ("label", "tags", "target", "text", "class", "transcript"),
    ),
)


@dataclass(frozen=True)
class SequenceTable(Rows):
    """A table with the file of each sequence, relative to the table's folder, and its target."""

    table: Rows
    paired = True

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.table.files

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names and contents of all files that the table names."""
        digest = hashlib.sha256()
        references = dict.fromkeys(row[0] for row in self.table)
        for path in dict.fromkeys(split_reference(self._resolved(reference))[0] for reference in references):
            check_file(path)
            digest.update(f"{path.name} {file_sha256(path)}\n".encode())
        return digest.hexdigest()

    def layout(self) -> dict[str, Any]:
        return {"layout": "sequences", "table": self.table.layout(), "digest": self.digest}

    def check(self) -> None:
        self.table.check()
        for number, row in enumerate(self.table):
            try:
                check_file(split_reference(self._resolved(row[0]))[0])
            except DataError as error:
                raise DataError(f"{self.place(number, 0)}: {error}") from None

    def notes(self) -> list[str]:
        return self.table.notes()

    def place(self, row: int, column: int) -> str:
        return self.table.place(row, column)

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        for references, targets in self.table.blocks(advance):
            yield [self._resolved(reference) for reference in references], targets

    def _resolved(self, reference: str) -> str:
        unreadable = not reference.strip() or is_unreadable(reference)
        return reference if unreadable else str(self.files[0].parent / reference)


@dataclass(frozen=True)
class ArrayPairs(Rows):
    """An array N × T × M, and a text file whose line n is the target of sequence n."""

    array: Path
    target: Path
    paired = True

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.array, self.target

    def layout(self) -> dict[str, Any]:
        return {"layout": "array"}

    def place(self, row: int, column: int) -> str:
        return f"{self.target} line {row + 1}" if column else f"{self.array}#{row}"

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        targets = [line for block in TextLines(self.target).blocks(advance) for line in block[0]]
        count = sequence_count(self.array)
        if count is None:
            raise DataError(
                f"{self.array} holds one sequence, and a file of targets needs an array of shape "
                "(sequences, frames, channels); or name the file of each sequence in a table"
            )
        if count != len(targets):
            raise DataError(
                f"{self.array} has {count:,} sequences and {self.target} has {len(targets):,} lines; "
                "line n is the target of sequence n"
            )
        for start in range(0, count, ROWS):
            stop = min(count, start + ROWS)
            yield [f"{self.array}#{i}" for i in range(start, stop)], targets[start:stop]


class SequenceRowFormat(RowFormat):
    """The rows of a task whose source is a sequence of numbers instead of a text."""

    sequences = True
    unit, min_rows = "sequences", MIN_ROWS

    def __init__(self, of: RowFormat) -> None:
        self.of, self.task, self.labels, self.classes = of, of.task, of.labels, of.classes
        self.columns = ("file", of.columns[1])

    def read(self, files: Sequence[Any], source: str | int | None, target: str | int | None) -> Rows:
        if not files:
            raise DataError("no files are named; give at least one")
        parts: list[Rows] = []
        for item in files:
            if not isinstance(item, (list, tuple)):
                parts.append(_open_table(Path(item).expanduser(), source, target))
            elif len(item) == 2:
                parts.append(ArrayPairs(*(Path(file).expanduser() for file in item)))
            else:
                raise DataError(
                    "an inner list names two files, an array .npy and the targets of its sequences; "
                    f"got {list(map(str, item))}"
                )
        return parts[0] if len(parts) == 1 else ConcatRows(tuple(parts))

    def split_key(self, text: str) -> str:
        """The name of the file: a split does not depend on the folder of the data."""
        return Path(text).name

    def check(self, rows: Rows, target: Tokenizer) -> None:
        if self.labels != "word":
            return self.of.check(rows, target)
        for number, (reference, tags) in enumerate(rows):
            if not reference.strip() or is_unreadable(reference) or not tags.strip():
                continue
            frames, count = len(read_sequence(reference)), len(tags.split(" "))
            if frames != count:
                raise DataError(
                    f"{rows.place(number, 1)}: {reference} has {frames} frames and there are {count} tags; "
                    "each frame has one tag"
                )
        return None

    def scarcity_advice(self) -> str:
        return "a model overfits; add sequences"


def _open_table(path: Path, source: str | int | None, target: str | int | None) -> Rows:
    check_file(path)
    if path.suffix == ".npy":
        raise DataError(
            f"{path} has no targets; name it with the file of its targets, [[{path}, targets.txt]], or in a "
            "table with the columns file and label"
        )
    if suffix(path) in JSON:
        return SequenceTable(JsonLines(path, (str(source or "file"), str(target or "label")), numbers=True))
    return SequenceTable(open_table(path, source, target, COLUMNS))
