"""Tests of regard.evaluation.layer_time: what is timed and how it is listed; no seconds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import OptionError
from regard.evaluation import time_by_length
from regard.evaluation.layer_time import LayerTime, TimesByLength, milliseconds


def test_each_layer_is_timed_at_each_length():
    times = time_by_length([8, 32, 8], dim=8, window=4, repeat=1)
    assert times.layers == ["convolution", "recurrence", "attention", "restricted attention"]
    assert [time.length for time in times.times] == [8, 32] * 4
    assert all(time.milliseconds > 0 for time in times.times)
    steps = {time.layer: time.steps for time in times.times if time.length == 32}
    assert steps == {"convolution": 1, "recurrence": 32, "attention": 1, "restricted attention": 1}


def test_the_ratio_is_recurrence_over_attention():
    times = TimesByLength([LayerTime("recurrence", 4, 4, 6.0), LayerTime("attention", 4, 1, 2.0)], 8, "cpu")
    assert times.ratio(4) == 3.0
    chart = times.chart()
    assert chart.series == {"recurrence": [(4, 6.0)], "attention": [(4, 2.0)]}
    assert "M = 8, cpu" in chart.title


def test_the_layer_runs_once_more_than_it_is_timed():
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            assert x.shape == (1, 5, 3) and not torch.is_grad_enabled()
            return super().forward(x)

    layer = Counting(3, 3)
    assert milliseconds(layer, T=5, dim=3, repeat=4) > 0
    assert layer.calls == 5


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([], {}, "lengths is empty"),
        ([1], {}, "a length"),
        ([8], {"repeat": 0}, "repeat"),
        ([8], {"dim": 0}, "dim"),
    ],
)
def test_wrong_arguments_are_errors(lengths: list[int], options: dict, message: str):
    with pytest.raises(OptionError, match=message):
        time_by_length(lengths, **options)
