"""python -m benchmarks.conformance: the conformance suite on every installed attention library."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
import time
import warnings
from collections import Counter
from datetime import UTC, datetime

import torch

from benchmarks.conformance.peers import PEERS, Attention, peer
from regard.conformance import CLASSES, case, check
from regard.conformance.backends import KERNEL_BACKENDS, regard
from regard.version import __version__

# These functions run --cases divided by this number, because they compile each new shape.
CASE_DIVISORS = {"Flex": 33, "regard: flex": 20}
OURS = {"regard": regard} | {f"regard: {name}": backend for name, backend in KERNEL_BACKENDS.items()}


def main(argv: list[str] | None = None) -> int:
    names = [*PEERS, *OURS]
    parser = argparse.ArgumentParser("python -m benchmarks.conformance", description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=100, help="cases per class, default 100; Flex runs a fraction of them"
    )
    parser.add_argument(
        "--peer", action="append", metavar="NAME", help=f"only this function, repeatable: {'; '.join(names)}"
    )
    parser.add_argument(
        "--class",
        dest="classes",
        action="append",
        metavar="NAME",
        choices=list(CLASSES),
        help="only this class",
    )
    options = parser.parse_args(argv)
    unknown = [name for name in options.peer or () if name not in names]
    if unknown:
        parser.error(f"there is no function {unknown[0]!r}; choose one of {'; '.join(names)}")
    warnings.simplefilter("ignore")
    columns: dict[str, dict[str, Counter[str]]] = {}
    for name in options.peer or names:
        try:
            backend = OURS[name] if name in OURS else peer(name)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        count = max(1, options.cases // CASE_DIVISORS.get(name, 1))
        columns[name] = {x: _count(name, x, backend, count) for x in options.classes or CLASSES}
    print(_table(columns))
    return 0


def _count(name: str, kind: str, backend: Attention, cases: int) -> Counter[str]:
    """Count the verdicts of one function on one class of cases; print each wrong result at once."""
    counts, reasons, start = Counter[str](), Counter[str](), time.perf_counter()
    for seed in range(cases):
        outcome = check(case(kind, seed), backend)
        counts[outcome.verdict] += 1
        if outcome.verdict == "wrong":
            print(f"{name}: {outcome.case}: {outcome.detail}", file=sys.stderr)
        elif outcome.verdict == "refused":
            reasons[outcome.detail[:100]] += 1
    elapsed = time.perf_counter() - start
    print(
        f"{name}, {kind}: {_cell(counts)}, {elapsed:.0f} s {dict(reasons.most_common(2)) or ''}",
        file=sys.stderr,
        flush=True,
    )
    return counts


def _cell(counts: Counter[str]) -> str:
    parts = [f"**{counts['wrong']} wrong**"] if counts["wrong"] else []
    parts += [f"{counts[v]} {v}" for v in ("unspecified", "refused") if counts[v]]
    return " · ".join(([str(counts["pass"])] if counts["pass"] or not parts else []) + parts)


def _table(columns: dict[str, dict[str, Counter[str]]]) -> str:
    """A line of versions and two Markdown tables: other libraries, then regard's own backends."""
    packages = sorted({PEERS[name][1] for name in columns if name in PEERS} | {"torch"})
    versions = ", ".join(f"{x} {importlib.metadata.version(x)}" for x in packages)
    lines = [
        f"Python {platform.python_version()}, {versions}, regard {__version__}; "
        f"CPU, {torch.get_num_threads()} thread(s); {datetime.now(UTC):%Y-%m-%d}"
    ]
    for names in ([n for n in columns if n in PEERS], [n for n in columns if n in OURS]):
        if names:
            lines += ["", "| class | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
            lines += [
                f"| {x} | " + " | ".join(_cell(columns[n][x]) for n in names) + " |"
                for x in columns[names[0]]
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
