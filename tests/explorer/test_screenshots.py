"""The screenshots of README and docs: opens the views that they show, and writes the pictures on request.

REGARD_SCREENSHOTS=docs/images REGARD_MODEL=runs/small python -m pytest tests/explorer/test_screenshots.py

writes them with the model in REGARD_MODEL, or with the bundled translator; without REGARD_SCREENSHOTS the toy
translator is shown, and nothing is written.
"""

import os
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from regard.explorer.explorer_routes import Explorer
from regard.models.default import default_model
from regard.models.folder import load
from regard.serving.generation_service import GenerationService
from tests.serving.server import running

ROOT = Path(__file__).parents[2]
FOLDER = os.environ.get("REGARD_SCREENSHOTS")
SIZE = {"width": 1280, "height": 820}
REAL = {
    "text": "I don't know why he wants to go to Boston.",
    "probe": "The doctor said that he/she was late.",
    "row": 4,
    "word": "in",
}
TOY = {"text": "the red dog sees a house", "probe": "the man/dog sees a ball", "row": 2, "word": "kleiner"}
SHOWN = REAL if FOLDER else TOY


def force(page):
    """Force a word in place of the least certain token."""
    page.get_by_label("A word to force here").fill(SHOWN["word"])
    page.keyboard.press("Enter")
    page.wait_for_selector(".node.forced")


def change(page):
    page.get_by_role("button", name="Change and run again").click()
    page.wait_for_selector(".pair .answer")


# Name of the picture → state in the address, selector to wait for, action on the page, texts it shows.
SHOTS = {
    "alignment": (
        {"row": SHOWN["row"]},
        ".trust-line button",
        None,
        (" attends to ", "Can you trust it? For "),
    ),
    "heads": (
        {"map": -1, "head": 1, "row": SHOWN["row"]},
        ".trust-line button",
        None,
        ("Cross-attention, layer 2, head 2", "How different the heads are", "+ mask"),
    ),
    "search": ({"beam": 4}, ".panel table", force, ("as the model searched", "from the forced tokens")),
    "whatif": ({"map": -1}, "#view .matrix canvas", change, ("attention changed", "probability of")),
    "trust": ({"row": SHOWN["row"]}, ".figure", None, ("Does attention explain ", "τ with leave-one-out")),
    "compare": (
        {"mode": "probe", "other": SHOWN["probe"]},
        ".triple canvas",
        None,
        ("Probability of each translation", "difference"),
    ),
}


@pytest.fixture(scope="module")
def shown(request):
    """The address of the page, and the number of attention maps of the model."""
    if not FOLDER:
        yield request.getfixturevalue("address"), 5
        return
    model = load(default_model("explore"))
    service = GenerationService(model, model.card.get("name") or "small", workers=1)
    service.extensions.append(Explorer(service).add_routes)
    with running(service) as client:
        count = len(model.encoder.layers) + 2 * len(model.decoder.layers)
        yield f"http://127.0.0.1:{client.port}/explore/", count


def test_the_pictures_of_the_docs_show_the_views(tab, shown):
    address, maps = shown
    tab.set_viewport_size(SIZE)
    tab.emulate_media(color_scheme="light")
    for name, (state, selector, action, texts) in SHOTS.items():
        state = {key: maps + value if key == "map" else value for key, value in state.items()}
        tab.goto(f"{address}?{urlencode({'view': name, 'text': SHOWN['text'], **state})}")
        tab.wait_for_selector(selector)
        if action is not None:
            action(tab)
        shown_text = tab.inner_text("main")
        assert not [text for text in texts if text not in shown_text], name
        if FOLDER:
            tab.wait_for_timeout(300)
            tab.screenshot(path=Path(FOLDER) / f"explorer-{name}.png")
    tab.goto("about:blank")


def test_every_picture_of_the_docs_is_one_of_these_and_exists():
    used = set()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        used |= set(re.findall(r"images/explorer-(\w+)\.png", page.read_text(encoding="utf-8")))
    assert used == set(SHOTS)
    for name in used:
        content = (ROOT / "docs" / "images" / f"explorer-{name}.png").read_bytes()
        width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
        assert content.startswith(b"\x89PNG") and (width, height) == (SIZE["width"], SIZE["height"])
