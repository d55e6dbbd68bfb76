"""One long sequence, one layer watched: its rows, top keys and column sums, checked in float64."""

from __future__ import annotations

import statistics
from typing import Any

import torch

import regard
from benchmarks.attend.measure import peak_memory
from benchmarks.watch import model as models
from benchmarks.watch.measure import seconds_of
from benchmarks.watch.model import Shape, layer_name
from regard.attention import Recorded, Seen

GIB = 2**30


@torch.no_grad()
def measure(model: Any, shape: Shape, T: int, device: str) -> dict[str, Any]:
    """Time, memory and errors of watching one layer, and of each value computed from the recorded call."""
    ids, name = models.random_tokens(T, device), layer_name(shape.layer)
    recordings: dict[str, Seen] = {}

    def plain() -> None:
        model(ids, use_cache=False, logits_to_keep=1)

    def watched() -> None:
        with regard.watch(model, only=name) as recordings["seen"]:
            plain()

    plain()
    watched()
    times: dict[str, list[float]] = {"plain": [], "watched": []}
    for _ in range(5):
        times["plain"].append(seconds_of(plain, device))
        times["watched"].append(seconds_of(watched, device))
    results: dict[str, Any] = {
        "tokens": T,
        "matrix_gib": shape.heads * T * T * shape.dtype.itemsize / GIB,
        "plain_s": statistics.median(times["plain"]),
        "watched_s": statistics.median(times["watched"]),
        "ratio": statistics.median(b / a for a, b in zip(times["plain"], times["watched"], strict=True)),
        "plain_gib": (peak_memory(plain, device) or 0) / GIB,
        "model_gib": sum(x.numel() * x.element_size() for x in model.parameters()) / GIB,
    }
    recordings.clear()
    results["watched_gib"] = (peak_memory(watched, device) or 0) / GIB
    call = recordings["seen"][name]
    computations = {
        "row": lambda: call.weights(batch=0, head=shape.head, query=T // 2),
        "rows": lambda: call.weights(batch=0, head=shape.head, query=rows.tolist()),
        "top 16 of one head": lambda: call.top(16, batch=0, head=shape.head),
        "column sums of all heads": lambda: call.column_sums(batch=0),
        "entropy of all heads": lambda: call.entropy(batch=0),
    }
    rows = torch.linspace(0, T - 1, 32, device=device).long()
    for label, compute in computations.items():
        compute()
        results[f"{label}, s"] = min(seconds_of(compute, device) for _ in range(3))
        results[f"{label}, GiB"] = (peak_memory(compute, device) or 0) / GIB
    return results | _errors(model, shape, ids, rows, call)


def _errors(
    model: Any, shape: Shape, ids: torch.Tensor, rows: torch.Tensor, call: Recorded
) -> dict[str, float]:
    """max |x − float64| / max |float64| of each value, at sampled rows and at all columns of one head."""
    q, k = models.queries_and_keys(model, ids, shape.layer, shape.head)
    truth = models.reference_rows(q, k, rows)
    weights = call.weights(batch=0, head=shape.head, query=rows.tolist())
    top, columns = call.top(16, batch=0, head=shape.head)
    sums, reference_sums = call.column_sums(batch=0, head=shape.head), models.reference_column_sums(q, k)
    entropy = call.entropy(batch=0, head=shape.head)[rows]

    def error(x: torch.Tensor, y: torch.Tensor) -> float:
        return float((x.double() - y).abs().max() / y.abs().max())

    return {
        "error of rows": error(weights, truth),
        "error of top 16": max(
            error(top[rows], truth.topk(16, -1).values), error(top[rows], truth.gather(-1, columns[rows]))
        ),
        "error of column sums": error(sums, reference_sums),
        "error of entropy": error(entropy, torch.special.entr(truth).sum(-1)),
    }


def format_results(results: dict[str, Any], shape: Shape) -> str:
    """The results of `measure` as lines of text."""
    peaks = results["plain_gib"], results["watched_gib"]
    memory_ratio = (peaks[1] + results["model_gib"]) / (peaks[0] + results["model_gib"])
    lines = [
        f"{results['tokens']} tokens; {shape}; one layer watched, "
        f"its full weight matrices would take {results['matrix_gib']:.1f} GiB",
        f"forward {results['plain_s'] * 1000:.1f} ms, watched {results['watched_s'] * 1000:.1f} ms: "
        f"{results['ratio']:.3f} times; peak {peaks[0]:.2f} and {peaks[1]:.2f} GiB beside the model's "
        f"{results['model_gib']:.2f}: {memory_ratio:.3f} times",
    ]
    lines += [
        f"{name[:-3]}: {value * 1000:.1f} ms, {results[name[:-1] + 'GiB']:.3f} GiB"
        for name, value in results.items()
        if name.endswith(", s")
    ]
    return "\n".join(
        [*lines, *(f"{name}: {value:.1e}" for name, value in results.items() if name.startswith("error"))]
    )
