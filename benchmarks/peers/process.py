"""The parent's side of a worker process: one line of JSON per command, one per answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import Place

ROOT = Path(__file__).resolve().parents[2]


class Failed(Exception):
    """A worker reported, or showed by exiting, that its system failed."""


class Process:
    """One worker, `python -m module *arguments folder`. Its other output goes to a file in the folder."""

    def __init__(self, module: str, arguments: list[str], place: Place, folder: Path, threads: int) -> None:
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads), "PYTHONUTF8": "1"}
        environment |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
        self.name = " ".join(arguments)
        self.errors = (folder / (self.name.replace(" ", "-") + ".txt")).open(
            "w+", encoding="utf-8", errors="replace"
        )
        self.running = subprocess.Popen(
            [str(place.python), "-m", module, *arguments, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, encoding="utf-8",
            env=environment, cwd=ROOT,
        )  # fmt: skip

    def ask(self, do: str, **options: Any) -> dict:
        assert self.running.stdin is not None and self.running.stdout is not None
        try:
            self.running.stdin.write(json.dumps({"do": do, **options}) + "\n")
            self.running.stdin.flush()
            line = self.running.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise Failed(self._last_words())
        answer = json.loads(line)
        if "trouble" in answer:
            raise Failed(answer["trouble"])
        return answer

    def _last_words(self) -> str:
        code = self.running.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        return f"ended with code {code}: {lines[-1][:200] if lines else 'no error output'}"

    def end(self) -> None:
        if self.running.stdin is not None:
            self.running.stdin.close()  # the worker's loop ends with its input
        try:
            self.running.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
        self.errors.close()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
