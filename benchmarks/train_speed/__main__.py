"""The command line: make the task, train with every system, print the table."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from benchmarks.peers import command, environments
from benchmarks.peers.environments import Place
from benchmarks.peers.process import say
from benchmarks.train_speed import corpus, measure, report
from benchmarks.train_speed.measure import OURS, Result
from benchmarks.train_speed.task import Sizes, make

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

HOMES = {"Joey NMT": "joeynmt", "HF Marian": "transformers", "x-transformers": "transformers"}


def arguments(argv: list[str]) -> argparse.Namespace:
    cores = os.cpu_count() or 1
    parser = command.parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="time for each system and number of threads (default 60)"
    )
    parser.add_argument(
        "--steps", type=int, default=60, help="steps that each learns before it is timed (default 60)"
    )
    parser.add_argument(
        "--tokens", type=int, default=4096, help="padded tokens a side of a batch (default 4096)"
    )
    parser.add_argument(
        "--batches", type=int, default=4, help="batches that are timed, from short to long (default 4)"
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=sorted({1, min(2, cores)}), help="default 1 and 2"
    )
    parser.add_argument(
        "--precision", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"]
    )
    parser.add_argument(
        "--dropout", type=float, default=Sizes().dropout, help="default 0.1; at 0 all are one model"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(OURS, *HOMES),
        metavar="SYSTEM",
        help="these only: " + ", ".join((OURS, *HOMES)),
    )
    parser.add_argument(
        "--profile", type=int, metavar="ROWS", help="print the profiler's longest rows instead of timing"
    )
    return command.parse(parser, argv, seconds=0, steps=0, tokens=64, batches=1, threads=1)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    name, train, held_out = corpus.read()
    task = make(
        train,
        held_out,
        replace(Sizes(), dropout=options.dropout),
        options.tokens,
        options.steps,
        options.batches,
    )
    places = homes(options.only or (OURS, *HOMES))
    if options.profile is not None:
        for precision in options.precision:
            measure.profile(task, places, precision, max(options.threads), options.profile)
        return 0
    facts = report.facts(task, name, command.line(NAME, argv), command.busy())
    results: list[Result] = []
    finished = True
    for precision in options.precision:
        try:
            results += measure.run(task, places, precision, sorted(set(options.threads)), options.seconds)
        except KeyboardInterrupt:
            say(f"stopped in {precision}")
            finished = False
            break
    if results:
        print(report.plain_text(results, facts, task))
        command.keep(
            options, json=report.as_json(results, facts, task), markdown=report.markdown(results, facts, task)
        )
    # A peer that fails gets a footnote; a failure of regard is an error.
    return 130 if not finished else int(any(r.system == OURS and r.trouble for r in results))


def homes(names: list[str] | tuple[str, ...]) -> dict[str, Place]:
    """The environment of each system, one for both packages of Hugging Face's kin."""
    made = {
        home: environments.peer(home) for home in dict.fromkeys(HOMES[name] for name in names if name != OURS)
    }
    return {name: environments.here() if name == OURS else made[HOMES[name]] for name in names}


if __name__ == "__main__":
    sys.exit(main())
