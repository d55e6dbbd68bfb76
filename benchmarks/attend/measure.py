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
from benchmarks.attend.peers import CreateSystem, System, peers_of, regard_attend
from benchmarks.attend.problem import Problem
from benchmarks.peers.errors import first_line
from benchmarks.peers.memory import memory_status

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
SAMPLE = 0.005  # a call shorter than this is repeated, and the mean is one sample
MAX_ROUNDS = 300
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
    """The measurements of one system on one case. `failure` is why there are none: it failed or disagreed."""

    times: list[float] = field(default_factory=list)  # seconds per call, one per round
    error: float | None = None
    memory: int | None = None
    failure: str | None = None

    @property
    def disagrees(self) -> bool:
        return self.failure is not None and self.failure.startswith(DISAGREES)

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
    """Check and time all systems on one case. Peers that are not installed are added to `missing`."""
    torch.compiler.reset()  # otherwise the compiler stops compiling after a few shapes
    try:
        problem = Problem(case)
        with torch.set_grad_enabled(case.train):
            kernel = regard.explain(
                problem.q, problem.k, problem.v, kernel=case.kernel, **problem.options()
            ).kernel
        truth = problem.truth()
    except Exception as error:  # nothing can be checked without the reference
        return Row(case, "", None, {OURS: Result(failure=f"failed: {first_line(error)}")})
    results, steps = {}, {}
    for name, create in {OURS: regard_attend, **peers_of(case)}.items():
        result, step = check_system(create, problem, truth, missing, name)
        results |= {} if result is None else {name: result}
        steps |= {} if step is None else {name: step}
    del truth
    if case.device == "cuda":
        torch.cuda.empty_cache()  # the reference needed more memory than any system will
    for name, times in time_all(steps, effort, case.device).items():
        results[name].times = times
    row = Row(case, kernel, problem.flops(), results)
    for name in (OURS, row.best_peer):
        if name in steps:
            results[name].memory = peak_memory(steps[name], case.device)
    return row


def check_system(
    create: CreateSystem, problem: Problem, truth: dict[str, Tensor], missing: dict[str, str], name: str
) -> tuple[Result | None, Step | None]:
    """Build one system and compare it with the reference; return its result and, if it agrees, its step.

    Both are None for a system that cannot run the case or is not installed.
    """
    try:
        system = create(problem)
        if system is None:
            return None, None
        worst = largest_error(system, problem, truth)
    except ModuleNotFoundError as error:
        missing.setdefault(name, first_line(error))
        return None, None
    except Exception as error:  # a peer may fail in any way; the table says how
        return Result(failure=f"failed: {first_line(error)}"), None
    if worst > TOLERANCE[problem.case.dtype]:
        return Result(error=worst, failure=f"{DISAGREES} by {worst:.1e}"), None
    return Result(error=worst), make_step(system, problem)


# -------------------------------------------------------------------------------------------------- one step
def make_step(system: System, problem: Problem) -> Step:
    """The function that is timed: forward, or forward and backward with a random output gradient."""
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


def largest_error(system: System, problem: Problem, truth: dict[str, Tensor]) -> float:
    """The larger error of output and gradients, each max |x − truth| / max |truth|."""
    result = make_step(system, problem)()
    if not problem.case.train:
        return relative_error(system.finish(result), truth["out"])
    out, grads = result
    tensors = dict(zip(system.leaves, grads, strict=True))
    tensors["q"], tensors["out"] = system.finish(tensors["q"]), system.finish(out.detach())
    return max(relative_error(tensors[name], truth[name]) for name in truth)


def relative_error(x: Tensor, truth: Tensor) -> float:
    """max |x − truth| / max |truth|; infinite if x has a NaN."""
    x = x[: len(truth)].double()
    if x.shape != truth.shape:
        raise ValueError(f"gave {tuple(x.shape)} where the reference gives {tuple(truth.shape)}")
    worst = float((x - truth).abs().max() / truth.abs().max())
    return worst if worst == worst else float("inf")  # NaN is not equal to itself


# ------------------------------------------------------------------------------------------------------ time
def time_all(steps: dict[str, Step], effort: Effort, device: str) -> dict[str, list[float]]:
    """Seconds per call of each system. Rounds run all systems in turn, so that noise affects all alike."""
    clock = cuda_seconds if device == "cuda" else cpu_seconds
    times: dict[str, list[float]] = {name: [] for name in steps}
    if not steps:
        return times
    calls = {}  # per sample: short calls are repeated until one sample is long enough to time
    for name, step in steps.items():
        clock(step, 1)
        calls[name] = max(1, min(1000, int(SAMPLE / max(clock(step, 1), 1e-7))))
    names, start = list(steps), time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        for rounds in range(MAX_ROUNDS):
            elapsed = (time.perf_counter() - start) / len(names)
            enough = rounds >= effort.rounds and elapsed >= effort.seconds
            if enough or (rounds >= 3 and elapsed >= effort.limit):
                break
            first = rounds % len(names)  # rotate, so that no system always runs after the same one
            for name in names[first:] + names[:first]:
                times[name].append(clock(steps[name], calls[name]))
    finally:
        gc.enable()
    return times


def cpu_seconds(step: Step, calls: int) -> float:
    """Wall-clock seconds per call, the mean of `calls`."""
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def cuda_seconds(step: Step, calls: int) -> float:
    """GPU seconds per call by CUDA events, the mean of `calls`."""
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
    """The high-water mark of resident memory during one call, beyond what was resident before."""
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that malloc still holds would hide what the call takes
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # resets VmHWM
    before = memory_status("VmRSS")
    step()
    return max(0, memory_status("VmHWM") - before)
