"""Tests of `attention.show()` in Chromium: several views in one notebook, and the widget around one.

Covers pictures/notebook_widget.py.
"""

import re

import pytest

import regard
from regard.errors import OptionError
from tests.explorer.toy import until

TEXT = "the red dog"
# What VS Code's notebooks allow at the least (notebook.experimental.enableCsp); the frame inherits it.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src https: http: data:; font-src https:; connect-src https:; child-src https: data:"
)


@pytest.fixture
def view(model, monkeypatch):
    monkeypatch.setattr("regard.pictures.shown_layers.in_notebook", lambda: True)
    return regard.translate(TEXT, model, attention=True).attention.show()


def test_two_views_in_one_notebook_choose_heads_and_read_numbers_independently(tab, view, tmp_path):
    page = tmp_path / "notebook.html"
    head = f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>n</title>'
    page.write_text(f"{head}{view._repr_html_()}{view._repr_html_()}", encoding="utf-8")
    tab.context.unroute_all()
    tab.goto(page.as_uri())
    first, second = (tab.frame_locator("iframe").nth(i) for i in (0, 1))
    first.locator(".lines button.word").first.wait_for()
    assert first.locator("h2").inner_text() == "the red dog → der roter hund"
    first.get_by_role("combobox", name="attention").select_option(label="encoder self-attention, layer 0")
    first.get_by_role("combobox", name="head").select_option(label="head 1")
    first.locator("canvas").focus()
    for key in ("ArrowDown", "ArrowRight"):
        first.locator("canvas").press(key)
    weight = float(view.layers[0].weights[1, 1, 1])
    assert first.locator(".reading").inner_text().endswith(f"red: {weight:.3f}")
    assert first.locator(".lines button.word").all_inner_texts() == ["the", "red", "dog", "end"]
    assert second.locator(".reading").inner_text().startswith("der attends to")


def test_a_view_needs_no_other_file_and_no_loader(view):
    html = view.html()
    assert not re.search(
        r"https?://(?!www\.w3\.org/)|\b(?:src|href)=|\brequire\b|\bimport\b *[({\"']|@import", html
    )


def test_the_choice_is_sent_to_python_and_taken_from_there(tab, view):
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    keys = ("view", "layer", "head", "row", "column")
    state = {key: getattr(view.choice, key) for key in keys}
    assert repr(view.choice).startswith("ViewSelection(layer=")  # what a notebook without widgets shows
    assert state == {"view": view.id, "layer": 4, "head": -1, "row": 0, "column": -1}
    tab.context.unroute_all()
    tab.set_content(f"<!doctype html><title>w</title>{view._repr_html_()}")
    tab.evaluate(
        """async ([script, state]) => {
          const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" })), listeners = {};
          const widget = (await import(url)).default;
          window.model = { saved: 0, get: (key) => state[key], save_changes() { this.saved++; },
            on: (name, f) => { listeners[name] = f; }, off: (name) => { delete listeners[name]; },
            set: (key, value) => {
              if (state[key] !== value) { state[key] = value; listeners[`change:${key}`]?.(); }
            } };
          widget.render({ model: window.model });
        }""",
        [str(view.choice._esm), state],
    )
    frame = tab.frame_locator("iframe")
    frame.get_by_role("combobox", name="head").select_option(label="head 1")
    until(tab, "window.model.get('head') === 1 && window.model.saved > 0")
    tab.evaluate("window.model.set('layer', 0)")
    until(tab, "window.model.get('row') === 0")
    frame.locator(".reading b", has_text="the").wait_for()
    assert frame.get_by_role("combobox", name="attention").input_value() == "0"


def test_without_anywidget_the_choice_names_what_is_missing(view, monkeypatch):
    monkeypatch.setattr("regard.pictures.notebook_view.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r'needs anywidget; pip install "regard\[notebook\]"'):
        view.choice  # noqa: B018 (a property that raises)
