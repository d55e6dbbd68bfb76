"""The command line: choose sizes, measure both pages, print the table."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from benchmarks.explorer.matrices import BERTVIZ, DrawnAttention, draw, write_bertviz
from benchmarks.peers import command, machine
from benchmarks.peers.errors import first_line
from benchmarks.peers.tables import NONE, markdown_table
from regard.explorer.explorer_routes import Explorer
from regard.explorer.page_service import PageService
from regard.serving import auth, server

NAME = "benchmarks.explorer"
ABOUT = """\
Time until the explorer's heads view and BertViz's head view show the same drawn attention in Chromium, and
time of a hover. The explorer draws thumbnails of all heads and one head large, BertViz one layer with all its
heads. A hover is timed from the event until its handlers and the layout that follows are done. The explorer
is loaded several times, of which the median counts; BertViz once."""
EXAMPLES = """\
examples:
  python -m benchmarks.explorer                         32, 128 and 512 tokens, 12 layers of 12 heads
  python -m benchmarks.explorer --tokens 64 --layers 2  a small case"""
MOVES = 40
# The time at which a picture is there, and the frame after it is painted.
WATCH = """(ready) => { const timer = setInterval(() => { if (!ready()) return; clearInterval(timer);
  requestAnimationFrame(() => requestAnimationFrame(() => report(performance.now()))); }, 5); }"""
OURS = """() => document.querySelector('.thumb') && document.querySelector('#view canvas[data-cell]')
  && [...document.querySelectorAll('.thumb img')].every((image) => image.complete)"""
THEIRS = "() => document.querySelector('#attention line')"
# Milliseconds of the parts of a first picture at `first`, from the browser's record of requests.
PARTS = """(first) => {
  const all = performance.getEntriesByType("resource").filter((entry) => entry.responseEnd <= first);
  const of = (end) => all.filter((entry) => entry.name.split("?")[0].endsWith(end));
  const last = (entries) => Math.max(0, ...entries.map((entry) => entry.responseEnd));
  const spent = (entries) => entries.reduce((sum, entry) => sum + entry.responseEnd - entry.startTime, 0);
  return { files: last(of(".js")), run: spent(of("/api/model")) + spent(of("/api/runs")),
    thumbnails: spent(of("/thumbnails")), drawing: first - last(of("/thumbnails")) };
}"""
HOVER = """async ([selector, type, moves]) => {
  const frame = () => new Promise((done) => { requestAnimationFrame(done); }), times = [];
  for (let i = 0; i < moves; i++) {
    const all = document.querySelectorAll(selector), place = 0.4 + 0.01 * i;
    const target = type === "mouseover" ? all[i % all.length] : all[0];
    const box = target.getBoundingClientRect();
    const at = { clientX: box.left + box.width * place, clientY: box.top + box.height * place };
    const start = performance.now();
    target.dispatchEvent(new PointerEvent(type, { bubbles: true, ...at }));
    document.body.getBoundingClientRect();
    times.push(performance.now() - start);
    await frame();
    await frame();
  }
  return times;
}"""


@contextmanager
def served(weights):
    """The address of the explorer's heads view of the weights."""
    service = PageService(DrawnAttention(weights))
    service.extensions.append(Explorer(service).add_routes)
    sock, started = server.bind("127.0.0.1", 0), threading.Event()
    made = server.Server(service, auth.Authentication(None, "127.0.0.1"), log=False, started=started.set)
    thread = threading.Thread(target=made.run, args=([sock],), daemon=True)
    thread.start()
    started.wait(30)
    yield f"{server.address(sock)}/explore/?view=heads&level=tokens"
    made.drain()
    thread.join(30)


