"""Run a plan of steps in the background on a GPU machine that is lent for short commands.

    python3 -m benchmarks.gpu.schedule europarl        start the plan, or wait for it; repeat until done
    python -m benchmarks.gpu.schedule europarl --tiny  all its steps in tiny form on a CPU: the rehearsal
    python -m benchmarks.gpu.schedule europarl --pack FOLDER   copy what each call sends to FOLDER/1, …

The first command unpacks the wheels and starts the steps, which run on when it ends. Each command prints
what is new and copies the results to $OUT. A step that fails, or takes twice its seconds, is reported, and
the next one starts; it runs once more at the end. After --minutes in all, nothing is started any more and
what runs is stopped. Given again after the end, the command runs the steps that failed, if there is time.
The plans are in plans.py. Needs no other package.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from benchmarks.gpu.plans import PLANS, WEIGHTS, WHEELS, Plan, Step

ROOT = Path("build/session")  # ignored by git
LIBRARIES = Path("build/translator/libraries")
SHOWN = re.compile(
    r"^\||^step |^error|^\d+ |validation at|tokens/s|BLEU \d|translations by|[Ee]rror|steps/s;|chosen|^passes"
)
LINE = 200  # characters of a line that is shown
GRACE = 20.0  # seconds for a stopped step to write its checkpoint
CALL_BYTES, FILES, FILE_BYTES = 64 << 20, 8, 16 << 20  # the limits of transfers
VARIABLES = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONUTF8": "1",
    "REGARD_WORKERS": "14",
    "REGARD_CACHE": "build/cache",
    "REGARD_DATA": "build/data",
}


@dataclass
class Runner:
    """Runs the steps of a plan in turn. `folder` holds its logs, its runs and what comes back."""

    plan: Plan
    folder: Path
    deadline: float  # time.time()
    tiny: bool = False

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def log_of(self, step: Step) -> Path:
        return self.folder / "logs" / f"{step.name}.txt"

    def is_done(self, step: Step) -> bool:
        return (self.folder / "done" / step.name).is_file()

    def run(self) -> None:
        """Run all steps that are not done; then the file `finished` has the names of those that failed.

        Steps that failed run once more at the end: the files of a call may have been replaced as they began.
        """
        (self.folder / "finished").unlink(missing_ok=True)
        for name in ("out", "work", "logs", "done"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.run_steps()
        if self.failed() and self.deadline - time.time() > GRACE:
            self.run_steps()
        (self.folder / "finished").write_text(" ".join(self.failed()))

    def failed(self) -> list[str]:
        return [step.name for step in self.plan.steps if not self.is_done(step)]

    def run_steps(self) -> None:
        """Run the steps that are not done."""
        running: list[tuple[Step, subprocess.Popen[bytes], float]] = []
        for step in self.plan.steps:
            if self.is_done(step):
                continue
            if self.deadline - time.time() < 1:
                self.note(f"error: no time is left for step {step.name}")
                continue
            running.append(self.start(step))
            if not step.side_by_side:
                self.finish(*running.pop())
        for started in running:
            self.finish(*started)

    def minutes(self, step: Step) -> float:
        """Minutes of training of a step, if the time of later steps is kept back."""
        if not step.share:
            return step.minutes
        later = self.plan.steps[self.plan.steps.index(step) :]
        needed = sum(other.seconds + 60 * other.minutes for other in later)
        return max(0.1, step.share * (self.deadline - time.time() - needed) / 60)

    def start(self, step: Step) -> tuple[Step, subprocess.Popen[bytes], float]:
        """Start a step as a process group of its own; return it with the time at which it is stopped."""
        minutes, places = self.minutes(step), {"out": self.out, "work": self.folder / "work"}
        command = f"{step.command} {step.tiny if self.tiny else ''}"
        words = [word.format(minutes=f"{minutes:.2f}", **places) for word in shlex.split(command)]
        words = [sys.executable if word == "python" else word for word in words]
        limit = time.time() + 60 * minutes + 2 * step.seconds
        if self.tiny or not step.seconds:
            limit = self.deadline
        self.note(f"start {step.name}: {shlex.join(words[1:])[:LINE]}")
        with self.log_of(step).open("ab") as log:
            environment = os.environ | {"OUT": str(self.out.absolute())}
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip
        return step, process, min(limit, self.deadline)

    def finish(self, step: Step, process: subprocess.Popen[bytes], limit: float) -> None:
        """Wait for a step, stop it at its limit and report its failure."""
        start, code = time.time(), None
        for stop, seconds in ((signal.SIGINT, GRACE), (signal.SIGKILL, None)):
            try:
                code = process.wait(max(0.0, limit - time.time()))
                break
            except subprocess.TimeoutExpired:
                self.note(f"error: the time of step {step.name} is up: {stop.name}")
                _signal(process, stop)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)
        _signal(process, signal.SIGKILL)  # processes that it left
        if code == 0:
            (self.folder / "done" / step.name).touch()
            self.note(f"end {step.name}: {time.time() - start:.0f} s of waiting")
        else:
            code = process.returncode if code is None else code
            last = self.log_of(step).read_text("utf-8", "replace").splitlines()[-12:]
            self.note(f"error: step {step.name} ended with exit code {code}", *last)

    def note(self, *lines: str) -> None:
        left = (self.deadline - time.time()) / 60
        with (self.folder / "logs" / "schedule.txt").open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in (f"{left:.1f} min left: {lines[0]}", *lines[1:])))


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def prepare_environment() -> None:
    """Set the variables of all steps; unpack the wheels on a machine that lacks them."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value if not value.startswith("build/") else str(Path(value).absolute()))
    wheels = sorted(Path(WHEELS).glob("*.whl"))
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-"
    if wheels and not LIBRARIES.is_dir() and any(tag in wheel.name for wheel in wheels):
        unpacked = LIBRARIES.with_name("unpacked")
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        unpacked.rename(LIBRARIES)
    paths = [str(Path(path).absolute()) for path in ("src", ".", LIBRARIES)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def start(name: str, folder: Path, minutes: float, tiny: bool) -> None:
    """Start the runner in the background, unless it runs or all is done. It holds the lock while it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    finished, deadline = folder / "finished", folder / "deadline"
    if finished.is_file() and not finished.read_text().strip():
        return
    with (folder / "lock").open("a") as lock:
        if not _lock(lock):
            return
        if not deadline.is_file():
            deadline.write_text(str(time.time() + 60 * minutes))
        finished.unlink(missing_ok=True)
        program = [sys.executable, "-m", "benchmarks.gpu.schedule", name, "--run", str(folder)]
        with (folder / "runner.txt").open("a") as log:
            subprocess.Popen(
                [*program, *(["--tiny"] if tiny else [])], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, pass_fds=(lock.fileno(),),
            )  # fmt: skip


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait(plan: Plan, folder: Path, results: Path, minutes: float, pause: float = 2.0) -> int:
    """Print what is new until all is done or the minutes are over, then copy the results; the exit code."""
    end = time.time() + 60 * minutes
    while True:
        finished = (folder / "finished").is_file()
        with (folder / "lock").open("a") as lock:
            ended = _lock(lock)
        show(folder)
        if finished or ended or time.time() >= end:
            break
        time.sleep(pause)
    copy_out(plan, folder, results)
    if finished:
        failed = (folder / "finished").read_text().split()
        print(
            f"done: results in {results}" + (f"; failed: {', '.join(failed)}" if failed else ""), flush=True
        )
        return 1 if failed else 0
    if ended:
        print(*(folder / "runner.txt").read_text("utf-8", "replace").splitlines()[-12:], sep="\n")
        print("error: the runner ended before the plan; the same command starts it again", flush=True)
        return 1
    print("not done yet: give the same command again at once", flush=True)
    return 0


def show(folder: Path) -> None:
    """Print the new lines of the logs that tell something; what was shown is noted in the folder."""
    position_file = folder / "shown.json"
    positions = json.loads(position_file.read_text()) if position_file.is_file() else {}
    for log in sorted((folder / "logs").glob("*.txt"), key=lambda path: (path.stem == "schedule", path.name)):
        data = log.read_bytes()[positions.get(log.name, 0) :]
        complete = data[: data.rfind(b"\n") + 1]
        positions[log.name] = positions.get(log.name, 0) + len(complete)
        for line in complete.decode("utf-8", "replace").splitlines():
            if log.stem == "schedule" or SHOWN.search(line):
                print(f"{log.stem}: {line[:LINE]}", flush=True)
    position_file.write_text(json.dumps(positions))


def copy_out(plan: Plan, folder: Path, results: Path) -> None:
    """Copy what comes back, with all logs as one file; warn of what is above the limits."""
    results.mkdir(parents=True, exist_ok=True)
    if (folder / "out").is_dir():
        shutil.copytree(folder / "out", results, dirs_exist_ok=True)
    for step in plan.steps:
        for name in step.results:
            path = Path(name.format(out=folder / "out", work=folder / "work"))
            if path.is_file():
                shutil.copy(path, results / f"{step.name}-{path.name}")
    parts = []
    for log in sorted((folder / "logs").glob("*.txt")):
        parts += [f"=== {log.stem}\n".encode(), log.read_bytes()[-(1 << 20) :]]
    (results / "log.txt").write_bytes(b"".join(parts))
    files = [path for path in results.rglob("*") if path.is_file()]
    if len(files) > FILES:
        print(f"error: {len(files)} files in {results}; {FILES} come back")
    for path in files:
        if path.stat().st_size > FILE_BYTES:
            print(f"error: {path.name} has {path.stat().st_size:,} bytes; {FILE_BYTES:,} come back")


def pack(plan: Plan, target: Path) -> int:
    """Copy what each call sends to a folder of its own; print the bytes. 1 if a call is above the limit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    tracked = [Path(name) for name in listed.stdout.split("\0") if name and Path(name).is_file()]
    code = 0
    for number, call in enumerate(plan.calls, 1):
        files = [path for path in tracked if path.name != WEIGHTS or path.parent.name in call.weights]
        for name in call.carry:
            path = Path(name)
            files += [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
            if not path.exists():
                print(f"error: {name} is missing; gpu/NOTES.md has the command that makes it")
                code = 1
        for path in set(files):
            copy = target / str(number) / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        size = sum(path.stat().st_size for path in set(files))
        weights = f"; weights of {', '.join(call.weights)}" if call.weights else ""
        print(f"call {number}: {size:,} bytes, {size / CALL_BYTES:.1%} of the limit{weights}")
        print(f"    carry {json.dumps(call.carry)}")
        code |= size > CALL_BYTES
    return code


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.schedule",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("--minutes", type=float, default=26.0, help="of all steps (default 26)")
    parser.add_argument("--wait", type=float, default=9.5, help="minutes of this command (default 9.5)")
    parser.add_argument("--tiny", action="store_true", help="every step in tiny form, on a CPU")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="only copy what each call sends")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)  # the runner itself
    options = parser.parse_args(argv)
    plan = PLANS[options.plan]
    if options.pack:
        return pack(plan, options.pack)
    if options.run:
        Runner(plan, options.run, float((options.run / "deadline").read_text()), options.tiny).run()
        return 0
    folder = ROOT / (f"{options.plan}-tiny" if options.tiny else options.plan)
    prepare_environment()
    start(options.plan, folder, options.minutes, options.tiny)
    return wait(plan, folder, Path(os.environ.get("OUT", folder / "results")), options.wait)


if __name__ == "__main__":
    sys.exit(main())
