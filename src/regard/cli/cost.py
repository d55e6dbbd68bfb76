"""`regard cost`: Schmidt-Thieme's comparison of layers: quoted, counted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import OptionError

MAX_LENGTH = 16384


def command(
    T: Annotated[int, typer.Option("--length", "-T", min=2, max=MAX_LENGTH, help="Sequence length T.")] = 512,
    dim: Annotated[
        int, typer.Option("--dim", "-M", min=1, max=4096, help="Width M of the input and of every layer.")
    ] = 64,
    window: Annotated[
        int, typer.Option("--window", "-K", min=1, max=4096, help="Kernel size and window size K.")
    ] = 16,
    repeat: Annotated[int, typer.Option(min=1, help="Timed runs of each layer; the median is shown.")] = 9,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="T,T,…", help="Time the layers at these lengths, instead of the comparison."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --lengths: draw the times (.svg, .html, .png or .pdf)."),
    ] = None,
    device: Annotated[str, typer.Option(help="With --lengths: auto, cpu or cuda.")] = "cpu",
) -> None:
    """Compare convolution, recurrence, attention and restricted attention.

    For each layer: parameters, multiply-adds per sequence, path length and sequential steps, as quoted by
    Schmidt-Thieme and as counted from the layer, and the time of one forward pass on this machine. With
    --lengths: the time of each layer by length, and recurrence / attention.

    Examples:

        regard cost -T 512 -M 64 -K 16

        regard cost --lengths 16,64,256,1024 --picture times.svg
    """
    if lengths is not None:
        _print_times(lengths, dim, window, repeat, picture, device)
        return
    if picture is not None or device != "cpu":
        option = "--picture" if picture is not None else "--device"
        raise OptionError(f"{option} is for times by length; add --lengths, or leave {option} out")
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from regard.evaluation.layer_cost import comparison, cost
    from regard.evaluation.layer_time import milliseconds

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
                    f"{milliseconds(row.layer, T, dim, repeat):.2f} ms" if quantity == "operations" else ""
                )
                table.add_row(
                    row.name if i == 0 else "", quantity, quoted, f"{number:,}", measured, end_section=i == 3
                )
    console.print(table)
    for line in _differences(T, window, *counted.values()):
        console.print(f"• {line}", highlight=False)


def _print_times(lengths: str, dim: int, window: int, repeat: int, picture: Path | None, device: str) -> None:
    """Print a table of times by length; draw them if a file is named."""
    from rich.console import Console
    from rich.table import Table

    from regard.cli.jobs import report
    from regard.evaluation.layer_time import time_by_length
    from regard.pictures.picture import check_picture_path
    from regard.training.distributed import pick_device

    path = None if picture is None else check_picture_path(picture)
    numbers = _parse_lengths(lengths)
    times = time_by_length(numbers, dim, window, repeat=repeat, device=pick_device(device))
    table = Table(
        title=f"milliseconds per layer, M = {dim}, K = {window}, {times.device}", title_justify="left"
    )
    for name in ("T", *times.layers, "recurrence / attention"):
        table.add_column(name, justify="right")
    for T in dict.fromkeys(numbers):
        cells = (f"{times.at(layer, T).milliseconds:.3f}" for layer in times.layers)
        table.add_row(f"{T:,}", *cells, f"{times.ratio(T):.1f}")
    Console().print(table)
    if path is not None:
        report(f"drawn in {times.chart().save(path)}")


def _parse_lengths(text: str) -> list[int]:
    """Numbers separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or not 2 <= int(part) <= MAX_LENGTH:
            raise OptionError(
                f"--lengths takes numbers from 2 to {MAX_LENGTH} separated by commas, such as 16,64,256; "
                f"got {part!r}"
            )
    return [int(part) for part in parts]


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
