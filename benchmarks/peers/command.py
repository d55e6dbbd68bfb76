"""Common to the command lines of all benchmarks: checked arguments and help text."""

from __future__ import annotations

import argparse
import shlex
import signal
from pathlib import Path
from typing import Any

from benchmarks.peers import machine
from benchmarks.peers.process import say


def parser(module: str, about: str, examples: str) -> argparse.ArgumentParser:
    """A parser that knows where the numbers go; the rest is added by the table."""
    made = argparse.ArgumentParser(
        f"python -m {module}", description=about, epilog=examples, allow_abbrev=False
    )
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--json", metavar="FILE", type=Path, help="write all numbers there")
    made.add_argument("--markdown", metavar="FILE", type=Path, help="write the table there too")
    return made


def parse(made: argparse.ArgumentParser, argv: list[str], **least: float) -> argparse.Namespace:
    """Parse the options. `least` gives lower bounds of numbers or lists; the folders of files must exist."""
    options = made.parse_args(argv)
    for name, fewest in least.items():
        given = getattr(options, name)
        found = min(given) if isinstance(given, list) else given
        if found is not None and found < fewest:
            made.error(f"--{name} must be at least {fewest}, got {found}")
    for path in (options.json, options.markdown):
        if path is not None and not path.resolve().parent.is_dir():
            made.error(f"the folder of {path} does not exist; make it first, the numbers would go nowhere")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` stops as Ctrl-C does
    return options


def busy() -> float | None:
    """The load of the machine, with a warning if it is too high for reliable times."""
    load = machine.load()
    if load and load > 0.5:
        say(f"the machine is busy (load {load:.1f}): expect noise, most of all with several threads")
    return load


def keep(options: argparse.Namespace, **texts: Any) -> None:
    """Write the `json` and `markdown` texts to the requested files."""
    for name, text in texts.items():
        if (path := getattr(options, name)) is not None:
            path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def line(module: str, argv: list[str]) -> str:
    """The command line without this machine's folders."""
    return shlex.join(["python", "-m", module, *(Path(x).name if Path(x).is_absolute() else x for x in argv)])
