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
SHOTS = {
    "explorer-alignment": {"view": "alignment", "text": TEXT, "row": "4"},
    "explorer-heads": {"view": "heads", "text": TEXT, "map": "5", "head": "1"},
}


def main(folder):
    service = GenerationService(load(folder), "small", workers=1)
    service.extensions.append(Explorer(service).add_routes)
    session, chromium = toy.browser()
    with running(service) as client:
        for name, state in SHOTS.items():
            page = chromium.new_page(viewport={"width": 1280, "height": 820}, color_scheme="light")
            page.goto(f"http://127.0.0.1:{client.port}/explore/?{urlencode(state)}")
            page.wait_for_selector(".lines button.word[aria-pressed=true]")
            page.wait_for_timeout(300)
            page.screenshot(path=IMAGES / f"{name}.png")
    chromium.close()
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
