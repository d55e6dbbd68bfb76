"""A process that has imported regard and runs each given command line in a fork of itself.

    python -m benchmarks.attack.launcher        # orders as JSON lines: {"args", "cwd", "output", "errors"}

Importing torch takes seconds and a fork milliseconds, so the imports are paid for once. For each order two
lines are printed: the process id when it starts, the exit code when it ends. `tests/training/runner.py` does
the same for tests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

import matplotlib.figure  # noqa: F401 (imported once, before the forks)
import sacrebleu.metrics  # noqa: F401
import torch._dynamo  # noqa: F401 (counting operations needs it)
import usearch.index  # noqa: F401

from regard.cli import main
from regard.search import build_index  # noqa: F401
from regard.training import trainer  # noqa: F401


def serve() -> None:
    """Read orders from standard input and run each in a fork, one after the other."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            os._exit(run_command(json.loads(line)))
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def run_command(order: dict) -> int:
    """Run a command line as `regard` does, and return its exit code."""
    # Shells make background processes ignore SIGINT: restore its default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(order["cwd"])
    sys.argv = ["regard", *order["args"]]
    try:
        main.run()
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve()
