"""Tests of `attention.show()` in Chromium: several views in one notebook, and the widget around one."""

import re

import pytest

import regard
from regard.pictures.notebook_view import AttentionView
from tests.explorer.toy import until

TEXT = "the red dog"


@pytest.fixture
def view(model, monkeypatch):
    monkeypatch.setattr("regard.pictures.shown_layers.in_notebook", lambda: True)
    monkeypatch.setattr("regard.pictures.notebook_view.find_spec", lambda name: None)
    return regard.translate(TEXT, model, attention=True).attention.show()


def test_two_views_in_one_notebook_choose_heads_and_read_numbers_independently(tab, view, tmp_path):
    page = tmp_path / "notebook.html"
    page.write_text(
        f"<!doctype html><title>n</title>{view._repr_html_()}{view._repr_html_()}", encoding="utf-8"
    )
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


def test_the_widget_sends_the_choice_to_python_and_takes_it_from_there(tab, view):
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    from regard.pictures.notebook_widget import AttentionWidget

    widget = AttentionWidget(view)
    state = {key: getattr(widget, key) for key in ("page", "height", "layer", "head", "row", "column")}
    assert isinstance(widget.view, AttentionView)
    tab.context.unroute_all()
    tab.set_content("<!doctype html><title>w</title><div id=cell></div>")
    tab.evaluate(
        """async ([script, state]) => {
          const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" })), listeners = {};
          const widget = (await import(url)).default;
          window.model = { saved: 0, get: (key) => state[key], save_changes() { this.saved++; },
            on: (name, f) => { listeners[name] = f; }, off: (name) => { delete listeners[name]; },
            set: (key, value) => {
              if (state[key] !== value) { state[key] = value; listeners[`change:${key}`]?.(); }
            } };
          widget.render({ model: window.model, el: document.getElementById("cell") });
        }""",
        [widget._esm if isinstance(widget._esm, str) else str(widget._esm), state],
    )
    frame = tab.frame_locator("iframe")
    frame.get_by_role("combobox", name="head").select_option(label="head 1")
    until(tab, "window.model.get('head') === 1 && window.model.saved > 0")
    tab.evaluate("window.model.set('row', 2)")
    frame.locator(".reading b", has_text=re.compile("hu|ro|nd")).first.wait_for()
    widget.set_state({"head": 1, "layer": 4})
    assert widget.weights.equal(view.layers[4].weights[1])
