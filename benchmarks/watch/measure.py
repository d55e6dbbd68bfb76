"""Measurement: all systems in turns, the best time of all rounds, and memory as the peak of one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.attend.measure import peak_memory
from benchmarks.peers.errors import first_line
from benchmarks.watch import model as models
from benchmarks.watch.model import Shape
from benchmarks.watch.systems import HEAD, SUMS, SYSTEMS, plain

SLOW = 10.0  # seconds: a call that takes longer is timed once
PLAIN = "plain forward"


@dataclass
class Row:
    """The measurements of one system for one question and length; `failure` is why there are none."""

    T: int
    question: str
    system: str
    times: list[float] = field(default_factory=list)
    ratio: float | None = None
    memory: int | None = None
    error: float | None = None
    failure: str | None = None

    @property
    def seconds(self) -> float | None:
        """The best round: other processes can only lengthen a call."""
        return min(self.times, default=None)


def run_length(model: Any, shape: Shape, T: int, device: str, seconds: float, max_bytes: int) -> list[Row]:
    """Measure both questions at one length with every system that can answer them."""
    ids = models.random_tokens(T, device)
    q, k = models.queries_and_keys(model, ids, shape.layer, shape.head)
    truths = {
        HEAD: models.reference_rows(q, k, _sampled_rows(T, device)),
        SUMS: models.reference_column_sums(q, k),
    }
    rows: list[Row] = [Row(T, "", PLAIN)]
    steps: dict[int, Callable[[], object]] = {0: plain(model, ids)}
    if model.config._attn_implementation != "sdpa":
        rows.append(Row(T, "", f"{PLAIN}, sdpa"))
        steps[1] = plain(models.with_attention(model, "sdpa"), ids)
    for question in (HEAD, SUMS):
        for name, create in SYSTEMS.items():
            row = Row(T, question, name)
            rows.append(row)
            try:
                row.failure = _too_expensive(name, question, shape, T, max_bytes)
                if row.failure is None:
                    answers: list[Tensor] = []
                    answer = create(model, ids, shape, question)
                    first = seconds_of(lambda answer=answer: answers.append(answer()), device)
                    row.error = _error(answers.pop(), truths[question], question, shape, device)
                    if first > SLOW:
                        row.times = [first]
                    else:
                        steps[len(rows) - 1] = answer
            except ModuleNotFoundError as error:
                row.failure = f"is not installed ({first_line(error)})"
            except Exception as error:  # a peer may fail in any way; the table says how
                row.failure = f"failed: {first_line(error)}"
    _time_all(rows, steps, device, seconds)
    for number, step in steps.items():
        rows[number].memory = peak_memory(step, device)
    return rows


def _sampled_rows(T: int, device: str) -> Tensor:
    """The rows that are compared with float64."""
    return torch.linspace(0, T - 1, min(T, 64), device=device).long()


def _too_expensive(name: str, question: str, shape: Shape, T: int, max_bytes: int) -> str | None:
    """Why a system is skipped at this length: too much memory, or too many forward passes."""
    need = shape.layers * shape.heads * T * T * shape.dtype.itemsize
    if name == "eager" and need * 2 > max_bytes:
        return f"would keep {need / 2**30:.0f} GiB of weights"
    passes = (shape.layers if question == SUMS else 1) * (1 + -(-T // shape.head_dim))
    if name == "attnread" and passes > 40:
        return f"would take {passes} forward passes"
    return None


def _error(output: Tensor, truth: Tensor, question: str, shape: Shape, device: str) -> float:
    """max |x − truth| over max |truth|, the truth in float64."""
    output = output.to(device)
    output = (
        output[_sampled_rows(output.shape[0], device)]
        if question == HEAD
        else output[shape.layer, shape.head]
    )
    return float((output.double() - truth).abs().max() / truth.abs().max())


def _time_all(rows: list[Row], steps: dict[int, Callable[[], object]], device: str, seconds: float) -> None:
    """Call all steps in turn, round after round, so that noise affects all alike; all were called before."""
    steps[0]()
    start = time.perf_counter()
    while len(rows[0].times) < 3 or (time.perf_counter() - start < seconds and len(rows[0].times) < 200):
        for number, step in steps.items():
            rows[number].times.append(seconds_of(step, device))
    for row in rows:
        row.ratio = row.seconds / rows[0].seconds if row.seconds and rows[0].seconds else None


def seconds_of(step: Callable[[], object], device: str) -> float:
    """Time of one call; with one thread of a CPU its processor time, which other processes do not add to."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start
