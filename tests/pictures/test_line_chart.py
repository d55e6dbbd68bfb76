"""Tests of regard.pictures.line_chart."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from regard.errors import OptionError
from regard.pictures import LineChart
from regard.pictures.line_chart import ticks


def test_ticks_surround_the_values_and_are_round():
    assert [value for value, _ in ticks([0.0, 1.0])] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks([3.0, 3.0])[0] == (3.0, "3")
    assert [label for _, label in ticks([2e-12, 0.03], log=True)] == [
        "1e-12",
        "1e-10",
        "1e-8",
        "1e-6",
        "1e-4",
        "1e-2",
        "1",
    ]
    assert [value for value, _ in ticks([16, 700], log=True)] == [10, 100, 1000]


@pytest.mark.parametrize("values", [[-1e-9, 1e9], [5.0], [0.1, 0.1000001], [-3, -2]])
def test_outer_ticks_enclose_the_values(values: list[float]):
    marks = [value for value, _ in ticks(values)]
    assert marks[0] <= min(values) + 1e-9 and marks[-1] >= max(values) - 1e-9 and len(marks) >= 2


def test_points_are_drawn_at_their_coordinates():
    chart = LineChart({"a <b>": [(1, 0), (10, 0.5), (100, 1)]}, title="x & y", log_x=True)
    root = ElementTree.fromstring(chart.svg())  # well-formed, escaped
    circles = [element for element in root.iter() if element.tag.endswith("circle")]
    x, y = ([float(circle.get(axis, "")) for circle in circles] for axis in ("cx", "cy"))
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)  # decades are equally wide
    assert y[0] - y[1] == pytest.approx(y[1] - y[2], abs=0.2) and y[0] > y[2]
    assert len(re.findall("a &lt;b&gt;: 10, 0.5", chart.svg())) == 1


def test_points_can_be_drawn_without_lines():
    points = {"one": [(0, 1), (1, 2), (2, 0)]}
    line, dots = (LineChart(points, connect=connect).svg() for connect in (True, False))
    assert line.count("<circle") == dots.count("<circle") == 3
    assert line.count("<path") == dots.count("<path") + 1


def test_a_line_chart_can_be_drawn_with_matplotlib(tmp_path):
    pytest.importorskip("matplotlib")
    path = LineChart({"one": [(0, 1), (1, 2)], "two": [(0, 2)]}).save(tmp_path / "chart.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"series": {}}, "nothing to draw"),
        ({"series": {"a": [(1, 0.0)]}, "log_y": True}, "y of 'a' must be positive"),
        ({"series": {"a": [(1, float("nan"))]}}, "must be finite, got nan"),
        ({"series": {str(i): [(0, 0)] for i in range(6)}}, "at most 5 series, got 6"),
    ],
)
def test_invalid_line_charts_are_errors(options: dict, message: str):
    with pytest.raises(OptionError, match=message):
        LineChart(**options)
