"""A tiny translator that is trained in three seconds, a browser, and what tests do in a page."""

import shutil
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from regard.data.batch import Batch
from regard.data.tokenizer import BOS, EOS, PAD, Tokenizer
from regard.models import folder as folders
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build

LEXICON = {"a": "ein", "the": "der", "red": "roter", "small": "kleiner", "dog": "hund", "man": "mann",
           "ball": "ball", "sees": "sieht", "and": "und", "house": "hausboot"}  # fmt: skip
ENCODER = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32, "norm": "pre"}
DECODER = ENCODER | {"layers": 2}


def translator(path, steps=220, seed=1, **options):
    """Train a word-by-word translator whose target words have several tokens; return the loaded model."""
    generator = torch.Generator().manual_seed(1)
    words = list(LEXICON)
    source = Tokenizer.train([" ".join(words)] * 3, "word", 50)
    target = Tokenizer.train([" ".join(LEXICON.values())] * 3, "bpe", 56)
    config = AutoregressiveOptions.model_validate(
        {"dim": 32, "tie": "target", "encoder": ENCODER, "decoder": DECODER, "dropout": 0.0} | options
    ).model_dump()
    torch.manual_seed(seed)
    model = build(config, len(source), len(target))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, 2 * (1 - step / steps))
        optimizer.zero_grad()
        model.loss(_batch(words, source, target, generator)).total.div(32).backward()
        optimizer.step()
    card = {"name": "toy", "recipe": {"data": {"source": "en", "target": "de"}}}
    folders.save(path, model.eval(), config, source, target, card)
    return folders.load(path)


def _batch(words, source, target, generator):
    rows = [
        [words[i] for i in torch.randint(len(words), (int(n),), generator=generator)]
        for n in torch.randint(2, 8, (32,), generator=generator)
    ]
    xs = [[*source.encode(" ".join(row)), EOS] for row in rows]
    ys = [[BOS, *target.encode(" ".join(LEXICON[w] for w in row)), EOS] for row in rows]
    return Batch(
        target=_padded(ys),
        target_lengths=torch.tensor([len(y) - 1 for y in ys]),
        rows=torch.arange(len(rows)),
        source=_padded(xs),
        source_lengths=torch.tensor([len(x) for x in xs]),
    )


def _padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@contextmanager
def files_served(folder):
    """Serve a folder as any web server does; yield its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def browser():
    """Start the system's Chromium; skip the test with the reason if that is impossible."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium on this machine; apt-get install chromium")
    session = playwright.sync_playwright().start()
    # No sandbox: containers have no user namespaces, and the pages are ours.
    started = session.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
    return session, started


def until(tab, expression, seconds=60):
    """Wait until a JavaScript expression is true; Playwright's own wait needs eval, which the policy
    forbids."""
    end = time.monotonic() + seconds
    while not tab.evaluate(expression):
        assert time.monotonic() < end, expression
        tab.wait_for_timeout(15)


def type_text(tab, text):
    tab.fill("#text", text)
    if tab.input_value("#text") != text:  # the page put its example there between selecting and typing
        tab.fill("#text", text)
    tab.press("#text", "Enter")
    until(tab, "!document.getElementById('go').disabled")
