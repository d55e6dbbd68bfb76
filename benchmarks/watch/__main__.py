"""The command line: choose lengths, run them, print the table."""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import replace

import torch

from benchmarks.attend.report import facts as attend_facts
from benchmarks.peers import command
from benchmarks.watch import long, report
from benchmarks.watch.measure import Row, run_length
from benchmarks.watch.model import SHAPES, build_model

NAME = "benchmarks.watch"
ABOUT = """\
What it costs to see attention in a Llama-shaped model (random weights, through transformers): one head of one
layer, and the column sums of all layers, as a ratio to the plain forward pass.

Systems: regard.watch; the same model with eager attention and output_attentions=True; attnread if installed,
which reads weights through identity values, one forward pass per head-dim tokens.
--long: one long sequence, one layer watched by only=; its rows, top keys, column sums and entropy, checked in
float64."""

EXAMPLES = """\
examples:
  python -m benchmarks.watch --quick                       two short lengths, a minute
  python -m benchmarks.watch --threads 1                   on a CPU
  PYTHONPATH=src python -m benchmarks.watch --device cuda
  PYTHONPATH=src python -m benchmarks.watch --device cuda --long
  python -m benchmarks.watch --attention regard            the model attends through regard.huggingface"""

LENGTHS = {"cpu": (128, 512, 2048), "cuda": (512, 2048, 8192)}
QUICK = {"cpu": (128, 512), "cuda": (512, 2048)}
MAX_BYTES = {"cpu": 4 << 30, "cuda": 64 << 30}


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = command.make_parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    parser.add_argument("--quick", action="store_true", help="two short lengths and fewer rounds")
    parser.add_argument("--long", action="store_true", help="watch one layer on one long sequence, and stop")
    parser.add_argument(
        "--attention",
        choices=("sdpa", "regard"),
        default="sdpa",
        help="attention implementation of the model (default sdpa)",
    )
    parser.add_argument(
        "--tokens",
        metavar="N",
        type=int,
        nargs="+",
        help="sequence lengths; with --long only the first is used (default 32768)",
    )
    parser.add_argument("--layers", metavar="N", type=int, help="layers of the model (default 4)")
    parser.add_argument(
        "--threads", metavar="N", type=int, help=f"CPU threads of torch (default {torch.get_num_threads()})"
    )
    options = command.parse_options(parser, argv, threads=1, tokens=64, layers=1)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; leave --device out to run on the CPU")
    return options


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    warnings.filterwarnings("ignore")  # the peers' own
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    shape = SHAPES[options.device]
    shape = shape if options.layers is None else replace(shape, layers=options.layers)
    try:
        model = build_model(shape, options.device, options.attention)
    except ImportError as error:
        print(
            f"the model needs transformers, and --attention regard needs regard.huggingface: {error}",
            file=sys.stderr,
        )
        return 2
    facts = attend_facts(options.device, command.command_line(NAME, argv), command.load_average())
    if options.long:
        results = long.measure(model, shape, options.tokens[0] if options.tokens else 32768, options.device)
        print(long.format_results(results, shape))
        command.save_results(
            options,
            json=report.as_json([], shape, facts, results),
            markdown=long.format_results(results, shape),
        )
        return 0
    rows: list[Row] = []
    lengths = options.tokens or (QUICK if options.quick else LENGTHS)[options.device]
    with torch.no_grad():
        for T in lengths:
            print(f"T = {T} …", file=sys.stderr, flush=True)
            rows += run_length(
                model, shape, T, options.device, 6.0 if options.quick else 40.0, MAX_BYTES[options.device]
            )
    print(report.text(rows, shape, facts))
    command.save_results(
        options, json=report.as_json(rows, shape, facts), markdown=report.markdown(rows, shape, facts)
    )
    return int(any(row.system == "regard.watch" and row.failure is not None for row in rows))


if __name__ == "__main__":
    sys.exit(main())
