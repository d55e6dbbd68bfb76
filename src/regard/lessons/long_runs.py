"""Logs of long runs that lessons read: `benchmarks/results/*.json`, which the package includes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_log(name: str, command: str) -> dict[str, Any] | None:
    """The log `name`.json of a run that takes too long for a lesson.

    If there is none, print which command makes it and return None.

    >>> command = "python -m benchmarks.progression"
    >>> log = regard.lessons.read_log("progression-tatoeba", command)  # doctest: +SKIP
    """
    package = Path(__file__).parent
    for folder in (package / "logs", package.parents[2] / "benchmarks" / "results"):
        path = folder / f"{name}.json"
        if path.is_file():
            log = json.loads(path.read_text(encoding="utf-8"))
            made = f"regard {log['regard']}, {log['date']}, {log['device']}, seed {log['seed']}"
            print(f"{log['command']}: {made}")
            return log
    print(f"there is no benchmarks/results/{name}.json; `{command}` in the repository makes it")
    return None
