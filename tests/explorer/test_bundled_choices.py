"""Tests of bundled_choices.py: the models that the page offers, loaded when they are chosen."""

import json

import pytest
import torch

from regard.explorer import bundled_choices
from regard.explorer.bundled_choices import ModelChoice
from regard.explorer.explorer_routes import Explorer
from regard.models.catalog import CatalogEntry
from regard.models.folder import load
from regard.serving.generation_service import GenerationService
from tests.decoding import model_folders
from tests.explorer import toy
from tests.explorer.toy import type_text, until
from tests.serving.server import running


def test_the_default_translator_comes_first_then_other_translators(monkeypatch, tmp_path):
    def entry(name, task, default=False):
        header = {"about": name, "task": task, "languages": ("en",), "license": "MIT", "default": default}
        return CatalogEntry(name=name, folder=tmp_path / name, **header)

    entries = [entry("films", "classify", True), entry("fr", "translate"), entry("plays", "generate")]
    entries.append(entry("de", "translate", True))
    monkeypatch.setattr(bundled_choices, "known_models", lambda: {e.name: e for e in entries})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert [c.name for c in bundled_choices.bundled_choices()] == ["de", "fr", "plays", "films", "minilm"]


@pytest.fixture
def films(tmp_path):
    torch.manual_seed(3)
    path = model_folders.classifier(tmp_path, encoder=toy.ENCODER)
    loads = []
    return loads, ModelChoice("films", lambda: (loads.append(1), load(path))[1])


TASKS = {  # a text of each task, and the tabs
    "translate": ("Where is my book?", "Alignment Heads Search"),
    "generate": ("The king", "Heads Search"),
    "classify": ("a film to remember", "Heads"),
    "tag": ("Ada met Tom in London.", "Heads"),
}
READY = {
    "Alignment": ".lines button.word",
    "Heads": ".thumb",
    "Search": ".node.best",
    "What if": "#view select",
    "Trust": ".trust #verdict, .trust .empty",  # not “Loading…”, which is outside of the view
    "Compare": ".triple canvas, .verdict",
    "Mechanism": ".calc",
}


def test_every_view_of_the_bundled_models(tab):
    first, *others = bundled_choices.bundled_choices()
    service = GenerationService(first.load(), first.name, workers=1)
    service.extensions.append(Explorer(service, choices=others).add_routes)
    with running(service) as client:
        verdicts, tasks = [], dict(TASKS)
        for index in range(1 + len(others)):
            task = json.loads(client.get(f"/explore/api/model?index={index}")[2])["task"]
            if task not in tasks:  # a second translator; MiniLM is in test_page_service.py
                continue
            text, names = tasks.pop(task)
            tab.goto(f"http://127.0.0.1:{client.port}/explore/?model={index}&other=a+man&mode=text")
            until(tab, "document.getElementById('output').hasChildNodes()")
            type_text(tab, text)
            tabs = tab.locator("[role=tab]").all_inner_texts()
            assert tabs == [*names.split(), "What if", "Trust", "Compare", "Mechanism"]
            assert tab.locator("header.bar").bounding_box()["height"] < 70  # one line, with the longest name
            for view in tabs:
                tab.get_by_role("tab", name=view).click()
                if task == "tag" and view in ("Heads", "What if"):  # this tagger is recurrent
                    tab.wait_for_selector("text=This model has no attention to show.")
                else:
                    tab.wait_for_selector(READY[view])
                    if view == "What if":
                        tab.get_by_role("button", name="Change and run again").click()
                        tab.wait_for_selector(".result .answer")
                    verdicts += tab.locator("#verdict b").all_inner_texts()
                if task == "generate" and view == "Search":  # of characters, none continues a word
                    assert "‑" not in "".join(tab.locator(".tree .node").all_inner_texts())
            assert tab.locator("#error").is_hidden()
        # Translator, language model and classifier have a decision that attention may explain.
        assert (
            not tasks and len(verdicts) == 3 and all(" explanation of “" in verdict for verdict in verdicts)
        )
        tab.goto("about:blank")


def test_a_model_is_loaded_when_it_is_chosen_in_the_page(tab, model, films):
    loads, choice = films
    service = GenerationService(model, "toy", workers=1)
    service.extensions.append(Explorer(service, choices=[choice]).add_routes)
    with running(service) as client:
        tab.goto(f"http://127.0.0.1:{client.port}/explore/?text=the+dog&view=trust")
        until(tab, "document.getElementById('output').textContent.startsWith('der hund')")
        description = json.loads(client.get("/explore/api/model")[2])
        assert description["choices"] == [["0", "toy"], ["1", "films"]] and loads == []
        tab.get_by_role("combobox", name="model").select_option(label="films")
        tab.wait_for_selector(".thumb")
        assert tab.inner_text("#go") == "Classify" and loads == [1] and "model=1" in tab.url
        tabs = tab.locator("[role=tab]").all_inner_texts()
        assert tabs == ["Heads", "What if", "Trust", "Compare", "Mechanism"]
        tab.get_by_role("tab", name="Trust").click()
        tab.wait_for_selector(".figure")
        tab.get_by_role("tab", name="Heads").click()
        tab.get_by_role("button", name="energy", exact=True).click()
        until(tab, "document.querySelector('.reading').textContent.includes('largest')")
        tab.reload()
        tab.wait_for_selector(".thumb")
        assert tab.inner_text("#go") == "Classify" and loads == [1]
        assert client.get("/explore/api/model?index=2")[0] == 422
        tab.get_by_role("combobox", name="model").select_option(label="toy")
        tab.locator("#go", has_text="Translate").wait_for()
        tab.goto("about:blank")
