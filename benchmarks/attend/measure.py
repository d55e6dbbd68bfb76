"""Measurement: errors against float64, times in interleaved rounds, memory as the peak beyond the inputs."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.attend.cases import Case
from benchmarks.attend.peers import Make, System, ours, peers_of
from benchmarks.attend.problem import Problem

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
SAMPLE = 0.005  # a call shorter than this is repeated, and the mean is one sample
MOST_ROUNDS = 300
OURS = "regard"
DISAGREES = "disagrees with the float64 reference"
Step = Callable[[], Any]


@dataclass(frozen=True)
class Effort:
    """At least `rounds`, until `seconds` per system; after `limit` seconds three rounds are enough."""

    rounds: int = 7
    seconds: float = 2.0
    limit: float = 20.0


QUICK, ON_GPU = Effort(rounds=5, seconds=0.5, limit=5.0), Effort(seconds=1.0)


@dataclass
class Result:
    """What one system did with one case. `trouble` is why there are no numbers: it failed or disagreed."""

    times: list[float] = field(default_factory=list)  # seconds per call, one per round
    error: float | None = None
    memory: int | None = None
    trouble: str | None = None

    @property
    def disagrees(self) -> bool:
        return self.trouble is not None and self.trouble.startswith(DISAGREES)

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.times) if self.times else None


@dataclass
class Row:
    """One case with all its results; a peer that cannot do the case is not among them."""

    case: Case
    kernel: str
    flops: float | None
    results: dict[str, Result]

    @property
    def best_peer(self) -> str | None:
        timed = {
            name: r.seconds for name, r in self.results.items() if name != OURS and r.seconds is not None
        }
        return min(timed, key=timed.__getitem__) if timed else None

    @property
    def ratio(self) -> float | None:
        """Time of the best peer over ours: at least 1 where regard wins."""
        seconds, peer = self.results[OURS].seconds, self.best_peer
        peer_seconds = None if peer is None else self.results[peer].seconds
        return None if seconds is None or peer_seconds is None else peer_seconds / seconds


def run_case(case: Case, effort: Effort, missing: dict[str, str]) -> Row:
    """Everything about one case. Peers whose package is not there are named in `missing`."""
    torch.compiler.reset()  # else the compiler gives up after a few shapes
    try:
        problem = Problem(case)
        with torch.set_grad_enabled(case.train):
            kernel = regard.explain(
                problem.q, problem.k, problem.v, kernel=case.kernel, **problem.options()
            ).kernel
        truth = problem.truth()
    except Exception as trouble:  # without a truth nothing can be judged
        return Row(case, "", None, {OURS: Result(trouble=f"failed: {first_line(trouble)}")})
    results, steps = {}, {}
    for name, make in {OURS: ours, **peers_of(case)}.items():
        result, step = checked(make, problem, truth, missing, name)
        results |= {} if result is None else {name: result}
        steps |= {} if step is None else {name: step}
    del truth
    if case.device == "cuda":
        torch.cuda.empty_cache()  # the truth took more than anyone else will
    for name, times in time_all(steps, effort, case.device).items():
        results[name].times = times
    row = Row(case, kernel, problem.flops(), results)
    for name in (OURS, row.best_peer):
        if name in steps:
            results[name].memory = peak_memory(steps[name], case.device)
    return row


def checked(
    make: Make, problem: Problem, truth: dict[str, Tensor], missing: dict[str, str], name: str
) -> tuple[Result | None, Step | None]:
    """Build one system and compare it with the truth. Return its result, and the step to time if equal."""
    try:
        system = make(problem)
        if system is None:
            return None, None
        error = error_of(system, problem, truth)
    except ModuleNotFoundError as trouble:
        missing.setdefault(name, first_line(trouble))
        return None, None
    except Exception as trouble:  # a peer may fail in any way; the table says how
        return Result(trouble=f"failed: {first_line(trouble)}"), None
    if error > TOLERANCE[problem.case.dtype]:
        return Result(error=error, trouble=f"{DISAGREES} by {error:.1e}"), None
    return Result(error=error), stepper(system, problem)


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:160]


# -------------------------------------------------------------------------------------------------- one step
def stepper(system: System, problem: Problem) -> Step:
    """Return the timed call: forward, or forward and backward with a random output gradient."""
    if not problem.case.train:

        def step() -> object:
            with torch.no_grad():
                return system.forward()

        return step
    leaves, grad = list(system.leaves.values()), problem.grad if system.grad is None else system.grad

    def step() -> object:
        out = system.forward()
        return out, torch.autograd.grad(out, leaves, grad)

    return step


def error_of(system: System, problem: Problem, truth: dict[str, Tensor]) -> float:
    """The worst of output and gradients, each as max |x − truth| / max |truth|."""
    result = stepper(system, problem)()
    if not problem.case.train:
        return distance(system.finish(result), truth["out"])
    out, grads = result
    tensors = dict(zip(system.leaves, grads, strict=True))
    tensors["q"], tensors["out"] = system.finish(tensors["q"]), system.finish(out.detach())
    return max(distance(tensors[name], truth[name]) for name in truth)


def distance(x: Tensor, truth: Tensor) -> float:
    x = x[: len(truth)].double()
    if x.shape != truth.shape:
        raise ValueError(f"gave {tuple(x.shape)} where the reference gives {tuple(truth.shape)}")
    worst = float((x - truth).abs().max() / truth.abs().max())
    return worst if worst == worst else float("inf")  # NaN agrees with nothing


# ------------------------------------------------------------------------------------------------------ time
def time_all(steps: dict[str, Step], effort: Effort, device: str) -> dict[str, list[float]]:
    """Seconds per call of each system. Rounds run all systems in turn, so that noise affects all alike."""
    clock = cuda_seconds if device == "cuda" else cpu_seconds
    times: dict[str, list[float]] = {name: [] for name in steps}
    if not steps:
        return times
    calls = {}
    for name, step in steps.items():
        clock(step, 1)
        calls[name] = max(1, min(1000, int(SAMPLE / max(clock(step, 1), 1e-7))))
    names, begun = list(steps), time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        for done in range(MOST_ROUNDS):
            spent = (time.perf_counter() - begun) / len(names)
            if (done >= effort.rounds and spent >= effort.seconds) or (done >= 3 and spent >= effort.limit):
                break
            first = done % len(names)  # nobody always follows the same neighbour
            for name in names[first:] + names[:first]:
                times[name].append(clock(steps[name], calls[name]))
    finally:
        gc.enable()
    return times


def cpu_seconds(step: Step, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def cuda_seconds(step: Step, calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000 / calls


# ---------------------------------------------------------------------------------------------------- memory
def peak_memory(step: Step, device: str) -> int | None:
    """Peak bytes of one warm call beyond those held before: temporaries, output and gradients.

    On a CPU this is Linux's high-water mark of resident memory, reset before the call, so that buffers
    outside torch's allocator count too. None on other systems.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        return min(_resident_peak(step) for _ in range(2))
    except (OSError, AttributeError, KeyError):
        return None


def _resident_peak(step: Step) -> int:
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that malloc still holds would hide what the call takes
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = _status("VmRSS")
    step()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    """A size from /proc/self/status, in bytes."""
    with open("/proc/self/status") as status:
        sizes = dict(line.split(":", 1) for line in status)
    return int(sizes[name].split()[0]) * 1024
