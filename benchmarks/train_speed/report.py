"""The table: on screen, as markdown and as JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from dataclasses import asdict

from benchmarks.peers import machine
from benchmarks.peers.environments import PACKAGES
from benchmarks.peers.tables import NONE, footnote, grouped, markdown_table, mebibytes
from benchmarks.train_speed.measure import OURS, Result
from benchmarks.train_speed.task import Task
from regard.version import __version__

HEADER = [
    "system", "precision", "threads", "target tok/s", "all tok/s", "× best peer", "parameters", "peak MiB",
    "held-out loss",
]  # fmt: skip


def facts(task: Task, corpus: str, command: str, load: float | None) -> dict:
    """Command, batches, machine and versions of a run."""
    timed = task.timed
    return {
        "command": command,
        "corpus": corpus,
        "labels": sum(pairs.labels for pairs in timed),
        "tokens": sum(pairs.tokens for pairs in timed),
        "padding": 1 - sum(pairs.tokens for pairs in timed) / sum(pairs.padded for pairs in timed),
        "steps": len(task.training),
        "batches": [
            f"{len(pairs.source)}×({pairs.source.shape[1]}, {pairs.target.shape[1] - 1})" for pairs in timed
        ],
        **machine.cpu_facts(load),
        "regard": __version__,
        "peers": [package for packages in PACKAGES.values() for package in packages if "==" in package],
    }


# -------------------------------------------------------------------------------------------------- the table
def rows(results: list[Result], facts: dict) -> tuple[list[list[str]], list[str]]:
    """The cells, and a footnote for every system that failed or differs from the others."""
    notes: list[str] = []
    cells = [_cells(result, results, facts, notes) for result in results]
    return cells, notes


def _cells(result: Result, results: list[Result], facts: dict, notes: list[str]) -> list[str]:
    mark = ""
    if result.failure or result.note:
        mark = " " + footnote(notes, f"{result.system}: {result.failure or result.note}")
    rate, peer = result.rate(facts["labels"]), best_peer(results, result.precision, facts)
    ratio = NONE if rate is None or peer is None else f"{rate / peer:.2f}"
    losses = NONE if result.after is None else f"{result.before:.2f} → {result.after:.2f}"
    return [
        result.system + mark,
        result.precision,
        _threads(result, facts),
        grouped(rate),
        grouped(result.rate(facts["tokens"])),
        ratio,
        NONE if result.parameters is None else f"{result.parameters / 1e6:.2f} M",
        mebibytes(result.peak),
        losses,
    ]


def best_peer(results: list[Result], precision: str, facts: dict) -> float | None:
    """Target tokens per second of the fastest peer in one precision."""
    rates = [r.rate(facts["labels"]) for r in results if r.system != OURS and r.precision == precision]
    return max((rate for rate in rates if rate is not None), default=None)


def _threads(result: Result, facts: dict) -> str:
    """The best number of threads and, in brackets, the rates with the other numbers."""
    if result.threads is None:
        return NONE
    others = [
        f"{n}: {grouped(result.rate(facts['labels'], n))}"
        for n in sorted(result.seconds)
        if n != result.threads
    ]
    return f"{result.threads}" + (f" ({', '.join(others)})" if others else "")


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
    """regard's speed as multiples of the best peer's."""
    ratios = []
    for precision in dict.fromkeys(r.precision for r in results):
        peer = best_peer(results, precision, facts)
        our_rate = next(
            (r.rate(facts["labels"]) for r in results if r.system == OURS and r.precision == precision), None
        )
        if peer is not None and our_rate is not None:
            ratios.append(f"{our_rate / peer:.2f} × the best peer in {precision}")
    our_rate, peer = (_fastest(results, facts, ours) for ours in (True, False))
    if our_rate is not None and peer is not None:
        ratios.append(
            f"{our_rate[0] / peer[0]:.2f} × where each has its best precision "
            f"(regard {our_rate[1]}, {peer[2]} {peer[1]})"
        )
    return [f"regard trains at {'; '.join(ratios)}."] if ratios else []


def _fastest(results: list[Result], facts: dict, ours: bool) -> tuple[float, str, str] | None:
    """Target tokens/s, precision and system of the fastest result, ours or the peers'."""
    timed = [(r.rate(facts["labels"]), r.precision, r.system) for r in results if (r.system == OURS) == ours]
    return max(
        ((rate, precision, system) for rate, precision, system in timed if rate is not None), default=None
    )


# ---------------------------------------------------------------------------------------------- tables
def described(facts: dict) -> str:
    peers = ", ".join(facts["peers"])
    versions = f"regard {facts['regard']}, torch {facts['torch']}, {peers}, Python {facts['python']}"
    return f"{machine.cpu_text(facts)}; {versions}; {facts['date']}"


def plain_text(results: list[Result], facts: dict, task: Task) -> str:
    cells, notes = rows(results, facts)
    widths = [max(len(row[i]) for row in [HEADER, *cells]) for i in range(len(HEADER))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [HEADER, *cells]
    ]
    lines.insert(1, "  ".join("─" * width for width in widths))
    columns = max(shutil.get_terminal_size().columns, 80)
    legend_lines = [part for line in legend(results, facts, notes, task) for part in _wrapped(line, columns)]
    return "\n".join([described(facts), "", *lines, "", *legend_lines])


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent="  ")


def markdown(results: list[Result], facts: dict, task: Task) -> str:
    cells, notes = rows(results, facts)
    lines = ["# Training throughput", "", f"`{facts['command']}`", "", described(facts), ""]
    lines += markdown_table(HEADER, cells)
    lines += ["", *(f"- {line}" for line in legend(results, facts, notes, task))]
    return "\n".join(lines) + "\n"


def as_json(results: list[Result], facts: dict, task: Task) -> str:
    rows = [
        asdict(r) | {"rate": r.rate(facts["labels"]), "rate_all": r.rate(facts["tokens"])} for r in results
    ]
    return json.dumps(
        {"facts": facts, "sizes": asdict(task.sizes), "results": rows}, ensure_ascii=False, indent=1
    )
