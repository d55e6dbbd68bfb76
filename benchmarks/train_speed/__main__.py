"""The command line: build the task, measure every system, print the table."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from benchmarks.peers import command
from benchmarks.peers.environments import Environment, own_environment, peer_environment
from benchmarks.peers.process import log
from benchmarks.train_speed import corpus, measure, report
from benchmarks.train_speed.measure import OURS, Result
from benchmarks.train_speed.task import Sizes, make_task

NAME = "benchmarks.train_speed"
ABOUT = """\
Tokens per second of training, forward, backward and update, of the same Transformer on the same batches:
regard, Joey NMT, Hugging Face Marian and x-transformers, on the CPU.

The peers are installed on the first run, each with pip into a virtual environment in the cache (REGARD_CACHE,
otherwise ~/.cache/regard), with the torch that regard uses. One that cannot be installed or fails is named in
the table. Ctrl-C stops and prints the precisions that were finished."""

EXAMPLES = """\
examples:
  python -m benchmarks.train_speed                                  everything; half an hour on two cores
  python -m benchmarks.train_speed --seconds 5 --steps 0            a quick look
  python -m benchmarks.train_speed --only "HF Marian" --threads 1   regard and one peer
  python -m benchmarks.train_speed --profile 25 --precision float32 where the time of one step goes
  python -m benchmarks.train_speed --markdown docs/train_speed.md"""

ENVIRONMENTS = {"Joey NMT": "joeynmt", "HF Marian": "transformers", "x-transformers": "transformers"}


def arguments(argv: list[str]) -> argparse.Namespace:
    cores = os.cpu_count() or 1
    parser = command.make_parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="seconds to time each system with each number of threads (default 60)",
    )
    parser.add_argument(
        "--steps", type=int, default=60, help="training steps of each system before it is timed (default 60)"
    )
    parser.add_argument(
        "--tokens", type=int, default=4096, help="padded tokens of a batch on each side (default 4096)"
    )
    parser.add_argument(
        "--batches", type=int, default=4, help="number of timed batches, from short to long (default 4)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=sorted({1, min(2, cores)}),
        help="numbers of CPU threads to try (default 1 2)",
    )
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=("float32", "bfloat16"),
        default=["float32", "bfloat16"],
        help="float32, or autocast to bfloat16 (default both)",
    )
    parser.add_argument(
        "--dropout",
        type=float,
        default=Sizes().dropout,
        help="dropout rate (default 0.1); the systems are most alike with 0",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(OURS, *ENVIRONMENTS),
        metavar="SYSTEM",
        help="systems to measure (default all): " + ", ".join((OURS, *ENVIRONMENTS)),
    )
    parser.add_argument(
        "--profile", type=int, metavar="ROWS", help="print the profiler's longest rows instead of timing"
    )
    return command.parse_options(parser, argv, seconds=0, steps=0, tokens=64, batches=1, threads=1)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    name, train, held_out = corpus.read_corpus()
    task = make_task(
        train,
        held_out,
        replace(Sizes(), dropout=options.dropout),
        options.tokens,
        options.steps,
        options.batches,
    )
    environments = environments_of(options.only or (OURS, *ENVIRONMENTS))
    if options.profile is not None:
        for precision in options.precision:
            measure.profile(task, environments, precision, max(options.threads), options.profile)
        return 0
    facts = report.facts(task, name, command.command_line(NAME, argv), command.load_average())
    results: list[Result] = []
    finished = True
    for precision in options.precision:
        try:
            results += measure.run(
                task, environments, precision, sorted(set(options.threads)), options.seconds
            )
        except KeyboardInterrupt:
            log(f"stopped in {precision}")
            finished = False
            break
    if results:
        print(report.plain_text(results, facts, task))
        command.save_results(
            options, json=report.as_json(results, facts, task), markdown=report.markdown(results, facts, task)
        )
    # A peer that fails gets a footnote; a failure of regard is an error.
    return 130 if not finished else int(any(r.system == OURS and r.failure for r in results))


def environments_of(names: list[str] | tuple[str, ...]) -> dict[str, Environment]:
    """The environment of each system; HF Marian and x-transformers share one."""
    names_of_peers = dict.fromkeys(ENVIRONMENTS[name] for name in names if name != OURS)
    peers = {environment: peer_environment(environment) for environment in names_of_peers}
    return {name: own_environment() if name == OURS else peers[ENVIRONMENTS[name]] for name in names}


if __name__ == "__main__":
    sys.exit(main())
