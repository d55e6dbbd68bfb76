"""The worker's side: read one command per line from standard input, answer each with a line of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def answer(make: Callable[[], Any]) -> None:
    """Make the worker at the first command; each command names a method (`do`) and its arguments."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever a peer prints is not an answer
    worker = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            worker = worker or make()
            found = getattr(worker, command.pop("do"))(**command)
        except Exception as trouble:  # a peer may fail in any way; the table says how
            found = {"trouble": first_line(trouble)}
        answers.write(json.dumps(found) + "\n")


def peak_memory() -> int | None:
    """Peak memory of this process in bytes, from Linux: getrusage's peak would start with the parent's."""
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def first_line(trouble: BaseException) -> str:
    lines = [line.strip() for line in str(trouble).splitlines() if line.strip()]
    return f"{type(trouble).__name__}: {lines[0] if lines else ''}"[:200]
