"""Read ratings (user, item, rating) and item tables from files; errors name line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora import find
from regard.data.text_files import BAD, LONG, lines
from regard.errors import DataError
from regard.files.progress import track

COLUMN_NAMES = {
    "user": ("user", "userid", "user_id", "uid", "reviewerid", "customer"),
    "item": (
        "item",
        "itemid",
        "item_id",
        "iid",
        "movieid",
        "movie_id",
        "movie",
        "product",
        "productid",
        "bookid",
        "asin",
    ),
    "rating": ("rating", "score", "stars", "overall", "value"),
}
MOVIELENS = ("movielens-latest-small",)  # corpora in REGARD_DATA


@dataclass(frozen=True)
class Ratings:
    """Ratings of (user, item) index pairs, at most one per pair; `tags` lists the genres of each item."""

    users: list[str]
    items: list[str]
    user: NDArray[np.int64]
    item: NDArray[np.int64]
    rating: NDArray[np.float64]
    titles: list[str] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    repeated: str = ""  # warning about pairs rated twice, or empty
    assumed: list[str] = field(default_factory=list)  # columns of files that do not name them

    def __len__(self) -> int:
        return len(self.rating)

    def subset(self, rows: NDArray[np.int64]) -> Ratings:
        """The ratings of these rows, with the same users and items."""
        return replace(self, user=self.user[rows], item=self.item[rows], rating=self.rating[rows])


def movielens_files(name: str) -> tuple[Path, Path]:
    """Paths of ratings.csv and movies.csv of a MovieLens folder in REGARD_DATA."""
    known = find(name)
    return known.path("ratings.csv"), known.path("movies.csv")


def read_ratings(paths: Sequence[Path], columns: dict[str, str | None] | None = None) -> Ratings:
    """Read all ratings of some files. If a pair is rated twice, the last rating counts."""
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    position: dict[tuple[int, int], int] = {}
    user_column, item_column, values = [], [], []
    repeats, first = 0, ""
    notes: list[str] = []
    for path in paths:
        with track(
            path.stat().st_size if path.is_file() else None, f"reading {path.name}", "bytes"
        ) as progress:
            for where, (user, item, rating) in _triples(path, columns or {}, progress.advance, notes):
                pair = users.setdefault(user, len(users)), items.setdefault(item, len(items))
                if pair in position:
                    values[position[pair]] = rating
                    repeats, first = repeats + 1, first or f"{where}: user {user} rates item {item} again"
                    continue
                position[pair] = len(values)
                user_column.append(pair[0])
                item_column.append(pair[1])
                values.append(rating)
    if not values:
        raise DataError(f"{paths[0]} has no ratings; give a file with user, item and rating columns")
    warning = (
        f"{repeats} ratings repeat a pair rated before ({first}); the last one counts" if repeats else ""
    )
    return Ratings(
        list(users),
        list(items),
        np.array(user_column),
        np.array(item_column),
        np.array(values, float),
        repeated=warning,
        assumed=notes,
    )


def add_item_info(ratings: Ratings, path: Path, separator: str = "|") -> Ratings:
    """Add titles and tags of items from a table with an id column and a title or genres column."""
    rows = _rows(path, lambda n: None)
    _, header = next(rows, ("", []))
    names = [name.strip().lower() for name in header]
    ident = next((k for k, name in enumerate(names) if name in COLUMN_NAMES["item"] or name == "id"), 0)
    title = next((k for k, name in enumerate(names) if name in ("title", "name")), None)
    tags = next(
        (k for k, name in enumerate(names) if name in ("genres", "genre", "tags", "categories")), None
    )
    if title is None and tags is None:
        raise DataError(
            f"line 1 of {path} has no column named title or genres, only {', '.join(header)}; rename one"
        )
    needed = 1 + max(column for column in (ident, title, tags) if column is not None)
    by_id = {}
    for where, row in rows:
        if len(row) < needed:
            raise _too_few(where, row, needed)
        by_id[row[ident].strip()] = row
    item_rows = [by_id.get(item) for item in ratings.items]
    if not any(item_rows):
        raise DataError(
            f"no item of the ratings, such as {ratings.items[0]!r}, is in column {ident + 1} of {path} "
            f"({header[ident].strip()!r}); name the column of the ids 'id'"
        )
    return replace(
        ratings,
        titles=[
            row[title] if row and title is not None else item
            for row, item in zip(item_rows, ratings.items, strict=True)
        ],
        tags=[
            [tag for tag in row[tags].split(separator) if tag] if row and tags is not None else []
            for row in item_rows
        ],
    )


def _triples(
    path: Path, columns: dict[str, str | None], advance: Any, notes: list[str]
) -> Iterator[tuple[str, tuple[str, str, float]]]:
    """Yield the location, user, item and rating of each row; add what was assumed to `notes`."""
    rows = _rows(path, advance)
    where, first = next(rows, ("", []))
    if len(first) < 3 and not any(columns.values()):
        raise DataError(
            f"{where} has {len(first)} columns but ratings need user, item and rating; "
            "separate columns by commas or tabs"
        )
    places = _find_columns(path, first, columns)
    header = _number(first[places["rating"]]) is None
    if any(
        columns.get(kind) is None and first[k].strip().lower() not in COLUMN_NAMES[kind]
        for kind, k in places.items()
    ):
        shown = (
            f"{kind} = column {k + 1}" + (f" {first[k].strip()!r}" if header else "")
            for kind, k in places.items()
        )
        notes.append(f"{path.name}: {', '.join(shown)} (assumed; --user-column and others choose)")
    if header:
        if any(_number(cell) is not None for cell in first):
            raise _not_a_number(where, places["rating"], first)
    else:
        yield where, _triple(where, first, places)
    for where, row in rows:
        yield where, _triple(where, row, places)


def _find_columns(path: Path, first: list[str], columns: dict[str, str | None]) -> dict[str, int]:
    """Column indices of user, item and rating: as requested by name or number (from 1), by common names, or
    0, 1, 2.
    """
    names = [cell.strip().lower() for cell in first]
    places = {}
    for n, kind in enumerate(("user", "item", "rating")):
        requested = columns.get(kind)
        if requested is None:
            places[kind] = next((k for k, name in enumerate(names) if name in COLUMN_NAMES[kind]), n)
        elif requested.strip().lower() in names:
            places[kind] = names.index(requested.strip().lower())
        elif requested.isdigit() and 1 <= int(requested) <= len(first):
            places[kind] = int(requested) - 1
        else:
            raise DataError(
                f"{path} has no column {requested!r} for the {kind}; it has {', '.join(first)} (or 1 to "
                f"{len(first)})"
            )
    if len(set(places.values())) < 3:
        shown = ", ".join(f"{kind} in column {k + 1}" for kind, k in places.items())
        raise DataError(f"user, item and rating of {path} must be three columns, not {shown}; name them")
    return places


def _triple(where: str, row: list[str], places: dict[str, int]) -> tuple[str, str, float]:
    if len(row) <= max(places.values()):
        raise _too_few(where, row, max(places.values()) + 1)
    for kind in ("user", "item"):
        if not row[places[kind]].strip():
            raise DataError(
                f"{where}, column {places[kind] + 1}: the {kind} is empty; complete or delete the line"
            )
    rating = _number(row[places["rating"]])
    if rating is None:
        raise _not_a_number(where, places["rating"], row)
    return row[places["user"]].strip(), row[places["item"]].strip(), rating


def _too_few(where: str, row: list[str], needed: int) -> DataError:
    return DataError(f"{where} has {len(row)} columns but {needed} are needed; complete or delete it")


def _not_a_number(where: str, column: int, row: list[str]) -> DataError:
    return DataError(
        f"{where}, column {column + 1}: the rating {row[column][:40]!r} is not a number; "
        "correct it, or name another column"
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def _rows(path: Path, advance: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, cells) of each row; the first line decides the separator: tab, ::, comma or
    semicolon.
    """

    def text_lines() -> Iterator[str]:
        number = 0
        for block in lines(path, advance=advance):
            for line in block:
                number += 1
                if line in (BAD, LONG) or "\0" in line:
                    raise DataError(f"line {number} of {path} is not UTF-8 text; give a table of ratings")
                yield line + "\n"

    text = text_lines()
    first = next(text, "")
    separator = next((mark for mark in ("\t", "::", ",", ";") if mark in first), ",")
    if separator == "::":
        for number, line in enumerate(chain([first], text), 1):
            if line.strip():
                yield f"line {number} of {path}", line.rstrip("\n").split("::")
        return
    table = csv.reader(chain([first], text), delimiter=separator, strict=True)
    try:
        for row in table:
            if row:
                yield f"line {table.line_num} of {path}", row
    except csv.Error as error:
        raise DataError(
            f"line {table.line_num} of {path} is not a valid table row ({error}); look for a stray "
            f"quotation mark"
        ) from None
