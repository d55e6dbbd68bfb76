"""Write the screenshots of docs/explorer.md: python -m tests.explorer.screenshots MODEL.

MODEL is that of `regard train small`.
"""

import sys
from pathlib import Path
from urllib.parse import urlencode

from regard.explorer.explorer_routes import Explorer
from regard.models.folder import load
from regard.serving.generation_service import GenerationService
from tests.explorer import toy
from tests.serving.server import running

IMAGES = Path(__file__).parents[2] / "docs" / "images"
TEXT = "I don't know why he wants to go to Boston."
PROBE = "The doctor said that he/she was late."
SHOTS = {  # state of the page, and what must be there before the picture is taken
    "explorer-alignment": ({"view": "alignment", "row": "4"}, ".trust-line button"),
    "explorer-heads": ({"view": "heads", "map": "5", "head": "1", "row": "4"}, ".trust-line button"),
    "explorer-search": ({"view": "search", "beam": "4"}, ".panel table"),
    "explorer-whatif": ({"view": "whatif", "map": "5"}, "#view .matrix canvas"),
    "explorer-trust": ({"view": "trust", "row": "4"}, ".figure"),
    "explorer-compare": ({"view": "compare", "mode": "probe", "other": PROBE}, ".triple canvas"),
}


def main(folder):
    service = GenerationService(load(folder), "small", workers=1)
    service.extensions.append(Explorer(service).add_routes)
    session, chromium = toy.browser()
    with running(service) as client:
        for name, (state, selector) in SHOTS.items():
            page = chromium.new_page(viewport={"width": 1280, "height": 820}, color_scheme="light")
            page.goto(f"http://127.0.0.1:{client.port}/explore/?{urlencode({'text': TEXT, **state})}")
            page.wait_for_selector(selector)
            if name == "explorer-search":
                force(page, "in")
            if name == "explorer-whatif":
                page.get_by_role("button", name="Change and run again").click()
                page.wait_for_selector(".pair .answer")
            page.wait_for_timeout(300)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
    chromium.close()
    session.stop()


def force(page, word):
    """Force a word in place of the least certain token."""
    page.get_by_label("A word to force here").fill(word)
    page.keyboard.press("Enter")
    page.wait_for_selector(".node.forced")


if __name__ == "__main__":
    main(sys.argv[1])
