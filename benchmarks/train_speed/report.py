"""The table: on screen, as markdown and as JSON."""

from __future__ import annotations

import json
import os
import platform
import shutil
import textwrap
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version

from benchmarks.peers import machine
from benchmarks.peers.environments import PLACES
from benchmarks.train_speed.measure import OURS, Result
from benchmarks.train_speed.task import Task
from regard.version import __version__

NONE = "–"
HEADER = [
    "system", "precision", "threads", "target tok/s", "all tok/s", "× best peer", "parameters", "peak MiB",
    "held-out loss",
]  # fmt: skip


def facts(task: Task, corpus: str, command: str, load: float | None) -> dict:
    timed = task.timed
    return {
        "command": command,
        "corpus": corpus,
        "labels": sum(pairs.labels for pairs in timed),
        "tokens": sum(pairs.tokens for pairs in timed),
        "padding": 1 - sum(pairs.tokens for pairs in timed) / sum(pairs.padded for pairs in timed),
        "steps": len(task.learn),
        "batches": [
            f"{len(pairs.source)}×({pairs.source.shape[1]}, {pairs.target.shape[1] - 1})" for pairs in timed
        ],
        "cpu": machine.cpu_name(),
        "cores": os.cpu_count(),
        "load": load,
        "regard": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "peers": [package for packages in PLACES.values() for package in packages if "==" in package],
    }


# -------------------------------------------------------------------------------------------------- the table
def rows(results: list[Result], facts: dict) -> tuple[list[list[str]], list[str]]:
    """The cells, and a footnote for every system that has no numbers or is not quite the same model."""
    notes: list[str] = []
    cells = [_cells(result, results, facts, notes) for result in results]
    return cells, notes


def _cells(result: Result, results: list[Result], facts: dict, notes: list[str]) -> list[str]:
    mark = ""
    note = f"{result.system}: {result.trouble or result.note}"
    if result.trouble or result.note:
        notes += [] if note in notes else [note]
        mark = f" [{notes.index(note) + 1}]"
    rate, peer = result.rate(facts["labels"]), best_peer(results, result.precision, facts)
    against = NONE if rate is None or peer is None else f"{rate / peer:.2f}"
    learned = NONE if result.after is None else f"{result.before:.2f} → {result.after:.2f}"
    return [
        result.system + mark,
        result.precision,
        _threads(result, facts),
        _number(rate),
        _number(result.rate(facts["tokens"])),
        against,
        NONE if result.parameters is None else f"{result.parameters / 1e6:.2f} M",
        NONE if result.peak is None else f"{result.peak / 2**20:.0f}",
        learned,
    ]


def best_peer(results: list[Result], precision: str, facts: dict) -> float | None:
    rates = [r.rate(facts["labels"]) for r in results if r.system != OURS and r.precision == precision]
    return max((rate for rate in rates if rate is not None), default=None)


def _threads(result: Result, facts: dict) -> str:
    """The best number of threads, and what the others gave."""
    if result.threads is None:
        return NONE
    others = [
        f"{n}: {_number(result.rate(facts['labels'], n))}"
        for n in sorted(result.seconds)
        if n != result.threads
    ]
    return f"{result.threads}" + (f" ({', '.join(others)})" if others else "")


def _number(x: float | None) -> str:
    return NONE if x is None else f"{x:,.0f}".replace(",", " ")


def legend(results: list[Result], facts: dict, notes: list[str], task: Task) -> list[str]:
    s = task.sizes
    lines = [
        f"Transformer, {s.layers}+{s.layers} layers, post-norm, width {s.dim}, {s.heads} heads, "
        f"inner {s.inner}, ReLU, sinusoidal positions, one table of {s.vocabulary} byte-level BPE tokens for "
        f"source, target and output; dropout {s.dropout} on embeddings and residual branches, "
        f"label smoothing {s.smoothing}, Adam, gradients clipped at {s.clip}.",
        f"Batches of {facts['corpus']}, the same token ids for all: sentences × (source, target) "
        f"{', '.join(facts['batches'])}; {facts['padding']:.1%} padding, which is not counted as tokens.",
        "tok/s: of whole training steps (loss, gradients, clipping, update), each batch at its median over "
        "the passes, all systems in turns, each with the number of threads it is fastest with (in brackets: "
        "with the other number). × best peer: of the same precision.",
        f"held-out loss: nats per target token before and after {facts['steps']} steps on the same batches "
        "in the same order. peak MiB: the most the whole process held, interpreter and libraries included.",
    ]
    lines += [f"[{i}] {note}." for i, note in enumerate(notes, 1)]
    return [*lines, *summary(results, facts)]


def summary(results: list[Result], facts: dict) -> list[str]:
    note = []
    for precision in dict.fromkeys(r.precision for r in results):
        peer = best_peer(results, precision, facts)
        our_rate = next(
            (r.rate(facts["labels"]) for r in results if r.system == OURS and r.precision == precision), None
        )
        if peer is not None and our_rate is not None:
            note.append(f"{our_rate / peer:.2f} × the best peer in {precision}")
    our_rate, peer = (_at_best(results, facts, ours) for ours in (True, False))
    if our_rate is not None and peer is not None:
        note.append(
            f"{our_rate[0] / peer[0]:.2f} × where each has its best precision "
            f"(regard {our_rate[1]}, {peer[2]} {peer[1]})"
        )
    return [f"regard trains at {'; '.join(note)}."] if note else []


def _at_best(results: list[Result], facts: dict, ours: bool) -> tuple[float, str, str] | None:
    """(target tokens/s, precision, system) of the fastest there is."""
    timed = [(r.rate(facts["labels"]), r.precision, r.system) for r in results if (r.system == OURS) == ours]
    return max(
        ((rate, precision, system) for rate, precision, system in timed if rate is not None), default=None
    )


# ---------------------------------------------------------------------------------------------- tables
def described(facts: dict) -> str:
    load = "" if facts["load"] is None else f", load {facts['load']:.1f} at the start"
    peers = ", ".join(facts["peers"])
    versions = f"regard {facts['regard']}, torch {facts['torch']}, {peers}, Python {facts['python']}"
    return f"{facts['cpu']}, {facts['cores']} cores{load}; {versions}; {facts['date']}"


def plain_text(results: list[Result], facts: dict, task: Task) -> str:
    cells, notes = rows(results, facts)
    widths = [max(len(row[i]) for row in [HEADER, *cells]) for i in range(len(HEADER))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [HEADER, *cells]
    ]
    lines.insert(1, "  ".join("─" * width for width in widths))
    wide = max(shutil.get_terminal_size().columns, 80)
    below = [part for line in legend(results, facts, notes, task) for part in _wrapped(line, wide)]
    return "\n".join([described(facts), "", *lines, "", *below])


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent="  ")


def markdown(results: list[Result], facts: dict, task: Task) -> str:
    cells, notes = rows(results, facts)
    lines = ["# Training throughput", "", f"`{facts['command']}`", "", described(facts), ""]
    lines += ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    lines += ["", *(f"- {line}" for line in legend(results, facts, notes, task))]
    return "\n".join(lines) + "\n"


def as_json(results: list[Result], facts: dict, task: Task) -> str:
    found = [
        asdict(r) | {"rate": r.rate(facts["labels"]), "rate_all": r.rate(facts["tokens"])} for r in results
    ]
    return json.dumps(
        {"facts": facts, "sizes": asdict(task.sizes), "results": found}, ensure_ascii=False, indent=1
    )
