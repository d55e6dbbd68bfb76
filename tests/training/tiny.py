"""A recipe of a tiny translator, and processes that train it and that tests can kill."""

import atexit
import copy
import functools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from safetensors.torch import load_file

from regard.training.run_log import read_log
from regard.training.step_folders import step_folders
from tests import forked

ROOT = Path(__file__).resolve().parents[2]

RECIPE = {
    "name": "tiny",
    "task": "translate",
    "seed": 7,
    "tokenizer": {"kind": "character", "size": 60},
    "model": {
        "dim": 16,
        "dropout": 0.1,
        "encoder": {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32},
        "decoder": {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32},
    },
    "batch": {"tokens": 160, "accumulate": 2},
    "optimizer": {"lr": 0.01},
    "schedule": {"kind": "plateau", "warmup": 5, "patience": 0},
    "training": {
        "steps": 60, "validate_every": 12, "save_every": 7, "log_every": 5, "keep": 2, "average": 2,
        "ema": 0.9, "device": "cpu", "threads": 1,
    },
    "decoding": {"beam": 2, "max_length": 12},
}  # fmt: skip


def write_pairs(folder, rows=80, seed=1):
    """Write short random words and the same words reversed; return the files as a recipe's data block."""
    draw = random.Random(seed)
    result = {}
    for split, count in (("train", rows), ("validation", 12), ("test", 12)):
        words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 7))) for _ in range(count)]
        for side, lines in (("x", words), ("y", [w[::-1] for w in words])):
            (folder / f"{split}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        result[split] = [[str(folder / f"{split}.x"), str(folder / f"{split}.y")]]
    return result


def recipe(folder, **changes):
    """Return the tiny recipe over files in `folder`, with `block__key=value` changes."""
    result = copy.deepcopy(RECIPE)
    result["data"] = write_pairs(folder)
    for path, value in changes.items():
        block, _, key = path.partition("__")
        if key:
            result[block][key] = value
        else:
            result[block] = value
    return result


class Child:
    """A training process, started by the server."""

    def __init__(self, server, request, timeout=300):
        self.server, self.output, self.timeout = server, Path(request["output"]), timeout
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        self.pid, self.code = int(server.stdout.readline()), None

    def wait(self, seconds=None):
        """Return the exit code, negative after a signal; None if it still runs after `seconds`."""
        if (
            self.code is None
            and select.select([self.server.stdout], [], [], self.timeout if seconds is None else seconds)[0]
        ):
            self.code = int(self.server.stdout.readline())
        if self.code is None and seconds is None:
            self.kill()
            raise AssertionError(f"still running after {self.timeout} s: {self.printed()}")
        return self.code

    def send(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """Kill it; return False if it had ended by itself a moment before."""
        self.send(signal.SIGKILL)
        assert self.wait(60) in (-signal.SIGKILL, 0), self.printed()
        return self.code != 0

    def printed(self):
        return self.output.read_text(encoding="utf-8")

    def finish(self):
        """Wait for exit code 0; return what it printed."""
        assert self.wait() == 0, self.printed()
        return self.printed()


@functools.cache
def server():
    """Return a process with everything imported that forks training processes."""
    command = [sys.executable, "-m", "tests.training.runner", "serve"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    atexit.register(process.kill)
    return process


def start(folder, verb, target, run, *overrides, largest_file=0):
    """Train the recipe `target`, or resume, in a new process; the runs share the cache in `folder`."""
    request = {
        "verb": verb, "recipe": target, "folder": str(run), "overrides": overrides,
        "cache": forked.new_cache(folder / "cache"),
        "output": str(run.parent / f"output-{time.monotonic_ns()}.txt"), "largest_file": largest_file,
    }  # fmt: skip
    return Child(server(), request)


def environment(**more):
    """The environment of a child process: without the variables of torchrun, one thread."""
    inherited = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("TORCHELASTIC", "RANK", "WORLD", "LOCAL_RANK", "MASTER"))
    }
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", **more}


def torchrun(folder, verb, target, run, *overrides, restarts=0):
    """Start two processes under torchrun."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        str(restarts),
    ]
    command = [*launcher, "-m", "tests.training.runner", verb, json.dumps(target), str(run), *overrides]
    env = environment(REGARD_CACHE=forked.new_cache(folder / "cache"))
    return subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process, timeout=300):
    """Wait for torchrun to exit with 0; return what it printed."""
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}"
    return out


def weights(run):
    return load_file(run / "model" / "model.safetensors")


def log(run, event="train"):
    """Return the log without times."""
    times = {"seconds", "tokens_per_second"}
    return [
        {k: v for k, v in e.items() if k not in times}
        for e in read_log(run / "log.jsonl")
        if e["event"] == event
    ]


def last_tensors(run):
    """Return the tensors of the newest checkpoint."""
    return load_file(step_folders(run / "checkpoints")[-1] / "tensors.safetensors")


def same_tensors(one, other):
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def differences(one, other):
    """Return what differs between two runs: final weights, last checkpoint, logs; empty if nothing does."""
    last = [step_folders(run / "checkpoints")[-1].name for run in (one, other)]
    equal = {
        "weights": same_tensors(weights(one), weights(other)),
        "last checkpoint": last[0] == last[1] and same_tensors(last_tensors(one), last_tensors(other)),
        "training log": log(one, "train") == log(other, "train"),
        "validation log": log(one, "validation") == log(other, "validation"),
    }
    return [name for name, is_equal in equal.items() if not is_equal]
