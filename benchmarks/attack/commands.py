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
    """Build an index, or resume one that was interrupted."""
    resume = ["--add"] if (folder / "index.json").is_file() else []
    return ["index", str(texts), "-o", str(folder), "-m", str(model), "--threads", "1", *resume]


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


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int | None  # None: it was still running at the timeout
    output: str
    errors: str


class Launcher:
    """Run command lines one after the other, each in its own process that can be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, count()
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
        self.run(["--version"])  # waits until the imports of the launcher are done

    def start(self, args: list[str], timeout: float = 120) -> Child:
        """Start a command and return its process."""
        base = self._folder / f"command-{next(self._numbers)}"
        order = {"args": args, "cwd": str(self._folder), "output": f"{base}.out", "errors": f"{base}.err"}
        return Child(self._server, order, int(timeout))

    def run(self, args: list[str]) -> CommandResult:
        """Run a command to its end."""
        child = self.start(args)
        code = child.wait()
        return CommandResult(code, child.output.read_text(errors="replace"), errors(child))

    def close(self) -> None:
        """End the launcher process."""
        self._server.kill()
        self._server.communicate()


def errors(child: Child) -> str:
    """What a process wrote to standard error."""
    return child.output.with_suffix(".err").read_text(errors="replace")


@contextmanager
def launcher(folder: Path) -> Iterator[Launcher]:
    """A launcher for the block; commands run in `folder`."""
    started = Launcher(folder)
    try:
        yield started
    finally:
        started.close()
