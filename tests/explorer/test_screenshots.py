"""The screenshots of README and docs: opens the views that they show, and writes the pictures on request.

REGARD_SCREENSHOTS=docs/images REGARD_MODEL=runs/small python -m pytest tests/explorer/test_screenshots.py

writes them with the model in REGARD_MODEL, or with the bundled translator; without REGARD_SCREENSHOTS the toy
translator is shown, and nothing is written.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
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
HIGHEST, MARGIN = 1360, 14  # px: a reader sees a picture at a glance
REAL = {
    "text": "I don't know why he wants to go to Boston.",
    "probe": "The doctor said that he/she was late.",
    "row": 4,
    "column": 4,
    "word": "in",
}
TOY = {
    "text": "the red dog sees a house",
    "probe": "the man/dog sees a ball",
    "row": 2,
    "column": 2,
    "word": "kleiner",
}
SHOWN = REAL if FOLDER else TOY


def force(page):
    """Force a word in place of the least certain token."""
    page.get_by_label("A word to force here").fill(SHOWN["word"])
    page.keyboard.press("Enter")
    page.wait_for_selector(".tree .forced")
    page.wait_for_selector(".panel table")


def compare_heads(page):
    """Click the cell of the chosen word with the most weight."""
    page.wait_for_selector(".split .card:nth-child(2) canvas[data-cell]")
    canvas = page.locator(".matrix canvas").first
    cell, left, top = (float(canvas.get_attribute(f"data-{name}")) for name in ("cell", "left", "top"))
    canvas.click(
        position={"x": left + (SHOWN["column"] + 0.5) * cell, "y": top + (SHOWN["row"] + 0.5) * cell}
    )
    page.wait_for_selector("#across:has-text('(most')")


def change(page):
    page.get_by_role("button", name="Change and run again").click()
    page.wait_for_selector("#maps canvas")


@dataclass(frozen=True)
class Shot:
    """A picture: state in the address, a selector to wait for, texts it shows, and what must be in it.

    The picture begins at the top of the page, so that it shows the tab, the text and the model, and ends
    below the last of its points.
    """

    state: dict
    ready: str
    texts: tuple
    points: tuple
    action: Callable | None = None


SHOTS = {
    "alignment": Shot(
        {"row": SHOWN["row"]},
        ".trust-line button",
        (" attends to ", "Can you trust Cross-attention, layer 2, mean of heads? This attention is a "),
        (".lines", ".matrix canvas", ".trust-line", "#view .card"),
    ),
    "heads": Shot(
        {"map": -1, "head": 1, "row": SHOWN["row"]},
        ".trust-line button",
        ("Cross-attention, layer 2, head 2", "Hide heads by entropy", "(not this head alone)?"),
        (
            ".thumb[aria-pressed=true]",
            "#head-title",
            ".lines",
            ".trust-line",
            ".card:has(#head-title)",
        ),
        compare_heads,
    ),
    "search": Shot(
        {"beam": 4},
        ".panel table",
        (
            "as the model searched",
            "with “" + SHOWN["word"] + "” forced",
            "Click a token to force another one there.",
        ),
        (".result", "#search-key", ".tree .forced", ".panel table", ".panel form", "#view .card"),
        force,
    ),
    "whatif": Shot(
        {"map": -1},
        "#view .matrix canvas",
        (
            "attention changed",
            "probability of",
            "greedy search",
            "all heads, all rows, uniform",
            "each weight 1/",
        ),
        (".list", ".result", "#searched", "#maps canvas", "#view .card"),
        change,
    ),
    "trust": Shot(
        {"row": SHOWN["row"]},
        ".figure",
        ("Does attention explain ", "This attention is a ", "what chance would give", " of 6 figures"),
        ("main h2", "#verdict", ".figures", "#view .card"),
    ),
    "compare": Shot(
        {"mode": "probe", "other": SHOWN["probe"]},
        ".triple canvas",
        ("Probability of each translation", "difference"),
        (".result .pair", ".result table", ".triple", "#view .card"),
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


def crop(page, shot):
    """The part of the page that a picture shows; every point of it lies inside."""
    boxes = [page.locator(point).first.bounding_box() for point in shot.points]
    assert all(box and box["width"] > 0 and box["height"] > 0 for box in boxes), shot.points
    end = max(box["y"] + box["height"] for box in boxes) + MARGIN
    return {"x": 0, "y": 0, "width": SIZE["width"], "height": math.ceil(end)}


def test_the_pictures_of_the_docs_show_the_views(tab, shown):
    address, maps = shown
    tab.set_viewport_size(SIZE)
    tab.emulate_media(color_scheme="light")
    for name, shot in SHOTS.items():
        state = {key: maps + value if key == "map" else value for key, value in shot.state.items()}
        tab.goto(f"{address}?{urlencode({'view': name, 'text': SHOWN['text'], **state})}")
        tab.wait_for_selector(shot.ready)
        if shot.action is not None:
            shot.action(tab)
        for text in shot.texts:
            tab.wait_for_function("text => document.querySelector('main').innerText.includes(text)", arg=text)
        tab.wait_for_timeout(300 if FOLDER else 30)
        clip = crop(tab, shot)
        assert clip["height"] <= HIGHEST, name
        if FOLDER:
            tab.screenshot(path=Path(FOLDER) / f"explorer-{name}.png", full_page=True, clip=clip)
    tab.goto("about:blank")


def test_every_picture_of_the_docs_is_one_of_these_and_exists():
    used = set()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        used |= set(re.findall(r"images/explorer-(\w+)\.png", page.read_text(encoding="utf-8")))
    assert used == set(SHOTS)
    for name in used:
        content = (ROOT / "docs" / "images" / f"explorer-{name}.png").read_bytes()
        width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
        assert content.startswith(b"\x89PNG") and width == SIZE["width"] and 300 < height <= HIGHEST
