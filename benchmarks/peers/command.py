"""Shared by the command lines of the benchmarks: options, their checks, and the files of results."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import machine
from benchmarks.peers.process import log
from regard.errors import RegardError

BUSY = 0.5  # load average above which times are noisy


def make_parser(module: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser with --json and --markdown; each benchmark adds its own options."""
    parser = argparse.ArgumentParser(
        f"python -m {module}",
        description=description,
        epilog=examples,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all measurements here, as JSON")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table here, as Markdown")
    return parser


def parse_options(parser: argparse.ArgumentParser, argv: list[str], **minimums: float) -> argparse.Namespace:
    """Parse and check options before anything is measured.

    `minimums` are lower bounds of numeric options; of an option with several values, of each value. The
    folders of --json and --markdown must exist: results would otherwise be lost at the end.
    """
    options = parser.parse_args(argv)
    for name, minimum in minimums.items():
        value = getattr(options, name)
        smallest = min(value) if isinstance(value, list) else value
        if smallest is not None and smallest < minimum:
            parser.error(f"--{name} must be at least {minimum}, got {smallest}")
    for path in (options.json, options.markdown):
        if path is not None and not path.resolve().parent.is_dir():
            parser.error(f"the folder of {path} does not exist; create it first")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` stops a benchmark as Ctrl-C does
    return options


def load_average() -> float | None:
    """The load average of the machine; log a warning if it is too high for reliable times."""
    load = machine.load_average()
    if load and load > BUSY:
        log(f"the machine is busy (load {load:.1f}): expect noise, most of all with several threads")
    return load


def save_results(options: argparse.Namespace, json: str, markdown: str) -> None:
    """Write the results to the files of --json and --markdown, where given."""
    for path, text in ((options.json, json), (options.markdown, markdown)):
        if path is not None:
            path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def command_line(module: str, argv: list[str]) -> str:
    """The command of a run, for its table; absolute paths are cut to their last part."""
    arguments = (Path(word).name if Path(word).is_absolute() else word for word in argv)
    return shlex.join(["python", "-m", module, *arguments])


def run(main: Callable[[], int | None]) -> None:
    """Call the main function of a benchmark and exit; a missing corpus or model is one sentence."""
    try:
        sys.exit(main())
    except RegardError as error:
        log(f"error: {error}")
        sys.exit(2)
