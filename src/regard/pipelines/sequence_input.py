"""The input of jobs of models that read sequences of numbers: files, arrays, or lists of file names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.column_detection import detect_table
from regard.data.reader_choice import JSON, TABLES
from regard.data.sequence_files import sequence_count
from regard.data.sequence_rows import COLUMNS
from regard.data.text_files import suffix
from regard.errors import OptionError
from regard.models.folder import model_in, read_config
from regard.models.options import reads_numbers
from regard.pipelines.input import Layout, Source, WholeLine
from regard.pipelines.table import TextLocation, locate_text


@dataclass(frozen=True)
class InFolder:
    """A file name in a line, relative to a folder."""

    layout: Layout
    folder: Path

    def text(self, line: str) -> str:
        name = self.layout.text(line)
        return str(self.folder / name) if name.strip() else name


def reads_sequences(folder: Path) -> bool:
    """True if the model of a folder reads sequences of numbers."""
    return reads_numbers(read_config(model_in(folder))["model"])


def open_sequences(
    names: Sequence[str],
    files: Sequence[Path] | None,
    column: str | None = None,
    field: str | None = None,
    *,
    header: bool = False,
    strict: bool = False,
) -> tuple[Source, TextLocation]:
    """The input lines, each the name of a sequence, and where the name is in them.

    `names` are sequences; with `files` (-i) they are more files. A file is an array, or a list or table with
    a file name per line, relative to its own folder. An array N × T × M stands for its N sequences.
    """
    paths = [*(files or []), *(map(Path, names) if files else [])]
    if not paths and names:
        references = tuple(reference for name in names for reference in _references(Path(name)))
        return Source(texts=references), TextLocation(WholeLine())
    arrays = [path for path in paths if path.suffix == ".npy"]
    if arrays and len(arrays) == len(paths):
        references = tuple(reference for path in arrays for reference in _references(path))
        return Source(texts=references), TextLocation(WholeLine())
    paths = paths or [Path("-")]
    folders = {path.parent for path in paths}
    if arrays or len(folders) > 1:
        raise OptionError(
            "with -i, give arrays, or lists of file names that are in one folder; got "
            + ", ".join(map(str, paths))
        )
    Source(tuple(paths)).check()
    if column is None and field is None:
        column = _usual_column(paths[0])
        field = "file" if suffix(paths[0]) in JSON else None
    place = locate_text(paths, column, field, header)
    layout = InFolder(place.layout, paths[0].parent)
    return Source(tuple(paths), layout=layout, strict=strict, header=place.header), place


def _usual_column(path: Path) -> str | None:
    """The name of the column of file names in a table with a header; else the first column."""
    if suffix(path) not in TABLES or not path.is_file() or not path.stat().st_size:
        return None
    first = [cell.strip().lower() for cell in detect_table(path, one_column=True).rows[0]]
    return next((name for name in COLUMNS.names[0] if name in first), "1")


def _references(path: Path) -> list[str]:
    count = sequence_count(path)
    return [str(path)] if count is None else [f"{path}#{i}" for i in range(count)]
