"""The parent's side of a worker process: write a command as a line of JSON, read the answer as another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.peers.environments import Environment

ROOT = Path(__file__).resolve().parents[2]


class WorkerError(Exception):
    """A system failed: its environment is missing, its worker reported an error, or the worker ended."""


class WorkerProcess:
    """`python -m module *arguments folder` in an environment.

    Its standard error goes to a file in the folder. Raise WorkerError if the environment has no interpreter.
    """

    def __init__(
        self, module: str, arguments: list[str], environment: Environment, folder: Path, threads: int
    ) -> None:
        if environment.python is None:
            raise WorkerError(environment.failure)
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads), "PYTHONUTF8": "1"}
        variables |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
        self.name = " ".join(arguments)
        log_file = folder / (self.name.replace(" ", "-") + ".txt")
        self.errors = log_file.open("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [environment.python, "-m", module, *arguments, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, encoding="utf-8",
            env=variables, cwd=ROOT,
        )  # fmt: skip

    def call(self, method: str, **arguments: Any) -> dict:
        """Call a method of the worker and return its answer; raise WorkerError if it failed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"method": method, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise WorkerError(self._exit_text())
        answer = json.loads(line)
        if "failure" in answer:
            raise WorkerError(answer["failure"])
        return answer

    def _exit_text(self) -> str:
        """The exit code and the last line of standard error."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        return f"ended with code {code}: {lines[-1][:200] if lines else 'no error output'}"

    def close(self) -> None:
        """End the worker: its loop stops when its input does; after ten seconds it is killed."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def log(text: str) -> None:
    """Print progress to standard error, apart from the table on standard output."""
    print(text, file=sys.stderr, flush=True)
