"""Tests of `show`: text in a terminal, a view in a notebook."""

import io
import sys
from types import SimpleNamespace

import pytest
import torch

import regard
from regard.errors import OptionError
from regard.pictures.notebook_view import AttentionView
from regard.pictures.shown_layers import use_color


@pytest.fixture
def seen():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 1, 2, 3, 8)
    with regard.watch() as seen:
        regard.attend(q, k, v)
    return seen


@pytest.fixture
def notebook(monkeypatch):
    """The kernel of a notebook, as IPython describes it."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def test_show_prints_text_outside_notebooks(seen, capsys):
    assert seen["attend.0"].show(rows=["a", "b", "c"], head=1) is None
    out = capsys.readouterr().out
    weights = seen["attend.0"].weights(batch=0, head=1)
    assert out.startswith("attention, head 1") and "\x1b" not in out
    assert f"{100 * float(weights[2, 0]):.0f}" in out.splitlines()[-1]
    assert seen.show() is None
    assert capsys.readouterr().out.startswith("attend.0, mean of 2 heads")


def test_a_notebook_gets_a_view_of_every_call(seen, notebook):
    view = seen.show(title="two calls")
    assert isinstance(view, AttentionView)
    assert [layer.title for layer in view.layers] == ["attend.0"]
    assert "two calls" in view._repr_html_() and view._repr_html_().startswith("<iframe name=")
    assert torch.equal(view.layers[0].weights, seen["attend.0"].weights(batch=0))


def test_a_head_that_does_not_exist_is_refused(seen):
    with pytest.raises(OptionError, match="head must be an integer below the 2 heads, got 2"):
        seen["attend.0"].show(head=2)


def test_terminals_get_colour_unless_no_color_is_set(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert use_color(terminal) and not use_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_color(terminal)
