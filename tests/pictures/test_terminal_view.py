"""Tests of attention weights as text."""

import re

import torch

from regard.pictures.shown_layers import ShownLayer
from regard.pictures.terminal_view import terminal_text

WEIGHTS = torch.tensor([[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]], [[0.5, 0.5, 0.0], [0.2, 0.1, 0.7]]])
LAYER = ShownLayer(
    "cross-attention, layer 0", WEIGHTS, ["▁Wo", "</s>"], ["▁Where", "▁is", "</s>"], ("target", "source")
)


def test_a_layer_is_a_matrix_of_percentages():
    lines = terminal_text([LAYER], 0, None, "Where is → Wo", width=80).splitlines()
    assert lines == [
        "Where is → Wo",
        "cross-attention, layer 0, mean of 2 heads: rows are target, columns source; weights in percent",
        "    Where  is end",
        "Wo     70  30   ·",
        "end    20  20  60",
    ]
    assert terminal_text([LAYER], 0, 1, width=80).splitlines()[-1] == "end    20  10  70"


def test_colour_shades_cells_and_does_not_change_the_text():
    plain, colored = (terminal_text([LAYER], 0, 0, width=80, colored=colored) for colored in (False, True))
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == plain
    shades = re.findall(r"\x1b\[48;2;(\d+);(\d+);(\d+)", colored)
    dark, light = (sum(map(int, shade)) for shade in (shades[0], shades[2]))  # 90 % and 0 %
    assert dark < light - 200


def test_a_matrix_that_is_too_wide_becomes_the_largest_weights_of_each_row():
    tokens = [f"▁token{i}" for i in range(30)]
    weights = torch.full((1, 1, 30), 0.01)
    weights[0, 0, 7], weights[0, 0, 3] = 0.5, 0.22
    text = terminal_text([ShownLayer("a", weights, ["x"], tokens), LAYER], 0, 0, width=60)
    assert text.splitlines()[1:] == [
        "x  token7 50 · token3 22 · token0 1 · token1 1 · rest 26",
        "also: cross-attention, layer 0",
    ]


def test_wide_characters_keep_columns_aligned():
    layer = ShownLayer("a", torch.eye(2)[None], ["日本", "語"], ["日本", "語"])
    lines = terminal_text([layer], 0, 0, width=80).splitlines()[1:]
    assert lines == ["     日本  語", "日本  100   ·", "語      · 100"]
