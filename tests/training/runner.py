"""Train in processes that tests can kill.

    python -m tests.training.runner train|resume RECIPE FOLDER [KEY=VALUE …]   one process
    python -m tests.training.runner serve                                      requests as JSON lines on stdin

The server imports everything once and forks a process per request, so that tests do not wait for imports.
"""

import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

import matplotlib.figure  # noqa: F401 (imported once, before the forks)
import sacrebleu.metrics  # noqa: F401
import torch._dynamo  # noqa: F401 (counting operations needs it)

from regard.errors import RegardError
from regard.training.trainer import resume, train


def run(verb, recipe, folder, overrides):
    (Path(folder).parent / f"pid-{os.environ.get('RANK', '0')}").write_text(
        str(os.getpid()), encoding="utf-8"
    )
    try:
        if verb == "train":
            result = train(recipe, folder=folder, overrides=overrides)
        else:
            result = resume(folder, overrides=overrides)
    except RegardError as error:
        print(error, file=sys.stderr)
        return 2
    fields = ("finished", "reason", "steps", "signal")
    print(json.dumps({name: getattr(result, name) for name in fields}), flush=True)
    return 0


def serve():
    """For each request: fork, print the process id, wait, print the exit code."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(execute(request))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def execute(request):
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["REGARD_CACHE"] = request["cache"]
    if request["largest_file"]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    try:
        return run(request["verb"], request["recipe"], request["folder"], request["overrides"])
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        verb, recipe, folder, *overrides = sys.argv[1:]
        sys.exit(run(verb, json.loads(recipe), folder, overrides))
