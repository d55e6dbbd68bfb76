"""What is searched: lines of text files, a column of a table, a field of JSON lines, or whole files of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from regard.data.text_files import check_file, lines, suffix
from regard.errors import DataError, OptionError
from regard.files.progress import track
from regard.pipelines.input import BadLine, Column, Field, Layout, Reader, Source, WholeLine

TABLES = {"csv": "a table with commas", "tsv": "a table with tabs"}
PLACES = {"csv": Column(1, ",", quotes=True), "tsv": Column(1)}
JSON = ("jsonl", "ndjson")


class Document(NamedTuple):
    """A text and the name under which it is found."""

    id: str
    text: str


@dataclass
class Documents:
    """What was read, and what was not."""

    found: list[Document] = field(default_factory=list)
    empty: int = 0
    bad: BadLine = field(default_factory=BadLine)

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.found]

    def remarks(self) -> list[str]:
        """What a user should know about what was left out."""
        empty = (
            [f"{self.empty:,} empty text{'s were' if self.empty > 1 else ' was'} left out"]
            if self.empty
            else []
        )
        return empty + ([str(self.bad)] if self.bad.count else [])


def read_documents(
    paths: Sequence[Path], *, text: str | None = None, name: str | None = None, strict: bool = False
) -> Documents:
    """The documents of files and folders, in their order. Every path is looked for before anything is read.

    `text` and `name` say which column (a number from 1 on, or its name in the first line) or which field holds the text and the
    name of a document. Without a name it is called FILE:LINE, a file of a folder by its path in there.
    """
    for path in paths:
        if path.is_dir():
            if not any(path.rglob("*.txt")):
                raise DataError(f"the folder {path} holds no .txt file; give one that does, or name files")
        elif str(path) != "-":
            check_file(path)
    found = Documents()
    for path in paths:
        if path.is_dir():
            _folder(found, path, strict)
        else:
            _file(found, path, text, name, strict)
    if not found.found:
        raise DataError(f"there is no text in {', '.join(map(str, paths))}; give files that hold some")
    _unique(found.found)
    return found


def _folder(found: Documents, folder: Path, strict: bool) -> None:
    files = sorted(folder.rglob("*.txt"))
    with track(len(files), f"reading {folder}", "files") as bar:
        for path in files:
            raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                if strict:
                    raise DataError(
                        f"{path} is not UTF-8; mend it, or leave out --strict to go on with �"
                    ) from None
                found.bad.add(str(path))
                text = raw.decode("utf-8", errors="replace")
            _add(found, path.relative_to(folder).as_posix(), " ".join(text.split()))
            bar.advance()


def _file(found: Documents, path: Path, text: str | None, name: str | None, strict: bool) -> None:
    layout, names, header = _layouts(path, text, name)
    size = path.stat().st_size if path.is_file() else None
    with track(size, f"reading {path.name}", "bytes") as bar:
        reading = Reader(Source((path,), layout=layout, strict=strict, header=header), bar.advance)
        for chunk in reading.chunks():
            for i, row in enumerate(chunk.rows, chunk.first + 1 + header):
                called = f"{path}:{i}"
                if names is not None and row.line.strip():
                    try:
                        called = names.text(row.line).strip()
                    except ValueError as error:
                        raise DataError(
                            f"line {i:,} of {path} {str(error).replace('--column', '--id')}"
                        ) from None
                    if not called:
                        raise DataError(
                            f"line {i:,} of {path} has nothing in the column of --id; every document needs a name"
                        )
                _add(found, called, row.text.strip())
    found.bad.count += reading.bad.count
    found.bad.first += reading.bad.first


def _add(found: Documents, name: str, text: str) -> None:
    if text:
        found.found.append(Document(name, text))
    else:
        found.empty += 1


def _layouts(path: Path, text: str | None, name: str | None) -> tuple[Layout, Layout | None, bool]:
    """Where text and name are in a line, and whether the first line is a header."""
    kind = suffix(path)
    if kind in JSON:
        return Field(text or "text"), None if name is None else Field(name), False
    if kind not in TABLES:
        if text is not None or name is not None:
            raise OptionError(
                f"{path} is read line by line, so it has no columns for --text and --id; name it .csv, .tsv or .jsonl"
            )
        return WholeLine(), None, False
    if text is None:
        raise OptionError(
            f"{path} is {TABLES[kind]}; say which column holds the text with --text NUMBER or --text NAME"
        )
    header = not (text.isdigit() and (name is None or name.isdigit()))
    first = _header(path, kind) if header else []
    make = lambda number: replace(PLACES[kind], number=number)  # noqa: E731
    return (
        make(_number(path, text, first, "--text")),
        None if name is None else make(_number(path, name, first, "--id")),
        header,
    )


def _header(path: Path, kind: str) -> list[str]:
    first = next((line for block in lines(path) for line in block), "")
    return [cell.strip() for cell in PLACES[kind].cells(first)]


def _number(path: Path, column: str, first: list[str], option: str) -> int:
    if column.isdigit() and column not in first:
        if int(column) < 1:
            raise OptionError(f"{option} counts columns from 1, got {column}")
        return int(column)
    if column not in first:
        raise OptionError(
            f"line 1 of {path} names no column {column!r} for {option}; it has {', '.join(map(repr, first))}"
        )
    return first.index(column) + 1


def _unique(documents: Sequence[Document]) -> None:
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise DataError(f"two documents are called {document.id!r}; every name of --id may occur once")
        seen.add(document.id)
