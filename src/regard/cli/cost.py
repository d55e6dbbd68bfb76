"""`regard cost`: the lecture's comparison of layers, quoted beside counted beside measured."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def command(
    T: Annotated[int, typer.Option("--length", "-T", min=2, max=16384, help="Sequence length T.")] = 512,
    dim: Annotated[int, typer.Option("--dim", "-M", min=1, max=4096, help="Width M of the input and of every layer.")] = 64,
    window: Annotated[int, typer.Option("--window", "-K", min=1, max=4096, help="Kernel size and window size K.")] = 16,
    repeat: Annotated[int, typer.Option(min=1, help="Timed runs of each layer; the median is shown.")] = 9,
) -> None:
    """Compare convolution, recurrence, attention and restricted attention.

    For each layer: parameters, operations (multiply-adds for one sequence), path length and sequential steps, as the lecture
    quotes them, as they are counted from the layer itself, and the time of one forward pass here.
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from regard.evaluation.cost import comparison, cost

    console = Console()
    table = Table(title=f"T = {T}, M = {dim}, K = {window}: quoted → counted", title_justify="left")
    for name in ("layer", "parameters", "operations", "path length", "steps", "ms"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    rows = comparison(T, dim, window)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for row in progress.track(rows, description="counting and timing"):
            counted = cost(row.layer, T)
            quoted = [f"{name} = {value:g}" if value else "–" for name, value in zip(row.quoted, row.quoted_values, strict=True)]
            values = (f"{counted.parameters:,}", f"{counted.operations:,}", f"{counted.path_length:,}")
            cells = [f"{a} → {b}" for a, b in zip(quoted, values, strict=True)]
            table.add_row(row.name, *cells, f"{counted.steps:,}", f"{_milliseconds(row.layer, T, dim, repeat):.2f}")
    console.print(table)
    for line in differences(T, dim, window):
        console.print(f"• {line}", highlight=False)


def _milliseconds(layer, T: int, dim: int, repeat: int) -> float:  # noqa: ANN001
    import torch

    x = torch.randn(1, T, dim)
    times = []
    with torch.no_grad():
        layer(x)
        for _ in range(repeat):
            start = time.perf_counter()
            layer(x)
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1000


def differences(T: int, M: int, K: int) -> list[str]:
    """Where what is quoted and what is counted differ, in numbers."""
    from regard.evaluation.cost import comparison, cost

    conv, _, full, band = (cost(row.layer, T) for row in comparison(T, M, K))
    fewer = "fewer" if full.parameters < conv.parameters else "not fewer"
    return [
        f"attention's T²M leaves out the projections, 3TM² = {full.parts['projections']:,}, and counts one of two products: "
        f"energies {full.parts['energies']:,} and values {full.parts['values']:,}",
        f"a band of K = {K} reaches K/2 = {K // 2} to each side and holds K + 1 keys for even K, so joining all pairs takes "
        f"about 2T/K = {2 * T / K:g} layers, counted {band.path_length}, not T/K = {T / K:g}",
        f"a convolution of K = {K} reaches about K/2 too: {conv.path_length} layers",
        f"attention has fewer parameters than a convolution only for K > 3: 3M² = {full.parameters:,} is {fewer} than "
        f"KM² = {conv.parameters:,}",
    ]
