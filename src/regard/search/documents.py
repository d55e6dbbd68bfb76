"""Read documents: lines of text files, table columns, JSONL fields, or the .txt files of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from regard.data.text_files import check_file, lines, suffix
from regard.errors import DataError, OptionError
from regard.files.progress import track
from regard.pipelines.input import Column, Field, InvalidLines, Layout, Reader, Source, WholeLine

TABLES = {"csv": "a comma-separated table", "tsv": "a tab-separated table"}
LAYOUTS = {"csv": Column(1, ",", quotes=True), "tsv": Column(1)}
JSON = ("jsonl", "ndjson")


class Document(NamedTuple):
    """A text and its id."""

    id: str
    text: str


@dataclass
class LoadedDocuments:
    """The documents that were read, and counts of empty and undecodable ones."""

    documents: list[Document] = field(default_factory=list)
    empty: int = 0
    bad: InvalidLines = field(default_factory=InvalidLines)

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.documents]

    def warnings(self) -> list[str]:
        """One sentence for each kind of input that was skipped or replaced."""
        empty = (
            [f"{self.empty:,} empty text{'s were' if self.empty > 1 else ' was'} left out"]
            if self.empty
            else []
        )
        return empty + ([str(self.bad)] if self.bad.count else [])


def read_documents(
    paths: Sequence[Path], *, text: str | None = None, name: str | None = None, strict: bool = False
) -> LoadedDocuments:
    """Read the documents of files and folders, in order. All paths are checked before anything is read.

    `text` and `name` select the column (a number from 1, or a name in the header line) or JSON field of the
    text and the id. Without `name` the id is FILE:LINE, or the relative path for a file in a folder.
    """
    for path in paths:
        if path.is_dir():
            if not any(path.rglob("*.txt")):
                raise DataError(
                    f"the folder {path} contains no .txt file; give a folder that does, or name files"
                )
        elif str(path) != "-":
            check_file(path)
    result = LoadedDocuments()
    for path in paths:
        if path.is_dir():
            _read_folder(result, path, strict)
        else:
            _read_file(result, path, text, name, strict)
    if not result.documents:
        raise DataError(f"{', '.join(map(str, paths))} contain no text; give files with text")
    _check_unique_ids(result.documents)
    return result


def _read_folder(result: LoadedDocuments, folder: Path, strict: bool) -> None:
    files = sorted(folder.rglob("*.txt"))
    with track(len(files), f"reading {folder}", "files") as bar:
        for path in files:
            raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                if strict:
                    raise DataError(
                        f"{path} is not UTF-8; fix it, or omit --strict to replace bad bytes by �"
                    ) from None
                result.bad.add(str(path))
                text = raw.decode("utf-8", errors="replace")
            _add(result, path.relative_to(folder).as_posix(), " ".join(text.split()))
            bar.advance()


def _read_file(result: LoadedDocuments, path: Path, text: str | None, name: str | None, strict: bool) -> None:
    layout, id_layout, header = _layouts(path, text, name)
    size = path.stat().st_size if path.is_file() else None
    with track(size, f"reading {path.name}", "bytes") as bar:
        reader = Reader(Source((path,), layout=layout, strict=strict, header=header), bar.advance)
        for chunk in reader.chunks():
            for i, row in enumerate(chunk.rows, chunk.first + 1 + header):
                doc_id = f"{path}:{i}"
                if id_layout is not None and row.line.strip():
                    try:
                        doc_id = id_layout.text(row.line).strip()
                    except ValueError as error:
                        raise DataError(
                            f"line {i:,} of {path} {str(error).replace('--column', '--id')}"
                        ) from None
                    if not doc_id:
                        raise DataError(
                            f"line {i:,} of {path} has no id in the --id column; every document needs one"
                        )
                _add(result, doc_id, row.text.strip())
    result.bad.count += reader.invalid.count
    result.bad.first += reader.invalid.first


def _add(result: LoadedDocuments, name: str, text: str) -> None:
    if text:
        result.documents.append(Document(name, text))
    else:
        result.empty += 1


def _layouts(path: Path, text: str | None, name: str | None) -> tuple[Layout, Layout | None, bool]:
    """The layouts of text and id within a line, and whether the first line is a header."""
    kind = suffix(path)
    if kind in JSON:
        return Field(text or "text"), None if name is None else Field(name), False
    if kind not in TABLES:
        if text is not None or name is not None:
            raise OptionError(
                f"{path} is read as plain lines, so --text and --id do not apply; "
                "use a file name ending in .csv, .tsv or .jsonl"
            )
        return WholeLine(), None, False
    if text is None:
        raise OptionError(
            f"{path} is {TABLES[kind]}; select the text column with --text NUMBER or --text NAME"
        )
    header = not (text.isdigit() and (name is None or name.isdigit()))
    names = _header(path, kind) if header else []
    make = lambda number: replace(LAYOUTS[kind], number=number)  # noqa: E731
    return (
        make(_column_number(path, text, names, "--text")),
        None if name is None else make(_column_number(path, name, names, "--id")),
        header,
    )


def _header(path: Path, kind: str) -> list[str]:
    first = next((line for block in lines(path) for line in block), "")
    return [cell.strip() for cell in LAYOUTS[kind].cells(first)]


def _column_number(path: Path, column: str, header: list[str], option: str) -> int:
    if column.isdigit() and column not in header:
        if int(column) < 1:
            raise OptionError(f"{option} counts columns from 1, got {column}")
        return int(column)
    if column not in header:
        raise OptionError(
            f"line 1 of {path} has no column {column!r} for {option}; it has {', '.join(map(repr, header))}"
        )
    return header.index(column) + 1


def _check_unique_ids(documents: Sequence[Document]) -> None:
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise DataError(f"two documents have the id {document.id!r}; ids must be unique, so change one")
        seen.add(document.id)
