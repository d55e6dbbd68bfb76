"""The worker's side: read one command per line from standard input, answer each with a line of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.peers.errors import first_line


def serve_commands(create_worker: Callable[[], Any]) -> None:
    """Answer commands until the input ends. A command names a method of the worker and its arguments.

    The worker is created at the first command, so that an error while it loads is an answer too.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what a peer prints goes to standard error, not between the answers
    worker = None
    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            worker = worker or create_worker()
            answer = getattr(worker, arguments.pop("method"))(**arguments)
        except Exception as error:  # a peer may fail in any way; the table shows the message
            answer = {"failure": f"{type(error).__name__}: {first_line(error, 200)}"[:200]}
        answers.write(json.dumps(answer) + "\n")
