"""Time of one layer by sequence length: recurrence beside convolution and attention."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from regard.arguments import integer
from regard.errors import OptionError
from regard.evaluation.layer_cost import comparison
from regard.layers.recurrent import Recurrence
from regard.pictures.line_chart import LineChart


@dataclass(frozen=True)
class LayerTime:
    """A forward pass of one sequence: its length, sequential steps, and median milliseconds."""

    layer: str
    length: int
    steps: int
    milliseconds: float


@dataclass(frozen=True)
class TimesByLength:
    """Times of the layers of `comparison` at several lengths."""

    times: list[LayerTime]
    dim: int
    device: str

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(time.layer for time in self.times))

    def at(self, layer: str, length: int) -> LayerTime:
        """The time of a layer at a length."""
        return next(time for time in self.times if (time.layer, time.length) == (layer, length))

    def ratio(self, length: int) -> float:
        """Time of the recurrent layer / time of attention."""
        return self.at("recurrence", length).milliseconds / self.at("attention", length).milliseconds

    def chart(self) -> LineChart:
        """A line per layer, both axes logarithmic."""
        series = {
            layer: [(time.length, time.milliseconds) for time in self.times if time.layer == layer]
            for layer in self.layers
        }
        title = f"Time of one layer, M = {self.dim}, {self.device}"
        return LineChart(series, title, "length T", "milliseconds", log_x=True, log_y=True)


def time_by_length(
    lengths: Sequence[int],
    dim: int = 64,
    window: int = 16,
    *,
    repeat: int = 9,
    device: torch.device | str = "cpu",
) -> TimesByLength:
    """Time a forward pass of convolution, recurrence, attention and restricted attention at each length.

    >>> times = regard.evaluation.time_by_length([16, 64], dim=8, window=4, repeat=1)
    >>> times.at("recurrence", 64).steps, times.at("attention", 64).steps
    (64, 1)

    Args:
        lengths: sequence lengths T.
        dim: width M of the input and of every layer.
        window: kernel and window size K.
        repeat: timed runs after one that is not timed; the median is taken.
        device: where the layers run.
    """
    if not lengths:
        raise OptionError("lengths is empty; give at least one length, such as 64")
    lengths = [integer("a length", T, 2) for T in dict.fromkeys(lengths)]
    integer("repeat", repeat)
    device = torch.device(device)
    times = []
    for row in comparison(max(lengths), integer("dim", dim), integer("window", window)):
        layer = row.layer.to(device).eval()
        for T in lengths:
            steps = T if isinstance(layer, Recurrence) else 1
            times.append(LayerTime(row.name, T, steps, milliseconds(layer, T, dim, repeat)))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return TimesByLength(times, dim, name)


@torch.no_grad()
def milliseconds(layer: nn.Module, T: int, dim: int, repeat: int) -> float:
    """Median time of a forward pass of one sequence, on the layer's device."""
    device = next(layer.parameters()).device
    x = torch.randn(1, T, dim, device=device)
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        layer(x)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[repeat // 2] * 1000  # the first run loads kernels
