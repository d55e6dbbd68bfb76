"""The table: on screen, as markdown and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch

from benchmarks.attend.report import described, mib, ms, plain_text, short
from benchmarks.peers.tables import NONE, markdown_table
from benchmarks.watch.measure import Row
from benchmarks.watch.model import Shape

HEADER = ["T", "question", "system", "ms", "ratio", "MiB", "error"]


def table(rows: list[Row]) -> tuple[list[list[str]], list[str]]:
    """The cells, and the footnotes of systems without numbers."""
    notes: list[str] = []
    cells = []
    for row in rows:
        if row.failure is not None:
            note = f"{row.system} at T = {row.T}, {row.question}: {row.failure}"
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
    """The table as it is printed."""
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
    """The table as Markdown."""
    cells, notes = table(rows)
    table_lines = markdown_table(HEADER, cells)
    notes = [f"- [{i}] {note}" for i, note in enumerate(notes, 1)]
    command = f"Made by `{facts['command']}`. {described(facts)} {shape}."
    return "\n".join([command, "", *table_lines, "", *notes, "", LEGEND])


def as_json(rows: list[Row], shape: Shape, facts: dict, long: dict | None = None) -> str:
    def json_value(x: object) -> object:
        return str(x) if isinstance(x, torch.dtype) else x

    content = {"facts": facts, "shape": {k: json_value(v) for k, v in asdict(shape).items()}, "long": long}
    content["rows"] = [asdict(row) | {"seconds": row.seconds} for row in rows]
    return json.dumps(content, indent=1, ensure_ascii=False)
