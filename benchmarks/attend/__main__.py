"""The command line: choose cases, run them, print the table."""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import torch

from benchmarks.attend import overhead, report
from benchmarks.attend.cases import Case, choose
from benchmarks.attend.measure import ON_GPU, OURS, QUICK, Effort, Row, run_case
from benchmarks.peers import command
from benchmarks.peers.process import log

NAME = "benchmarks.attend"
ABOUT = """\
Time, error and memory of regard.attend beside its peers, one table over energies, masks, biases, lengths,
forward and training.

Peers on a CPU: torch's SDPA, compiled Flex, torch.compile of the plain formula, x-transformers, Keras.
Peers on a GPU: SDPA with flash, SDPA with cuDNN, Flex; for the additive energy and for normalisers
other than softmax the plain formula, eager and compiled.
A peer that is not installed is skipped and named (pip install x-transformers keras).

Every system first shows that it agrees with a float64 reference, then all take turns, round after round.
The ratio, best peer's time over regard's, is at least 1 where regard is fastest.
Ctrl-C stops and prints what was measured so far."""

EXAMPLES = """\
examples:
  python -m benchmarks.attend --quick                      eight cases, a few minutes
  python -m benchmarks.attend --only "window 256"          the cases with that in their name (see --list)
  python -m benchmarks.attend --only additive --quick      the same cases with fewer rounds
  python -m benchmarks.attend --markdown docs/bench.md     everything, as a page; about an hour on two cores
  python -m benchmarks.attend --overhead                   what small calls cost beyond their kernel
  PYTHONPATH=src python -m benchmarks.attend --device cuda"""


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = command.make_parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    parser.add_argument(
        "--quick", action="store_true", help="few cases, fewer rounds; with --only, fewer rounds only"
    )
    parser.add_argument(
        "--only", metavar="SUBSTRING", help="run only the cases whose name contains this (see --list)"
    )
    parser.add_argument(
        "--overhead", action="store_true", help="measure what small calls cost beyond their kernel, and stop"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument(
        "--threads",
        metavar="N",
        type=int,
        help=f"CPU threads of torch (default {torch.get_num_threads()})",
    )
    options = command.parse_options(parser, argv, threads=1)
    if options.device == "cuda" and not options.list and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; leave --device out to run on the CPU")
    return options


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    if options.overhead:
        return overhead.run(options.device)
    cases = choose(options.device, options.quick, options.only)
    if not cases:
        print(f"no case has {options.only!r} in its name; --list names them", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    warnings.filterwarnings("ignore")  # the peers' own, of which there are many
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    effort = QUICK if options.quick else ON_GPU if options.device == "cuda" else Effort()
    facts = report.facts(options.device, command.command_line(NAME, argv), command.load_average())
    rows, missing, finished = run_all(cases, effort)
    if rows:
        report.print_table(rows, facts, missing)
        command.save_results(
            options, json=report.as_json(rows, facts, missing), markdown=report.markdown(rows, facts, missing)
        )
    # A peer that fails gets a footnote. A wrong result of any system, or a failure of regard, is an error.
    has_errors = any(
        r.disagrees or (name == OURS and r.failure) for row in rows for name, r in row.results.items()
    )
    return 130 if not finished else int(has_errors)


def run_all(cases: list[Case], effort: Effort) -> tuple[list[Row], dict[str, str], bool]:
    """Return the rows, the peers that are not installed, and whether all cases were run."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    start = time.monotonic()
    for number, case in enumerate(cases, 1):
        try:
            row = run_case(case, effort, missing)
        except KeyboardInterrupt:
            print(f"\nstopped in case {number} of {len(cases)}", file=sys.stderr)
            return rows, missing, False
        rows.append(row)
        elapsed = time.monotonic() - start
        left = elapsed / number * (len(cases) - number)
        log(f"[{number}/{len(cases)}] {minutes(elapsed)}, about {minutes(left)} left: {summary(row)}")
    return rows, missing, True


def summary(row: Row) -> str:
    """One line of progress: regard's time, the best peer's and their ratio."""
    if row.results[OURS].failure is not None:
        return f"{row.case.name}: regard {row.results[OURS].failure}"
    line = f"{row.case.name}: regard ({row.kernel}) {report.ms(row.results[OURS].seconds)} ms"
    if row.best_peer is None:
        return f"{line}, no peer"
    return (
        f"{line}, {row.best_peer} {report.ms(row.results[row.best_peer].seconds)} ms, ratio {row.ratio:.2f}"
    )


def minutes(seconds: float) -> str:
    """Seconds as minutes:seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


if __name__ == "__main__":
    sys.exit(main())
