"""`regard cost`: Schmidt-Thieme's comparison of layers: quoted, counted and measured."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def command(
    T: Annotated[int, typer.Option("--length", "-T", min=2, max=16384, help="Sequence length T.")] = 512,
    dim: Annotated[
        int, typer.Option("--dim", "-M", min=1, max=4096, help="Width M of the input and of every layer.")
    ] = 64,
    window: Annotated[
        int, typer.Option("--window", "-K", min=1, max=4096, help="Kernel size and window size K.")
    ] = 16,
    repeat: Annotated[int, typer.Option(min=1, help="Timed runs of each layer; the median is shown.")] = 9,
) -> None:
    """Compare convolution, recurrence, attention and restricted attention.

    For each layer: parameters, multiply-adds per sequence, path length and sequential steps, as quoted by
    Schmidt-Thieme and
    as counted from the layer, and the time of one forward pass on this machine.

    Example:

        regard cost -T 512 -M 64 -K 16
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from regard.evaluation.layer_cost import comparison, cost

    console = Console()
    table = Table(title=f"T = {T}, M = {dim}, K = {window}", title_justify="left")
    for name in ("layer", "", "quoted", "counted", "measured"):
        table.add_column(name, justify="right" if name in ("quoted", "counted", "measured") else "left")
    counted = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for row in progress.track(comparison(T, dim, window), description="counting and timing"):
            layer_cost = counted[row.name] = cost(row.layer, T)
            numbers = (layer_cost.parameters, layer_cost.operations, layer_cost.path_length, layer_cost.steps)
            for i, (quantity, number) in enumerate(
                zip(("parameters", "operations", "path length", "steps"), numbers, strict=True)
            ):
                value = row.quoted_values[i]
                quoted = (
                    "–"
                    if value is None
                    else f"{row.quoted[i]} = {value:,.10g}"
                    if row.quoted[i] != "1"
                    else "1"
                )
                measured = (
                    f"{_milliseconds(row.layer, T, dim, repeat):.2f} ms" if quantity == "operations" else ""
                )
                table.add_row(
                    row.name if i == 0 else "", quantity, quoted, f"{number:,}", measured, end_section=i == 3
                )
    console.print(table)
    for line in _differences(T, window, *counted.values()):
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


def _differences(T: int, K: int, conv, recurrent, full, band) -> list[str]:  # noqa: ANN001
    """Return where the quoted and the counted numbers differ."""
    fewer = "fewer" if full.parameters < conv.parameters else "not fewer"
    return [
        f"T²M leaves out the projections, 3TM² = {full.parts['projections']:,}, and counts one of two "
        f"products: energies {full.parts['energies']:,} and values {full.parts['values']:,}",
        f"a band of K = {K} reaches K/2 to each side (K + 1 keys for even K), so joining all pairs takes "
        f"about 2T/K = {2 * T / K:g} layers, counted {band.path_length}, not T/K = {T / K:g}; the "
        f"convolution: {conv.path_length}",
        f"a recurrent layer multiplies its input and its state: 2TM² = {recurrent.operations:,}, not TM²",
        f"attention has fewer parameters than a convolution only for K > 3; here 3M² = {full.parameters:,} "
        f"is {fewer} than KM² = {conv.parameters:,}",
    ]
