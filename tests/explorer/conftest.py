"""One Chromium, one toy translator and one server for all tests of the explorer.

They are of package scope: Playwright's event loop must be gone before tests elsewhere use asyncio.
"""

import os
import re
from functools import cache

import pytest

from regard.explorer.explorer_routes import Explorer
from regard.serving.generation_service import GenerationService
from tests.explorer import toy
from tests.serving.server import running

# Under REGARD_LONG every answer of the server reaches the page late, as on a slow machine or network, and so
# do the scripts of views that are loaded when they are first shown (LATENCY, ms): a test that reads what has
# not arrived yet fails there each time, not once in a hundred runs elsewhere.
LATENCY = 150
LATE = """
const fetched = window.fetch;
window.fetch = async (...request) => {
  const answer = await fetched(...request);
  await new Promise((done) => setTimeout(done, 50 + 350 * Math.random()));
  return answer;
};
"""


@pytest.fixture(scope="package")
def model(tmp_path_factory):
    return toy.translator(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="package")
def address(model):
    service = GenerationService(model, "toy", workers=1)
    service.extensions.append(Explorer(service).add_routes)
    with running(service) as client:
        yield f"http://127.0.0.1:{client.port}/explore/"


@pytest.fixture(scope="package")
def huggingface_folder(tmp_path_factory):
    """The Hugging Face folder of a kind, written once."""
    pytest.importorskip("transformers", minversion="5")
    from tests.explorer import huggingface_folders

    return cache(lambda kind: huggingface_folders.save(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope="package")
def huggingface(huggingface_folder):
    """The explored Hugging Face model of a kind, loaded once."""
    from regard.explorer.huggingface_model import HuggingFaceModel

    return cache(lambda kind: HuggingFaceModel.of_folder(huggingface_folder(kind)))


@pytest.fixture(scope="package")
def chromium():
    session, started = toy.browser()
    yield started
    started.close()
    session.stop()


@pytest.fixture
def tab(chromium):
    """A page that fails the test on console errors and on requests to other machines."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page, problems = context.new_page(), []
    page.on(
        "console",
        lambda m: problems.append(f"{m.text} {m.location}") if m.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("dialog", lambda d: (problems.append(f"dialog {d.message}"), d.dismiss()))

    def only_here(route):
        if route.request.url.startswith("http://127.0.0.1:"):
            route.continue_()
        else:
            problems.append(f"request to {route.request.url}")
            route.abort()

    context.route("**/*", only_here)
    if os.environ.get("REGARD_LONG"):
        context.add_init_script(LATE)
        network = context.new_cdp_session(page)
        slow = {"offline": False, "latency": LATENCY, "downloadThroughput": -1, "uploadThroughput": -1}
        network.send("Network.emulateNetworkConditions", slow)
    page.set_default_timeout(60_000)
    page.expected = []
    yield page
    assert [p for p in problems if not any(re.search(e, p) for e in page.expected)] == []
    context.close()
