"""The table: on screen, as markdown and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch

from benchmarks.attend.report import NONE, described, mib, ms, plain_text, short
from benchmarks.watch.measure import Row
from benchmarks.watch.model import Shape

HEADER = ["T", "question", "system", "ms", "ratio", "MiB", "error"]


def table(rows: list[Row]) -> tuple[list[list[str]], list[str]]:
    """(cells, footnotes)."""
    notes: list[str] = []
    cells = []
    for row in rows:
        if row.trouble is not None:
            note = f"{row.system} at T = {row.T}, {row.question}: {row.trouble}"
            notes.append(note)
            numbers = [f"[{len(notes)}]", NONE, NONE, NONE]
        else:
            ratio = NONE if row.ratio is None else f"{row.ratio:.2f}"
            numbers = [ms(row.seconds), ratio, mib(row.memory), short(row.error)]
        cells.append([str(row.T), row.question or NONE, row.system, *numbers])
    return cells, notes


LEGEND = (
    "ms: the best time of one forward pass with the answer, over rounds in which all take turns; with one "
    "thread, processor time. ratio: to the plain forward pass. MiB: peak beyond the model and its input. "
    "error: max |x − truth| / max |truth|, of 64 rows or all columns of one head, the truth in float64 from "
    "the model's own queries and keys."
)


def text(rows: list[Row], shape: Shape, facts: dict) -> str:
    cells, notes = table(rows)
    notes = [f"[{i}] {note}" for i, note in enumerate(notes, 1)]
    return "\n".join(
        [
            described(facts),
            f"Llama-shaped, random weights: {shape}; one sequence.",
            plain_text(HEADER, cells),
            *notes,
            LEGEND,
        ]
    )


def markdown(rows: list[Row], shape: Shape, facts: dict) -> str:
    cells, notes = table(rows)
    pipes = [f"| {' | '.join(row)} |" for row in [HEADER, ["---"] * len(HEADER), *cells]]
    notes = [f"- [{i}] {note}" for i, note in enumerate(notes, 1)]
    return "\n".join(
        [f"Made by `{facts['command']}`. {described(facts)} {shape}.", "", *pipes, "", *notes, "", LEGEND]
    )


def as_json(rows: list[Row], shape: Shape, facts: dict, long: dict | None = None) -> str:
    def plain(x: object) -> object:
        return str(x) if isinstance(x, torch.dtype) else x

    found = {"facts": facts, "shape": {k: plain(v) for k, v in asdict(shape).items()}, "long": long}
    found["rows"] = [asdict(row) | {"seconds": row.seconds} for row in rows]
    return json.dumps(found, indent=1, ensure_ascii=False)
