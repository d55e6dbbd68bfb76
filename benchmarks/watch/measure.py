"""How a number is taken: all systems in turns, the best of all rounds, and memory as the peak of one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.attend.measure import first_line, peak_memory
from benchmarks.watch import model as models
from benchmarks.watch.model import Shape
from benchmarks.watch.systems import HEAD, SUMS, SYSTEMS, plain

SLOW = 10.0  # seconds: a call that takes longer is timed once
PLAIN = "plain forward"


@dataclass
class Row:
    """What one system did with one question at one length."""

    T: int
    question: str
    system: str
    times: list[float] = field(default_factory=list)
    ratio: float | None = None
    memory: int | None = None
    error: float | None = None
    trouble: str | None = None

    @property
    def seconds(self) -> float | None:
        """The best round: what else the machine does only ever adds."""
        return min(self.times, default=None)


def run_length(model: Any, shape: Shape, T: int, device: str, seconds: float, most_bytes: int) -> list[Row]:
    """Both questions at one length, by all systems that can."""
    ids = models.tokens(T, device)
    q, k = models.vectors(model, ids, shape.layer, shape.head)
    truths = {HEAD: models.true_rows(q, k, _sampled_rows(T, device)), SUMS: models.true_column_sums(q, k)}
    rows: list[Row] = [Row(T, "", PLAIN)]
    steps: dict[int, Callable[[], object]] = {0: plain(model, ids)}
    if model.config._attn_implementation != "sdpa":
        rows.append(Row(T, "", f"{PLAIN}, sdpa"))
        steps[1] = plain(models.same_with(model, "sdpa"), ids)
    for question in (HEAD, SUMS):
        for name, make in SYSTEMS.items():
            row = Row(T, question, name)
            rows.append(row)
            try:
                row.trouble = _too_much(name, question, shape, T, most_bytes)
                if row.trouble is None:
                    answers: list[Tensor] = []
                    answer = make(model, ids, shape, question)
                    first = seconds_of(lambda answer=answer: answers.append(answer()), device)
                    row.error = _error(answers.pop(), truths[question], question, shape, device)
                    if first > SLOW:
                        row.times = [first]
                    else:
                        steps[len(rows) - 1] = answer
            except ModuleNotFoundError as trouble:
                row.trouble = f"is not installed ({first_line(trouble)})"
            except Exception as trouble:  # a peer may fail in any way; the table says how
                row.trouble = f"failed: {first_line(trouble)}"
    _time_all(rows, steps, device, seconds)
    for at, step in steps.items():
        rows[at].memory = peak_memory(step, device)
    return rows


def _sampled_rows(T: int, device: str) -> Tensor:
    """The rows that are compared with float64."""
    return torch.linspace(0, T - 1, min(T, 64), device=device).long()


def _too_much(name: str, question: str, shape: Shape, T: int, most_bytes: int) -> str | None:
    need = shape.layers * shape.heads * T * T * shape.dtype.itemsize
    if name == "eager" and need * 2 > most_bytes:
        return f"would keep {need / 2**30:.0f} GiB of weights"
    passes = (shape.layers if question == SUMS else 1) * (1 + -(-T // shape.head_dim))
    if name == "attnread" and passes > 40:
        return f"would take {passes} forward passes"
    return None


def _error(found: Tensor, truth: Tensor, question: str, shape: Shape, device: str) -> float:
    """max |x − truth| over max |truth|, the truth in float64."""
    found = found.to(device)
    found = (
        found[_sampled_rows(found.shape[0], device)] if question == HEAD else found[shape.layer, shape.head]
    )
    return float((found.double() - truth).abs().max() / truth.abs().max())


def _time_all(rows: list[Row], steps: dict[int, Callable[[], object]], device: str, seconds: float) -> None:
    """Every step was called once before. In each round all take their turn, so that noise hits all alike."""
    steps[0]()
    begun = time.perf_counter()
    while len(rows[0].times) < 3 or (time.perf_counter() - begun < seconds and len(rows[0].times) < 200):
        for at, step in steps.items():
            rows[at].times.append(seconds_of(step, device))
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
