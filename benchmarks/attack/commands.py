"""The command lines of the soak run, and a way to run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.training.tiny import ROOT, Child, environment


def train(recipe: Path, run: Path) -> list[str]:
    return ["train", str(recipe), "--run", str(run), "--quiet"]


def resume(run: Path) -> list[str]:
    return ["resume", str(run), "--quiet"]


def index(texts: Path, folder: Path, model: Path) -> list[str]:
    """Build an index, or go on with one that was begun."""
    begun = ["--add"] if (folder / "index.json").is_file() else []
    return ["index", str(texts), "-o", str(folder), "-m", str(model), "--threads", "1", *begun]


def search(folder: Path) -> list[str]:
    return ["search", str(folder), "a b", "-k", "3"]


def on_file(verb: str, model: Path, source: Path, output: Path) -> list[str]:
    """`regard translate`, `classify` or `tag` of a file, resumable."""
    return [verb, "-i", str(source), "--model", str(model), "-o", str(output), "--quiet"]


def on_text(verb: str, model: Path, text: str) -> list[str]:
    """`regard translate`, `classify` or `tag` of one text."""
    return [verb, text, "--model", str(model)]


def recommend(model: Path) -> list[str]:
    return ["recommend", "--model", str(model), "--user", "u5", "-n", "2"]


def serve(model: Path) -> list[str]:
    return ["serve", str(model), "--port", "0"]


class Ended(NamedTuple):
    """How a command ended."""

    code: int | None  # None: it did not end in time
    output: str
    errors: str


class Launcher:
    """Run command lines one after the other, each in its own process that can be killed."""

    def __init__(self, place: Path) -> None:
        self._place, self._numbers = place, count()
        command = [sys.executable, "-m", "benchmarks.attack.launcher"]
        self._server = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.run(["--version"])  # its imports are done before anything is timed

    def start(self, args: list[str], timeout: float = 120) -> Child:
        base = self._place / f"command-{next(self._numbers)}"
        order = {"args": args, "cwd": str(self._place), "output": f"{base}.out", "errors": f"{base}.err"}
        return Child(self._server, order, int(timeout))

    def run(self, args: list[str]) -> Ended:
        """Run a command to its end."""
        child = self.start(args)
        code = child.wait()
        return Ended(code, child.output.read_text(errors="replace"), errors(child))

    def close(self) -> None:
        self._server.kill()
        self._server.communicate()


def errors(child: Child) -> str:
    """What a process wrote to standard error."""
    return child.output.with_suffix(".err").read_text(errors="replace")


@contextmanager
def launcher(place: Path) -> Iterator[Launcher]:
    found = Launcher(place)
    try:
        yield found
    finally:
        found.close()