def measure(browser, address, ready, hover, seconds):
    """Milliseconds until the first picture and of hovers; `failure` says why there are none."""
    page = browser.new_page(viewport={"width": 1280, "height": 820})
    reports = []  # the page calls back: a question to a page that is busy would never end
    page.expose_function("report", lambda value: reports.append(value))
    page.add_init_script(f"({WATCH})({ready})")
    try:
        page.goto(address, wait_until="commit")
        if not _wait(page, reports, 1, seconds):
            return {"failure": f"not drawn in {seconds} s"}
        result = {"first": reports[0], "parts": page.evaluate(PARTS, reports[0])}
        page.evaluate(
            f"(given) => {{ setTimeout(async () => report(await ({HOVER})(given))); }}", [*hover, MOVES]
        )
        if not _wait(page, reports, 2, seconds):
            return result | {"failure": f"{MOVES} hovers took more than {seconds} s"}
        return result | {"hover": statistics.median(reports[1]), "worst hover": max(reports[1])}
    except Exception as error:  # a page that runs out of memory closes in many ways
        return {"failure": first_line(error)}


def _wait(page, reports, count, seconds):
    """Wait until the page has reported `count` times; return whether it has."""
    until = time.monotonic() + seconds
    while len(reports) < count and time.monotonic() < until:
        page.wait_for_timeout(50)
    return len(reports) >= count


def measure_size(browser, tokens, options):
    weights = draw(tokens, options.layers, options.heads)
    loads = []
    for _ in range(options.loads):
        with served(weights) as address:
            hover = ["#view .matrix canvas", "pointermove"]
            loads.append(measure(browser, address, OURS, hover, options.seconds))
            for context in browser.contexts:
                context.close()  # its connections too, so that the server ends
    ours = sorted(loads, key=lambda load: load.get("first", float("inf")))[len(loads) // 2]
    with tempfile.TemporaryDirectory() as folder:
        try:
            page = write_bertviz(Path(folder), weights, [f"w{i}" for i in range(tokens)])
            hover = ["#left g:nth-of-type(2) > g", "mouseover"]
            theirs = measure(browser, page.as_uri(), THEIRS, hover, options.seconds)
            theirs.pop("parts", None)  # it makes no requests
        except (OSError, StopIteration) as error:
            theirs = {"failure": first_line(error)}
    return [
        {"tokens": tokens, "system": name, **result}
        for name, result in (("regard", ours), ("BertViz", theirs))
    ]


def as_row(result):
    cells = [f"{result[key]:,.1f}" if key in result else NONE for key in ("first", "hover", "worst hover")]
    parts = ", ".join(f"{name} {spent:.0f}" for name, spent in result.get("parts", {}).items())
    return [str(result["tokens"]), result["system"], *cells, result.get("failure", parts)]


def main():
    parser = command.make_parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=120, help="time after which a page is given up")
    parser.add_argument(
        "--loads", type=int, default=5, help="the explorer's figures are those of the median load"
    )
    options = command.parse_options(parser, sys.argv[1:], tokens=2, layers=1, heads=1, seconds=1, loads=1)
    from playwright.sync_api import sync_playwright

    facts = machine.cpu_facts(command.load_average())
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    results = []
    with sync_playwright() as session:
        for tokens in options.tokens:
            # A browser for each size: a page that ran out of memory must not slow the next.
            browser = session.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
            results += measure_size(browser, tokens, options)
            facts["chromium"] = browser.version
            browser.close()
    header = ["tokens", "system", "first picture, ms", "hover, ms", "slowest of 40, ms", "parts of the first"]
    lines = markdown_table(header, map(as_row, results))
    sizes = f"{options.layers} layers of {options.heads} heads; BertViz {BERTVIZ}"
    where = f"Chromium {facts['chromium']}; {machine.cpu_text(facts)}; {machine.stamp()}"
    lines += ["", f"{sizes}; {where}. {command.command_line(NAME, sys.argv[1:])}"]
    print("\n".join(lines))
    command.save_results(options, json.dumps({"facts": facts, "results": results}), "\n".join(lines))


if __name__ == "__main__":
    command.run(main)
