"""Test sentences with the outputs of the bundled translator, for a verdict on each.

    python -m benchmarks.translator.review draw build/translator/directions   50 random rows of each direction
    python -m benchmarks.translator.review page                               docs/translations.md

`draw` writes a table with a column `verdict` to fill in: right (a good translation, also if it differs from
the reference), usable (understood, with a fault) or wrong; `why` is required for the last two. Verdicts of
rows whose output has not changed are kept.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import Counter
from pathlib import Path
from typing import Any

import regard
from benchmarks.peers import command
from benchmarks.translator.publish import NAME, RESULTS
from benchmarks.translator.score import DIRECTIONS
from regard.data.tokenizer import split_language
from regard.errors import DataError
from regard.models.catalog import BUNDLED

TABLE = "review.tsv"
PAGE = Path("docs/translations.md")
EXAMPLE = "I need a hammer to nail the boards."
FIGURE = (  # drawn for EXAMPLE, one of the rows
    '![The attention matrix of the translation "Ich brauche einen Hammer bis zum Nagel der Boote.": '
    '"Nagel" attends to "nail", "Boote." to "boards."](images/copied-word.svg '
    '"python docs/images/draw.py copied-word")',
    "",
    '*One of the rows below: "Nagel" (the nail) attends to "nail" and "Boote" (boats) to "boards", so',
    "the model looks at the right words, and knows neither the verb nor the boards. The matrix is that of",
    f'`regard translate "{EXAMPLE}" --to de --show`.*',
)
ROWS, SEED = 50, 1  # of each direction
COLUMNS = ("direction", "source", "output", "reference", "verdict", "why")
DRAW = "python -m benchmarks.translator.review draw build/translator/directions"
VERDICTS = ("right", "usable", "wrong")

Row = dict[str, str]


def draw(directions: Path, model: Any) -> list[Row]:
    """Random rows of the Tatoeba test sets with the model's outputs."""
    rows = []
    for direction in DIRECTIONS:
        path = directions / f"tatoeba.{direction}.test.tsv"
        if not path.is_file():
            raise DataError(f"there is no {path}; make it with prepare.py --directions")
        pairs = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        chosen = [
            pairs[i] for i in sorted(random.Random(SEED).sample(range(len(pairs)), min(ROWS, len(pairs))))
        ]
        sources = [split_language(source, ("de", "en", "fr"))[1].strip() for source, _ in chosen]
        outputs = translations(sources, direction, model)
        rows += [
            dict(zip(COLUMNS, (direction, source, output, reference, "", ""), strict=True))
            for source, output, (_, reference) in zip(sources, outputs, chosen, strict=True)
        ]
    return rows


def translations(sources: list[str], direction: str, model: Any) -> list[str]:
    """The outputs as a user gets them: int8, the default beam."""
    return [str(text) for text in regard.translate(sources, regard.fast(model), direction.split("-")[1])]


def read(path: Path) -> list[Row]:
    """The rows of the table; a row with an unknown verdict, or without a reason, is an error."""
    if not path.is_file():
        raise DataError(f"there is no {path}; make it with `{DRAW}`")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    for number, row in enumerate(rows, 2):
        if tuple(row) != COLUMNS or None in row.values():
            raise DataError(
                f"line {number} of {path} does not have the columns {', '.join(COLUMNS)}; correct it"
            )
        if row["verdict"] not in ("", *VERDICTS):
            raise DataError(
                f"line {number} of {path}: the verdict is one of {', '.join(VERDICTS)}; correct it"
            )
        if row["verdict"] in VERDICTS[1:] and not row["why"]:
            raise DataError(f"line {number} of {path}: say why it is {row['verdict']}")
    return rows


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(COLUMNS), *("\t".join(row[name] for name in COLUMNS) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def with_verdicts(rows: list[Row], earlier: list[Row]) -> list[Row]:
    """The rows with the verdicts of earlier ones that have the same source and output."""
    known = {(row["direction"], row["source"], row["output"]): row for row in earlier}
    same = (known.get((row["direction"], row["source"], row["output"]), row) for row in rows)
    return [
        row | {name: old[name] for name in ("verdict", "why")} for row, old in zip(rows, same, strict=True)
    ]


def counts(rows: list[Row]) -> dict[str, int]:
    found = Counter(row["verdict"] for row in rows)
    return {verdict: found[verdict] for verdict in VERDICTS}


def page(rows: list[Row]) -> str:
    """The table as a page of the documentation."""
    missing = sum(not row["verdict"] for row in rows)
    if missing:
        raise DataError(f"{missing} rows of the table have no verdict yet; fill them in")
    lines = [
        "# Translations of the bundled model, read one by one",
        "",
        f"{len(rows)} rows of the Tatoeba test set, {ROWS} random pairs of each language in both directions,",
        f"as `{NAME}` translates them on a CPU: int8, its default beam (`{DRAW}`, seed {SEED}).",
        "A row is *right* if the output is a good translation, whether or not it equals the reference;",
        "*usable* if it is understood but has a fault; *wrong* otherwise. One reader gave the verdicts.",
        "",
        "| direction | right | usable | wrong |",
        "|---|---|---|---|",
    ]
    groups = {direction: [row for row in rows if row["direction"] == direction] for direction in DIRECTIONS}
    for name, group in {**groups, "all": rows}.items():
        lines.append(f"| {name} | {' | '.join(str(n) for n in counts(group).values())} |")
    if any(row["source"] == EXAMPLE for row in rows):
        lines += ["", *FIGURE]
    for direction, group in groups.items():
        lines += ["", f"## {direction}", "| source | output | reference | verdict |", "|---|---|---|---|"]
        for row in group:
            verdict = row["verdict"] + (f": {row['why']}" if row["why"] else "")
            cells = (row["source"], row["output"], row["reference"], verdict)
            lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.review",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("draw", "page"))
    parser.add_argument("directions", type=Path, nargs="?", help="draw: folder of prepare.py --directions")
    parser.add_argument("--model", default=BUNDLED / NAME, help="model folder or name")
    parser.add_argument("--table", type=Path, default=RESULTS / TABLE)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(argv)
    if options.action == "page":
        options.page.write_text(page(read(options.table)), encoding="utf-8", newline="\n")
        print(options.page)
        return 0
    if options.directions is None:
        parser.error("draw takes the folder of the files per direction")
    rows = draw(options.directions, regard.load(options.model))
    rows = with_verdicts(rows, read(options.table) if options.table.is_file() else [])
    write(options.table, rows)
    print(f"{options.table}: {len(rows)} rows, {sum(not row['verdict'] for row in rows)} without a verdict")
    return 0


if __name__ == "__main__":
    command.run(main)
