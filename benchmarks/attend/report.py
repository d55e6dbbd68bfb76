"""The table: on screen, as markdown and as JSON."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch

import regard
from benchmarks.attend.measure import OURS, Row
from benchmarks.peers.machine import cpu_name
from benchmarks.peers.tables import NONE, footnote


# ------------------------------------------------------------------------------------------------- one number
def ms(seconds: float | None) -> str:
    """Milliseconds with about three digits."""
    if seconds is None:
        return NONE
    x = seconds * 1000
    return f"{x:.3f}" if x < 1 else f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def short(x: float | None) -> str:
    """An error with one digit."""
    return NONE if x is None else f"{x:.0e}"


def mib(x: float | None) -> str:
    """Bytes in MiB; below 10 MiB with one decimal."""
    return NONE if x is None else f"{x / 2**20:.1f}" if x < 10 * 2**20 else f"{x / 2**20:.0f}"


def tflops(row: Row, name: str | None) -> str:
    """TFLOP/s of one system."""
    seconds = None if name is None else row.results[name].seconds
    return NONE if row.flops is None or seconds is None else f"{row.flops / seconds / 1e12:.0f}"


# -------------------------------------------------------------------------------------------------- the table
def table(rows: list[Row], device: str) -> tuple[list[str], list[list[str]], list[str]]:
    """The header, the cells and the footnotes; a column for each peer with a result."""
    peers = list(dict.fromkeys(name for row in rows for name in row.results if name != OURS))
    notes: list[str] = []
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("case", lambda r: r.case.description),
        ("T", lambda r: str(r.case.T)),
        ("mode", lambda r: r.case.mode),
        ("regard ms", lambda r: _time(r, OURS, notes)),
        *((f"{peer} ms", lambda r, peer=peer: _time(r, peer, notes)) for peer in peers),
        ("ratio", lambda r: NONE if r.ratio is None else f"{r.ratio:.2f}"),
        ("kernel", lambda r: r.kernel),
    ]
    if device == "cuda":
        columns += [
            ("TFLOP/s", lambda r: tflops(r, OURS)),
            ("peer TFLOP/s", lambda r: tflops(r, r.best_peer)),
        ]
    columns += [
        ("error", lambda r: short(r.results[OURS].error)),
        ("peer error", lambda r: short(_of_best_peer(r, "error"))),
        ("MiB", lambda r: mib(r.results[OURS].memory)),
        ("peer MiB", lambda r: mib(_of_best_peer(r, "memory"))),
    ]
    cells = [[cell(row) for _, cell in columns] for row in rows]
    return [title for title, _ in columns], cells, notes


def _of_best_peer(row: Row, field: str) -> float | None:
    return None if row.best_peer is None else getattr(row.results[row.best_peer], field)


def _time(row: Row, name: str, notes: list[str]) -> str:
    """The time of a system; – if it cannot run the case; a footnote if it failed."""
    result = row.results.get(name)
    if result is None:
        return NONE
    if result.failure is None:
        return ms(result.seconds) + ("*" if name == row.best_peer else "")
    return footnote(notes, f"{name}: {result.failure}")


def legend(rows: list[Row], facts: dict, missing: dict[str, str]) -> list[str]:
    """What the columns mean, and which peers were skipped."""
    cpu = facts["device"] == "cpu"
    sizes = "B=4, H=8, D=64, float32; additive and one head: B=8, H=1, D=128"
    sizes = (
        sizes
        if cpu
        else "B=4, H=16, D=128, bfloat16 (sparsemax, entmax: float32); additive: B=64, H=1, D=256, float32"
    )
    memory = "the system's high-water mark of resident memory" if cpu else "torch's allocator"
    lines = [
        f"Sizes: {sizes}. Times are medians in milliseconds, all systems in one process and in turns. "
        "Compiling is not counted, nor are the peers' dense masks, fixed biases and block masks, "
        "which are made before.",
        "ratio: time of the best peer (marked *) over regard's; at least 1 where regard is fastest.",
        "error: the worst of output and, when training, gradients, max |x − truth| / max |truth|, the truth "
        'in float64 by kernel="reference" (from T=4096 on, of the first sequence\'s output). '
        "'peer' is the best peer.",
        f"MiB: peak beyond the inputs in one warm call, output and gradients included, by {memory}.",
        f"– : the peer has no such thing{' (Flex has no backward pass on a CPU)' if cpu else ''}, "
        "or is not installed.",
    ]
    if not cpu:
        lines.append(
            "TFLOP/s: 4·D per head and pair the mask leaves (half of T² for causal), times 3.5 for training."
        )
        lines.append("x-transformers and Keras, which call torch's attention, are measured on the CPU only.")
    lines += [f"{name} was skipped: {reason}." for name, reason in missing.items()]
    return [*lines, *summary(rows)]


def summary(rows: list[Row]) -> list[str]:
    """In how many rows regard is at least as fast as the best peer, and the range of the ratios."""
    ratios = sorted(row.ratio for row in rows if row.ratio is not None)
    if not ratios:
        return []
    faster = sum(ratio >= 1 for ratio in ratios)
    text = f"regard is at least as fast as the best peer in {faster} of {len(ratios)} rows"
    median = statistics.median(ratios)
    return [f"{text}; ratio {ratios[0]:.2f} to {ratios[-1]:.2f}, median {median:.2f}."]


# ---------------------------------------------------------------------------------------------- tables
def print_table(rows: list[Row], facts: dict, missing: dict[str, str]) -> None:
    header, cells, notes = table(rows, facts["device"])
    print(described(facts))
    try:
        _print_rich(header, cells)
    except ImportError:
        print(plain_text(header, cells))
    for number, note in enumerate(notes, 1):
        print(f"[{number}] {note}")
    print("\n".join(legend(rows, facts, missing)))


def _print_rich(header: list[str], cells: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rich_table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in header:
        rich_table.add_column(
            Text(title.replace(" ", "\n")), justify="left" if _is_text(title) else "right", no_wrap=True
        )
    for row in cells:
        rich_table.add_row(*(Text(cell) for cell in row))
    width = Console(width=10_000).measure(rich_table).maximum  # wider than the terminal: never cut a number
    Console(width=width).print(rich_table)


def plain_text(header: list[str], cells: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *cells]) for i in range(len(header))]

    def line(row: list[str]) -> str:
        return "  ".join(
            c.ljust(w) if _is_text(t) else c.rjust(w) for c, w, t in zip(row, widths, header, strict=True)
        ).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, cells)])


def _is_text(title: str) -> bool:
    return title in ("case", "mode", "kernel")


def markdown(rows: list[Row], facts: dict, missing: dict[str, str]) -> str:
    header, cells, notes = table(rows, facts["device"])
    lines = [
        "# The operator beside its peers",
        "",
        f"Made by `{facts['command']}`.",
        "",
        described(facts),
        "",
    ]
    lines += [
        _pipes(header),
        _pipes([":--" if _is_text(t) else "--:" for t in header]),
        *map(_pipes, cells),
        "",
    ]
    lines += [f"\\[{number}\\] {note.replace('|', '/')}  " for number, note in enumerate(notes, 1)] + (
        [""] if notes else []
    )
    lines += [f"- {line}" for line in legend(rows, facts, missing)]
    return "\n".join(lines) + "\n"


def _pipes(row: list[str]) -> str:
    return (
        "| "
        + " | ".join(cell.replace("|", "/").replace("[", "\\[").replace("]", "\\]") for cell in row)
        + " |"
    )


def as_json(rows: list[Row], facts: dict, missing: dict[str, str]) -> str:
    return json.dumps(
        {**facts, "skipped": missing, "rows": [_row_as_dict(row) for row in rows]},
        indent=1,
        ensure_ascii=False,
    )


def _row_as_dict(row: Row) -> dict:
    case = {name: value for name, value in vars(row.case).items() if name != "quick"} | {
        "dtype": str(row.case.dtype)
    }
    results = {
        name: {
            "ms": r.seconds and r.seconds * 1000,
            "fastest_ms": min(r.times) * 1000 if r.times else None,
            "slowest_ms": max(r.times) * 1000 if r.times else None,
            "rounds": len(r.times),
            "error": r.error,
            "memory_bytes": r.memory,
            "tflops": row.flops / r.seconds / 1e12 if row.flops and r.seconds else None,
            "failure": r.failure,
        }
        for name, r in row.results.items()
    }
    return {
        "name": row.case.name,
        "case": case,
        "kernel": row.kernel,
        "best_peer": row.best_peer,
        "ratio": row.ratio,
        "systems": results,
    }


# ---------------------------------------------------------------------------------------------- facts
def facts(device: str, command: str, load: float | None) -> dict:
    """Command, machine, versions and date of a run; the first keys of its JSON."""
    return {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": device,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "load": load,  # before the measurements
        "python": platform.python_version(),
        "versions": {"regard": regard.__version__}
        | {name: _version(name) for name in ("torch", "x-transformers", "keras")},
    }


def described(facts: dict) -> str:
    """The facts as one line."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    where = facts["gpu"] or f"{facts['cpu']}, {facts['threads']} thread{'s' * (facts['threads'] > 1)}"
    return f"{where}; {versions}, Python {facts['python']}; {facts['date']}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
