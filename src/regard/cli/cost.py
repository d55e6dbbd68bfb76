"""`regard cost`: Schmidt-Thieme's comparison of layers: quoted, counted and measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from regard.cli.option_groups import OptionGroup, grouped, option
from regard.errors import OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from regard.evaluation.layer_cost import Cost, CostRow

MAX_LENGTH = 16384
LEGEND = """\
quoted: the formula in Schmidt-Thieme's lecture, for this T, M and K; – if none
counted: from the layer itself; operations are multiply-adds of one sequence
measured: median time of a forward pass of one sequence on this machine\
"""


@dataclass(frozen=True)
class LayerOptions(OptionGroup):
    """The size of the layers, and how often they are timed."""

    T: Annotated[int, option("--length", "-T", min=2, max=MAX_LENGTH, help="Sequence length T.")] = 512
    dim: Annotated[
        int, option("--dim", "-M", min=1, max=4096, help="Width M of the input and of every layer.")
    ] = 64
    window: Annotated[
        int, option("--window", "-K", min=1, max=4096, help="Kernel size and window size K.")
    ] = 16
    repeat: Annotated[int, option(min=1, help="Timed runs of each layer; the median is shown.")] = 9


@dataclass(frozen=True)
class TimeOptions(OptionGroup):
    """Times by length instead of the comparison."""

    lengths: Annotated[
        str | None,
        option(metavar="T,T,…", help="Time the layers at these lengths, instead of the comparison."),
    ] = None
    picture: Annotated[
        Path | None,
        option(metavar="FILE", help="With --lengths: draw the times (.svg, .html, .png or .pdf)."),
    ] = None
    device: Annotated[str, option(help="With --lengths: auto, cpu or cuda.")] = "cpu"

    def check(self) -> None:
        """Raise OptionError for options that need --lengths."""
        if self.lengths is None and (self.picture is not None or self.device != "cpu"):
            name = "--picture" if self.picture is not None else "--device"
            raise OptionError(f"{name} is for times by length; add --lengths, or leave {name} out")


@grouped
def command(*, layers: LayerOptions, times: TimeOptions) -> None:
    """Compare convolution, recurrence, attention and restricted attention.

    For each layer: parameters, multiply-adds per sequence, path length and sequential steps, as quoted by
    Schmidt-Thieme and as counted from the layer, and the time of one forward pass on this machine. With
    --lengths: the time of each layer by length, and recurrence / attention.

    Examples:

        regard cost -T 512 -M 64 -K 16

        regard cost --lengths 16,64,256,1024 --picture times.svg
    """
    times.check()
    if times.lengths is None:
        _print_comparison(layers)
    else:
        _print_times(layers, times, _parse_lengths(times.lengths))


def _print_comparison(options: LayerOptions) -> None:
    """Print the quoted, counted and measured cost of each layer, and where quoted and counted differ."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from regard.evaluation.layer_cost import comparison, cost, quoted_differences
    from regard.evaluation.layer_time import milliseconds

    console = Console()
    T, dim, window = options.T, options.dim, options.window
    table = Table(title=f"T = {T}, M = {dim}, K = {window}", title_justify="left")
    for name in ("layer", ""):
        table.add_column(name)
    for name in ("quoted", "counted", "measured"):
        table.add_column(name, justify="right")
    costs = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for row in progress.track(comparison(T, dim, window), description="counting and timing"):
            costs.append(cost(row.layer, T))
            _add_rows(table, row, costs[-1], milliseconds(row.layer, T, dim, options.repeat))
    console.print(table)
    console.print(LEGEND, highlight=False)
    for line in quoted_differences(T, window, *costs):
        console.print(f"• {line}", highlight=False)


def _add_rows(table: Table, row: CostRow, counted: Cost, milliseconds: float) -> None:
    """Add the quantities of a layer, one line each, to the table."""
    quoted = [
        "–" if value is None else formula if formula == "1" else f"{formula} = {value:,.10g}"
        for formula, value in zip(row.quoted, row.quoted_values, strict=True)
    ]
    time = f"{milliseconds:.2f} ms"
    table.add_row(row.name, "parameters", quoted[0], f"{counted.parameters:,}", "")
    table.add_row("", "operations", quoted[1], f"{counted.operations:,}", time)
    table.add_row("", "path length", quoted[2], f"{counted.path_length:,}", "")
    table.add_row("", "steps", quoted[3], f"{counted.steps:,}", "", end_section=True)


def _print_times(options: LayerOptions, output: TimeOptions, lengths: list[int]) -> None:
    """Print a table of times by length; draw them if a file is named."""
    from rich.console import Console
    from rich.table import Table

    from regard.attention.devices import pick_device
    from regard.cli.jobs import report
    from regard.evaluation.layer_time import time_by_length
    from regard.pictures.picture import check_picture_path

    path = None if output.picture is None else check_picture_path(output.picture)
    times = time_by_length(
        lengths, options.dim, options.window, repeat=options.repeat, device=pick_device(output.device)
    )
    title = f"milliseconds per layer, M = {options.dim}, K = {options.window}, {times.device}"
    table = Table(title=title, title_justify="left")
    for name in ("T", *times.layers, "recurrence / attention"):
        table.add_column(name, justify="right")
    for T in dict.fromkeys(lengths):
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
