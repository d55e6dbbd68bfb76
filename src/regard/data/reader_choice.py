"""Choose the reader of files that a user names: tables, JSON lines, line-aligned pairs or plain text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.column_detection import LABELLED, PAIRS, ColumnRoles, choose, detect_table
from regard.data.csv_reader import Csv
from regard.data.readers import JsonLines, LinePairs, Rows, Table, TextLines, concatenate
from regard.data.text_files import check_file, lines, suffix
from regard.errors import DataError

JSON, TABLES = ("jsonl", "ndjson"), ("tsv", "csv")


def open_table(path: Path, source: str | int | None, target: str | int | None, kind: ColumnRoles) -> Rows:
    """A reader of two columns of a table, by name or number from 1, else guessed (column_detection.py)."""
    sample = detect_table(path)
    chosen = choose(sample, source, target, kind)
    if suffix(path) == "tsv" and sample.separator == "\t":
        return Table(path, chosen.columns, header=chosen.header, note=chosen.note)
    return Csv(path, chosen.columns, header=chosen.header, separator=sample.separator, note=chosen.note)


def open_labelled(path: Path, text: str | int | None, label: str | int | None) -> Rows:
    """A reader of the texts and labels of a table or of JSON lines."""
    check_file(path)
    if suffix(path) not in JSON:
        return open_table(path, text, label, LABELLED)
    available = _fields(path)
    fields = [str(field) if field is not None else None for field in (text, label)]
    for role, usual in enumerate(LABELLED.names):
        fields[role] = fields[role] or next((name for name in usual if name in available), None)
        if fields[role] is None:
            shown = ", ".join(map(repr, available[:8])) or "no fields"
            key = ("source", "target")[role]
            raise DataError(
                f"the first object of {path} has {shown}; name the {LABELLED.roles[role]} with data.{key}"
            )
    return JsonLines(path, (str(fields[0]), str(fields[1])), numbers=True)


def names_columns(path: Path, *, labelled: bool) -> bool:
    """True if a file is a table whose header has usual names for both columns."""
    if not path.is_file() or suffix(path) in JSON:
        return False
    kind = LABELLED if labelled else PAIRS
    try:
        sample = detect_table(path)
        header = choose(sample, None, None, kind).header
    except DataError:
        return False
    first = {cell.strip().lower() for cell in sample.rows[0]}
    return header and all(first.intersection(names) for names in kind.names)


def has_labels(path: Path, source: str | int | None = None, target: str | int | None = None) -> bool:
    """True if a file has texts and labels: by the names of its columns, or because the labels recur."""
    if suffix(path) in JSON:
        return (
            source is None
            and target is None
            and all(set(names) & set(_fields(path)) for names in LABELLED.names)
        )
    if suffix(path) not in TABLES:
        return False
    try:
        sample = detect_table(path)
        chosen = choose(sample, source, target, LABELLED)
    except DataError:
        return False
    labels = sample.column(chosen.columns[1], chosen.header)
    named = chosen.header and sample.rows[0][chosen.columns[1] - 1].strip().lower() in LABELLED.names[1]
    return named or (len(labels) >= 6 and len(set(labels)) <= len(labels) // 3)


def _fields(path: Path) -> list[str]:
    """The fields of the first object of JSON lines."""
    line = next(iter(lines(path)), [""])[0]
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        parsed = None
    return list(parsed) if isinstance(parsed, dict) else []


def open_files(
    files: Sequence[Any], source: str | int | None, target: str | int | None, paired: bool
) -> Rows:
    """A reader of files that a user names, chosen by their extensions (ignoring .gz and .xz).

    .jsonl: one object per line, with the fields `source` and `target` (for a text: `source`, or `text`).
    .tsv, .csv, or a single file: columns by number from 1, or by name if the first line is a header; by
    default the first two. Otherwise pairs of line-aligned files: [[a.en, a.de], [b.en, b.de]], or one list
    whose files end in `source` and `target`, or two files, the source first. A text may be any number of
    files.
    """
    if not files:
        raise DataError("no files are named; give at least one")
    parts: list[Rows] = []
    plain: list[Path] = []
    for item in files:
        if isinstance(item, (list, tuple)):
            if len(item) != 2 or not paired:
                raise DataError(
                    "an inner list names two files, the source and its translation; "
                    f"got {list(map(str, item))}"
                )
            parts.append(
                LinePairs(*_source_first([Path(file).expanduser() for file in item], source, target))
            )
            continue
        path = Path(item).expanduser()
        if suffix(path) in JSON:
            fields = (source, target) if paired else (source or "text",)
            parts.append(JsonLines(path, tuple(str(name) for name in fields if name is not None)))
            if len(fields) != len(parts[-1].layout()["fields"]):
                raise DataError(
                    f"the fields of {path} are not known; name them as data.source and data.target"
                )
        elif paired and (suffix(path) in TABLES or len(files) == 1):
            parts.append(open_table(path, source, target, PAIRS))
        else:
            plain.append(path)
    parts += [TextLines(path) for path in plain] if not paired else _pairs(plain, source, target)
    return concatenate(parts)


def _pairs(paths: list[Path], source: str | int | None, target: str | int | None) -> list[Rows]:
    """Pair the files of one list by their extensions, in order."""
    sources = [path for path in paths if suffix(path) == source]
    targets = [path for path in paths if suffix(path) == target]
    if len(paths) == 2 and not (sources and targets):
        sources, targets = paths[:1], paths[1:]
    if len(sources) + len(targets) != len(paths) or len(sources) != len(targets):
        shown = ", ".join(map(str, paths))
        raise DataError(
            f"it is not clear which of these files translate each other: {shown}; "
            f"write pairs, [[a.en, a.de], [b.en, b.de]], or end their names in .{source} and .{target}"
        )
    return [LinePairs(*pair) for pair in zip(sources, targets, strict=True)]


def _source_first(pair: list[Path], source: str | int | None, target: str | int | None) -> list[Path]:
    """Put the source file first, where the extensions tell."""
    return pair[::-1] if suffix(pair[0]) == target and suffix(pair[1]) == source else pair
