"""Ratings from files: who, what, how much; and what is known of the things rated. What is wrong is named by line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora import ENDINGS, data_folder
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
MOVIELENS = ("movielens-latest-small",)  # found by name in REGARD_DATA


@dataclass(frozen=True)
class Ratings:
    """Numbered users and items, one rating each for some pairs of them; `tags` are what is known of each item (genres)."""

    users: list[str]
    items: list[str]
    user: NDArray[np.int64]
    item: NDArray[np.int64]
    rating: NDArray[np.float64]
    titles: list[str] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    repeated: str = ""  # what was said twice, in a sentence

    def __len__(self) -> int:
        return len(self.rating)

    def part(self, rows: NDArray[np.int64]) -> Ratings:
        """Some of the ratings, of the same users and items."""
        return replace(self, user=self.user[rows], item=self.item[rows], rating=self.rating[rows])


def movielens_files(name: str) -> tuple[Path, Path]:
    """The ratings and the movies of a MovieLens folder in REGARD_DATA."""
    folder = data_folder() / name
    found = [
        next((p for end in ENDINGS if (p := folder / (file + end)).is_file()), None)
        for file in ("ratings.csv", "movies.csv")
    ]
    if found[0] is None or found[1] is None:
        raise DataError(
            f"there is no {folder} with ratings.csv and movies.csv; set REGARD_DATA to the folder that holds {name}"
        )
    return found[0], found[1]


def read_ratings(paths: Sequence[Path], columns: dict[str, str | None] | None = None) -> Ratings:
    """All ratings of some files. Of a pair that is rated twice the later rating counts, as when somebody changes their mind."""
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    place: dict[tuple[int, int], int] = {}
    who, what, much = [], [], []
    again, first = 0, ""
    for path in paths:
        with track(
            path.stat().st_size if path.is_file() else None, f"reading {path.name}", "bytes"
        ) as progress:
            for where, (user, item, rating) in _triples(path, columns or {}, progress.advance):
                pair = users.setdefault(user, len(users)), items.setdefault(item, len(items))
                if pair in place:
                    much[place[pair]] = rating
                    again, first = again + 1, first or f"{where}: user {user} rates item {item} again"
                    continue
                place[pair] = len(much)
                who.append(pair[0])
                what.append(pair[1])
                much.append(rating)
    if not much:
        raise DataError(f"{paths[0]} has no ratings; give a file with user, item and rating columns")
    said = f"{again} ratings are of a pair rated before ({first}); the last one counts" if again else ""
    return Ratings(
        list(users), list(items), np.array(who), np.array(what), np.array(much, float), repeated=said
    )


def add_item_info(ratings: Ratings, path: Path, separator: str = "|") -> Ratings:
    """The same ratings with titles and tags of their items from a table with an id, a title and perhaps a genres column."""
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
            f"line 1 of {path} names no column title or genres, but {', '.join(header)}; name one of them so"
        )
    need = 1 + max(place for place in (ident, title, tags) if place is not None)
    found = {}
    for where, row in rows:
        if len(row) < need:
            raise _too_few(where, row, need)
        found[row[ident].strip()] = row
    of = [found.get(item) for item in ratings.items]
    return replace(
        ratings,
        titles=[
            row[title] if row and title is not None else item
            for row, item in zip(of, ratings.items, strict=True)
        ],
        tags=[
            [tag for tag in row[tags].split(separator) if tag] if row and tags is not None else []
            for row in of
        ],
    )


def _triples(
    path: Path, columns: dict[str, str | None], advance: Any
) -> Iterator[tuple[str, tuple[str, str, float]]]:
    rows = _rows(path, advance)
    where, first = next(rows, ("", []))
    if len(first) < 3 and not any(columns.values()):
        raise DataError(
            f"{where} has {len(first)} columns and ratings need three: user, item, rating; separate them by commas or tabs"
        )
    places = _find_columns(path, first, columns)
    if _number(first[places["rating"]]) is None:  # the names of the columns
        if any(_number(cell) is not None for cell in first):
            raise _no_number(where, places["rating"], first)
    else:
        yield where, _triple(where, first, places)
    for where, row in rows:
        yield where, _triple(where, row, places)


def _find_columns(path: Path, first: list[str], columns: dict[str, str | None]) -> dict[str, int]:
    """Where user, item and rating stand: as asked for by name or number (from 1), by usual names, else the first three."""
    names = [cell.strip().lower() for cell in first]
    found = {}
    for n, kind in enumerate(("user", "item", "rating")):
        asked = columns.get(kind)
        if asked is None:
            found[kind] = next((k for k, name in enumerate(names) if name in COLUMN_NAMES[kind]), n)
        elif asked.strip().lower() in names:
            found[kind] = names.index(asked.strip().lower())
        elif asked.isdigit() and 1 <= int(asked) <= len(first):
            found[kind] = int(asked) - 1
        else:
            raise DataError(
                f"{path} has no column {asked!r} for the {kind}; it has {', '.join(first)} (or 1 to {len(first)})"
            )
    if len(set(found.values())) < 3:
        shown = ", ".join(f"{kind} in column {k + 1}" for kind, k in found.items())
        raise DataError(f"user, item and rating of {path} must be three columns, not {shown}; name them")
    return found


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
        raise _no_number(where, places["rating"], row)
    return row[places["user"]].strip(), row[places["item"]].strip(), rating


def _too_few(where: str, row: list[str], need: int) -> DataError:
    return DataError(f"{where} has {len(row)} columns and {need} are needed; complete or delete it")


def _no_number(where: str, column: int, row: list[str]) -> DataError:
    return DataError(
        f"{where}, column {column + 1}: the rating {row[column][:40]!r} is no number; write one, or name another column"
    )


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and "_" not in text else None


def _rows(path: Path, advance: Any) -> Iterator[tuple[str, list[str]]]:
    """Rows of a table and where they stand; commas, semicolons, tabs or :: separate, whichever the first line has."""

    def plain() -> Iterator[str]:
        number = 0
        for block in lines(path, advance=advance):
            for line in block:
                number += 1
                if line in (BAD, LONG) or "\0" in line:
                    raise DataError(f"line {number} of {path} is not UTF-8 text; is it a table of ratings?")
                yield line + "\n"

    text = plain()
    start = next(text, "")
    mark = next((mark for mark in ("\t", "::", ",", ";") if mark in start), ",")
    if mark == "::":
        for number, line in enumerate(_prepend(start, text), 1):
            if line.strip():
                yield f"line {number} of {path}", line.rstrip("\n").split("::")
        return
    table = csv.reader(_prepend(start, text), delimiter=mark, strict=True)
    try:
        for row in table:
            if row:
                yield f"line {table.line_num} of {path}", row
    except csv.Error as error:
        raise DataError(
            f"line {table.line_num} of {path} is no row of a table ({error}); look for a stray quotation mark"
        ) from None


def _prepend(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest
