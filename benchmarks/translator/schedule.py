"""Run all steps of a session in the background, each with its share of the time, and wait for them.

    setsid python -m benchmarks.translator.schedule run --minutes 27 &    on the GPU machine
    setsid python -m benchmarks.translator.schedule run --plan teacher &  its translations come back
    setsid python -m benchmarks.translator.schedule run --plan student &  in a later session
    python -m benchmarks.translator.schedule wait --minutes 9.5           progress; results when all is done

A machine that is lent for short commands is given back between them if nobody asks for it: `wait` can be
repeated at once, while the steps go on in the background. The results are copied to $OUT.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import command
from benchmarks.translator.session import ROOT

SHOWN = re.compile(r"validation at|tokens/s|^step [a-z]|BLEU \d|translations by|[Ee]rror|warning|steps/s;")


@dataclass(frozen=True)
class Step:
    """A step of `session`."""

    name: str
    seconds: float  # that it takes beside training
    share: float = 0.0  # of the time for training that is left
    in_background: bool = False  # the next step starts at once


STEPS = (
    Step("prepare-teacher", 45),
    Step("teacher", 25, 0.42),
    Step("distill", 110),
    Step("score-teacher", 0, in_background=True),  # on the GPU, while the cores prepare the student's data
    Step("student", 50, 1.0),
    Step("finish", 25),
)
PLANS = {
    "all": STEPS,
    "teacher": (
        STEPS[0],
        Step("teacher", 25, 1.0),
        Step("distill", 110),
        Step("pack-distilled", 15),
        Step("score-teacher", 20),
    ),
    "student": STEPS[4:],
}


def training_minutes(step: Step, seconds_left: float, steps: Sequence[Step] = STEPS) -> float:
    """Minutes of training of a step, if what later steps need beside training is kept back."""
    later = steps[steps.index(step) :]
    return max(0.1, step.share * (seconds_left - sum(other.seconds for other in later)) / 60)


def run(
    minutes: float,
    root: Path,
    start: Callable[[list[str], Path], subprocess.Popen[bytes]],
    steps: Sequence[Step] = STEPS,
) -> None:
    """Run all steps; a step that fails is reported in the log, and the next one uses what there is."""
    deadline, log, out = time.monotonic() + 60 * minutes, root / "schedule.txt", root / "out"
    out.mkdir(parents=True, exist_ok=True)
    running: list[tuple[Step, subprocess.Popen[bytes]]] = []
    for step in steps:
        left = deadline - time.monotonic()
        arguments = [step.name]
        if step.share:
            arguments += ["--minutes", f"{training_minutes(step, left, steps):.2f}"]
        running.append((step, start(arguments, log)))
        if not step.in_background:
            _finish(*running.pop(), log)
    for step, process in running:
        _finish(step, process, log)
    shutil.copy(log, out / "schedule.txt")
    (out / "done").touch()


def _finish(step: Step, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a step and report its failure in the log."""
    if code := process.wait():
        with log.open("a", encoding="utf-8") as file:
            file.write(f"error: step {step.name} ended with exit code {code}\n")


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a step as a process of its own, so that its GPU memory is free afterwards."""
    program = [sys.executable, "-m", "benchmarks.translator.session", *arguments]
    with log.open("a", encoding="utf-8") as file:
        return subprocess.Popen(
            program, stdout=file, stderr=file, env=os.environ | {"OUT": str(ROOT / "out")}
        )


def wait(minutes: float, root: Path, results: Path, pause: float = 5.0) -> bool:
    """Print new lines of the log until all is done, then copy the results; or until the minutes are over."""
    end, log, shown = time.monotonic() + 60 * minutes, root / "schedule.txt", root / "shown"
    while True:
        position = int(shown.read_text()) if shown.is_file() else 0
        data = log.read_bytes()[position:] if log.is_file() else b""
        complete = data[: data.rfind(b"\n") + 1]
        for line in complete.decode("utf-8", "replace").splitlines():
            if SHOWN.search(line):
                print(line[:160], flush=True)
        shown.write_text(str(position + len(complete)))
        if (root / "out" / "done").is_file():
            shutil.copytree(root / "out", results, dirs_exist_ok=True)
            print(f"done: results in {results}", flush=True)
            return True
        if time.monotonic() >= end:
            if (root / "out").is_dir():  # what there is by now
                shutil.copytree(root / "out", results, dirs_exist_ok=True)
            print("not done yet: wait again at once", flush=True)
            return False
        time.sleep(pause)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.schedule",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("run", "wait"))
    parser.add_argument("--minutes", type=float, default=27.0)
    parser.add_argument("--plan", choices=PLANS, default="all", help="the steps of this session")
    options = parser.parse_args(argv)
    if options.action == "run":
        run(options.minutes, ROOT, start, PLANS[options.plan])
    else:
        wait(options.minutes, ROOT, Path(os.environ.get("OUT", ROOT / "results")))
    return 0


if __name__ == "__main__":
    command.run(main)
