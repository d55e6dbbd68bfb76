"""Tests of weight_matrix.py: any script, limited width, with and without colour."""

import io
import re

import pytest
import torch
from rich.cells import cell_len

from regard.cli.weight_matrix import render, shows_color
from regard.errors import ShapeError


def test_a_small_matrix_is_drawn():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.05, 0.6, 0.35], [0.3, 0.2, 0.5]])
    assert render(weights, ["ich", "sehe", "es"], ["I", "see", "it"], color=False, width=80) == "\n".join(
        [
            "      s",
            "    i e",
            "    c h e",
            "    h e s",
            "  I ██",
            "see   ▒▒░░",
            " it ░░░░▒▒",
        ]
    )


def test_wide_characters_keep_their_columns():
    weights = torch.eye(3)
    text = render(weights, ["犬が", "👩‍🚀", "café"], ["dog", "女性", "e\u0301té"], color=False, width=80)
    lines = text.splitlines()
    assert lines[-3:] == [" dog ██", "女性   ██", " e\u0301té     ██"]
    starts = [cell_len(line[: line.index("█")].replace("e\u0301", "e")) for line in lines[-3:]]
    assert starts == [5, 7, 9]
    assert "犬" in lines[2] and "が👩‍🚀é" in lines[3]  # double-width characters, so columns touch


def test_columns_that_do_not_fit_are_drawn_below_with_a_note():
    words = [f"w{i}" for i in range(25)]
    text = render(torch.eye(25), words, words, color=False, width=30)
    assert max(map(len, text.splitlines())) <= 30
    assert [line for line in text.splitlines() if line.startswith("source")] == [
        "source words 1 to 13 of 25",
        "source words 14 to 25 of 25",
    ]
    assert text.count("█") == 50
    assert "source words" not in render(torch.eye(25), words, words, color=False, width=80)
    render(torch.eye(25), words, words, color=False, width=1)  # one column at a time is the minimum


def test_long_words_are_truncated_and_control_characters_removed():
    text = render(
        torch.ones(1, 1),
        ["Donaudampfschifffahrtsgesellschaft"],
        ["x" * 50 + "\x1b[2J\n"],
        color=False,
        width=80,
    )
    assert "…" in text and "\x1b" not in text
    assert len(text.splitlines()) == 12 + 1
    assert text.splitlines()[-1] == "x" * 19 + "… ██"


def test_colour_is_added_around_the_same_shades():
    weights = torch.rand(4, 5)
    words = ["a", "b", "c", "d", "e"]
    coloured, plain = (render(weights, words, words[:4], color=color, width=80) for color in (True, False))
    assert "\x1b[38;5;" in coloured and "\x1b" not in plain
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


def test_stronger_weights_are_never_lighter():
    shades = " ░▒▓█"
    row = render(torch.linspace(0, 1, 101)[None], ["x"] * 101, ["y"], color=False, width=300).splitlines()[-1]
    result = [shades.index(c) for c in row.removeprefix("y ").ljust(202)[::2]]
    assert result == sorted(result) and set(result) == set(range(5))
    assert result[9] == 0 and result[11] == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_no_color_dumb_terminals_and_files_stay_plain(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert shows_color(Terminal()) and not shows_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not shows_color(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not shows_color(Terminal())


def test_weights_that_do_not_match_the_words_are_refused():
    with pytest.raises(ShapeError, match="must have shape \\(1, 2\\), target × source words, got \\(2, 1\\)"):
        render(torch.ones(2, 1), ["a", "b"], ["x"], color=False, width=80)
    assert render(torch.zeros(0, 0), [], [], color=False, width=80) == ""
