"""Logs of long runs that lessons read: `benchmarks/results/*.json`, which the package includes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import DataError


def read_log(name: str, command: str) -> dict[str, Any]:
    """The log `name`.json of a long run; `command` is the one that makes it.

    >>> log = regard.lessons.read_log("progression-tatoeba", "python -m benchmarks.progression")
    >>> log["models"]["softmax"]["bleu"]
    """
    package = Path(__file__).parent
    for folder in (package / "logs", package.parents[2] / "benchmarks" / "results"):
        path = folder / f"{name}.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    raise DataError(
        f"the log benchmarks/results/{name}.json is missing; make it in the repository with `{command}`"
    )
