"""Tests of the views of explorer/page/ in Chromium: search, trust, compare, gold links, export, recovery."""

import io
import json
import math
import re
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
import torch

from regard import explorer
from regard.explorer.explored_model import ExploredModel
from regard.explorer.explorer_routes import Explorer
from regard.explorer.gold_links import GoldPair
from regard.explorer.run_job import Job
from regard.explorer.run_store import RunStore
from regard.serving.generation_service import GenerationService
from tests.explorer import toy
from tests.explorer.toy import type_text, until
from tests.serving.server import running, write_model

TEXT = "the red dog sees a house"
GOLD = [GoldPair("the red dog", "der roter hund", "0-0 1-1 2?2"), GoldPair("a man", "ein mann", "0-1")]


KEY_TEXTS = "(all) => all.map((sign) => sign.lastChild.textContent)"


# How often a curve of the search tree crosses a token or a straight line of another row.
CROSSED = """(() => {
  const boxes = [...document.querySelectorAll(".tree path")].map((path) => {
    const { x, y, width, height } = path.getBBox();
    return { path, x, y, width, height };
  });
  const node = ({ offsetLeft: x, offsetTop: y, offsetWidth: width, offsetHeight: height }) =>
    ({ x: x + 2, y: y + height / 2, width: width - 4 });
  const nodes = [...document.querySelectorAll(".tree .node")];
  const rows = [...boxes.filter((box) => box.height < 1), ...nodes.map(node)];
  return boxes.filter((box) => box.height > 1).flatMap(({ path, y, height }) => {
    const length = path.getTotalLength();
    const points = Array.from({ length: 60 }, (_, i) => path.getPointAtLength((i * length) / 59));
    return rows.filter((row) => row.y > y + 3 && row.y < y + height - 3 && points.some((point, i) =>
      i && points[i - 1].y <= row.y && point.y > row.y && point.x > row.x && point.x < row.x + row.width));
  }).length;
})()"""


def go(tab, address, **state):
    tab.goto(f"{address}?{urlencode({'text': TEXT, **state})}")
    until(tab, "document.getElementById('output').hasChildNodes()")


@pytest.fixture(scope="module")
def explored(model):
    return ExploredModel(model, "toy")


@pytest.fixture(scope="module")
def two(model, tmp_path_factory):
    """The address of two models, with gold links and few runs in memory."""
    service = GenerationService(model, "toy", workers=1)
    other = ExploredModel(toy.translator(tmp_path_factory.mktemp("other"), steps=60, seed=2), "early")
    explorer = Explorer(service, RunStore(max_runs=2), others=[other], gold=GOLD)
    service.extensions.append(explorer.add_routes)
    with running(service) as client:
        yield f"http://127.0.0.1:{client.port}/explore/"


def test_a_token_is_forced_in_the_search_tree(tab, address, explored):
    go(tab, address, view="search", beam=3)
    tab.wait_for_selector(".node.best")
    tree = explored.search_tree(Job(TEXT, beam=3))
    best = [tree["nodes"][i] for i in tree["hypotheses"][0]["nodes"]]
    assert tab.locator(".node.best").count() == len(best)
    # What hypotheses share is drawn once.
    assert tab.locator(".tree .node").count() == sum(n["status"] != "pruned" for n in tree["nodes"]) - 1
    key = "darker: likelier token in another hypothesis kept for a while, pruned later selected"
    assert " ".join(tab.locator("#search-key > span").evaluate_all(KEY_TEXTS)) == key
    assert "Click a token to force another one there." in tab.inner_text("main")
    ends = {
        h["nodes"][-1]: ("best" if i == 0 else "finished, not best") for i, h in enumerate(tree["hypotheses"])
    }
    ends = {i: "finished, pruned" for i, n in enumerate(tree["nodes"]) if n["status"] == "ended"} | ends
    assert len(ends) > len(tree["hypotheses"])  # one finished, and others were better
    scores = [f"{tree['nodes'][i]['score']:.3f} {text}".replace("-", "−") for i, text in sorted(ends.items())]
    assert tab.locator(".tree .score").all_inner_texts() == scores
    assert "Beam size 3. " in tab.inner_text("main")
    assert tab.evaluate(CROSSED) == 0
    tab.get_by_role("button", name="show all pruned tokens").click()
    assert tab.locator(".tree .node").count() == len(tree["nodes"]) - 1 and "pruned=1" in tab.url
    assert tab.evaluate(CROSSED) == 0
    struck = "getComputedStyle(document.querySelector('#search-key .pruned')).textDecorationLine"
    assert tab.evaluate(struck) == "line-through"  # as the pruned tokens of the tree

    tab.locator(".node.best").first.focus()  # keys follow the tree
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".node:focus").inner_text() == best[1]["token"].lstrip("▁")
    assert "step 2, rank 1" in tab.inner_text(".panel")
    tab.get_by_label("A word to force here").fill("kleiner")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".node.forced")
    forced = explored.search_tree(Job(TEXT, beam=3, prefix=(best[0]["id"],)), "kleiner")
    outputs = [tree["hypotheses"][0]["text"], forced["hypotheses"][0]["text"]]
    assert tab.locator(".pair .answer").all_inner_texts() == outputs
    assert "kleiner" in tab.locator(".pair ins").all_inner_texts()
    assert tab.inner_text("#output .answer") == outputs[1]
    assert tab.locator(".pair h3").all_inner_texts()[1] == "with “kleiner” forced; underlined words differ"
    assert tab.locator("#search-key .forced, #search-key .before").count() == 2  # named once there are some
    tab.reload()  # the address holds the forced tokens
    tab.wait_for_selector(".tree .forced")
    # Only what was forced is marked as forced, not the beginning that was kept.
    marked = [tab.locator(f".tree .{kind}").all_inner_texts() for kind in ("before", "forced")]
    assert marked == [["der"], ["kleiner forced"]]
    tab.get_by_role("tab", name="Alignment").click()
    tab.wait_for_selector(".lines button.word")
    assert tab.locator(".lines button.word").all_inner_texts() == [*outputs[1].split(), "end"]
    tab.get_by_role("button", name="release").click()
    until(tab, f"document.querySelector('#output .answer').textContent === {json.dumps(outputs[0])}")

    tab.expected.append("422")  # Chromium logs every failed request
    tab.get_by_role("tab", name="Search").click()
    tab.get_by_label("A word to force here").fill("日本")
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('#view .error').textContent.includes('not in the vocabulary')")


def test_the_figures_of_trust_are_those_of_the_run(tab, address, explored):
    go(tab, address, view="trust", row=2)
    tab.wait_for_selector(".figure")
    run = explored.run(Job(TEXT))
    found = explored.trust(run, 2, None, lambda: False)
    figures = found["figures"]
    verdict = f"{found['verdict']['claim']}: {found['verdict']['reason']}."
    scope = " This concerns one token of this text and Cross-attention, layer 2, mean of heads."
    assert tab.inner_text("#verdict") == verdict + scope and " of 6 figures speak for it" in verdict
    marks = [(f["mark"], "true" if f["beyond"] else "false") for f in figures]
    found_marks = "(all) => all.map((m) => [m.innerText, String('beyond' in m.parentNode.dataset)])"
    assert tab.locator(".figure .mark").evaluate_all(found_marks) == [list(pair) for pair in marks]
    edges = [
        f["band"][0 if f["name"] == "sufficiency" else 1] for f in figures
    ]  # written at the end of the band
    assert [text.split()[-1] for text in tab.locator(".edge").all_inner_texts()] == [
        f"{x:.2f}".replace("-", "−") for x in edges
    ]
    assert "Figures rank 6 tokens, of 7" in tab.inner_text("main")
    assert tab.get_by_role("combobox", name="attention").input_value() == "decoder.layers.1.cross"
    for figure, box in zip(figures, tab.evaluate(GAUGES), strict=True):
        low = -1 if figure["name"].startswith("tau") else min(0, figure["value"])
        ends = [(max(low, end) - low) / (1 - low) for end in figure["band"]]
        assert box == pytest.approx(ends, abs=0.01), figure["name"]
    shown = tab.locator(".figure .num").all_inner_texts()
    assert shown == [f"{f['value']:.2f}".replace("-", "−") for f in figures]
    assert tab.locator(".figure p:nth-of-type(2)").all_inner_texts() == [f["reading"] for f in figures]
    assert tab.inner_text("main h2") == "Does attention explain hund?"
    assert tab.locator(".scroll tbody tr").count() == 6
    tab.locator("main .word[aria-pressed=true]").focus()
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('main h2').textContent.includes('roter')")
    assert "token=1" in tab.url
    tab.get_by_role("tab", name="Alignment").click()
    tab.wait_for_selector(".trust-line button")
    assert tab.inner_text(".trust-line").startswith(
        "Can you trust Cross-attention, layer 2, mean of heads? This attention is a "
    )
    assert "explanation of “roter”:" in tab.inner_text(".trust-line")


# Where the band of chance begins and ends in each figure, as shares of its width.
GAUGES = """[...document.querySelectorAll(".gauge")].map((gauge) => {
  const all = gauge.getBoundingClientRect(), band = gauge.querySelector(".chance").getBoundingClientRect();
  return [band.left, band.right].map((x) => (x - all.left) / all.width);
})"""


def test_heads_show_stages_limits_and_differences(tab, address, explored):
    go(tab, address, view="heads", map=1, head=0)
    tab.get_by_role("button", name="+ mask").click()
    until(tab, "document.querySelector('.reading').textContent.includes('largest')")
    run = explored.run(Job(TEXT))
    energies = np.frombuffer(explored.stage(run, 1, 0, "masked"), "<f4").reshape(run.map(1).shape[1:])
    tab.locator(".matrix canvas").first.focus()
    tab.keyboard.press("ArrowDown")
    assert tab.inner_text(".reading").endswith(f"start: {energies[1, 0]:.3f}".replace("-", "−"))
    tab.keyboard.press("End")
    assert tab.inner_text(".reading").endswith("masked") and "stage=masked" in tab.url

    tab.get_by_role("button", name="weights", exact=True).click()
    until(tab, "document.getElementById('across').textContent.startsWith('Click a cell')")
    tab.locator(".matrix canvas").first.focus()
    for key in ("Home", "Enter"):
        tab.keyboard.press(key)
    until(tab, "document.getElementById('across').textContent.includes('(most')")
    weights = run.map(1)[:, 1, 0].tolist()  # of two tokens of a word the mean; here each word is one
    name, shown = tab.inner_text("#across").split(": ")
    order = sorted(range(2), key=lambda h: -weights[h])  # most weight first
    assert name == "roter → start, Decoder self-attention, layer 1"
    assert [int(cell.split()[1]) - 1 for cell in shown.split(" · ")] == order
    assert [float(cell.split()[2]) for cell in shown.split(" · ")] == pytest.approx(
        [weights[h] for h in order], abs=6e-4
    )
    assert shown.split(" · ")[order.index(0)].endswith("(most, shown)" if order[0] == 0 else "(shown)")
    assert tab.locator(".thumb.most").get_attribute("data-head") == str(order[0])

    diversity = run.diversity(1)
    assert f"differ by {diversity['divergence']:.2f} bits" in tab.inner_text("main")
    limit = sorted(x for m in run.head_statistics() for x in m["entropy"])[4]
    tab.get_by_role("combobox", name="entropy").select_option("max")
    tab.get_by_label("Limit of entropy").fill(str(math.ceil(limit * 10) / 10))
    until(tab, "document.querySelectorAll('.thumb').length < 10")
    expected = [m["entropy"] for m in run.head_statistics()]
    count = sum(x <= math.ceil(limit * 10) / 10 for m in expected for x in m)
    assert tab.locator(".thumb").count() == count and f"{count} of 10 heads" in tab.inner_text("main")
    assert "entropy=max" in tab.url


# The marked words of the second text beside the first, and the text that is shown.
MARKED = """async (texts) => {
  const node = document.createElement("p");
  node.append(...(await import("./difference.js")).marked(...texts));
  return [[...node.querySelectorAll("ins")].map((word) => word.textContent), node.textContent];
}"""


def test_two_texts_and_a_pronoun_probe_are_compared(tab, address, explored):
    other = "the small dog sees a man"
    go(tab, address, view="compare", other=other)
    tab.wait_for_selector(".triple canvas")
    answers = [str(explored.run(Job(text)).output["text"]) for text in (TEXT, other)]
    assert tab.locator(".pair .answer").all_inner_texts() == answers
    assert tab.locator(".pair ins").all_inner_texts() == ["roter", "hausboot", "kleiner", "mann"]
    punctuation = tab.evaluate(MARKED, ["Ich weiß nicht, warum.", "Ich weiß, warum er's will."])
    assert punctuation == [["er's", "will"], "Ich weiß, warum er's will."]  # a comma changes no word
    difference = tab.locator(".triple canvas").nth(2)
    difference.focus()
    for key in ("ArrowDown", "ArrowRight"):  # to hund → dog
        tab.keyboard.press(key)
    weights = [explored.run(Job(text)).weights(4, None)[2, 2] for text in (TEXT, other)]
    assert (
        tab.inner_text(".result .reading")
        == f"hund → dog: {weights[1] - weights[0]:+.3f} (difference: second text − first text)"
    )
    left = "rows roter, hausboot, kleiner, mann; columns red, house, small, man."
    assert f"Left out, as only one of the two has them: {left}" in tab.inner_text(".triple")

    tab.get_by_role("button", name="pronoun probe").click()
    tab.get_by_label("Text with two words to choose from").fill("the man/dog sees a ball")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".result table")
    numbers = [float(x) for x in tab.locator(".result td.num").all_inner_texts()]
    assert len(numbers) == 4 and numbers[0] > numbers[1] and numbers[3] > numbers[2]
    until(tab, "document.querySelectorAll('.triple h3').length === 3")  # drawn after the table
    assert tab.locator(".triple h3").all_inner_texts() == ["man", "dog", "difference: dog − man"]
    tab.get_by_label("Text with two words to choose from").fill("no choice")
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('#view .error').textContent.startsWith('Write two words')")


def test_gold_links_are_scored_and_two_models_are_compared(tab, two):
    tab.goto(two)
    tab.wait_for_selector(".score-line b")  # the first sentence of the gold file, with its translation
    assert (
        tab.inner_text("#output .answer") == "der roter hund" and tab.inner_text(".score-line b") == "0.000"
    )
    tab.get_by_role("textbox", name="Gold links").fill("0-1")
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('.score-line b')?.textContent === '1.000'")
    tab.expected.append("422")
    tab.get_by_role("textbox", name="Gold links").fill("7-7")
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('.score-line .error') !== null")
    tab.get_by_role("tab", name="Compare").click()
    tab.wait_for_selector(".triple canvas")
    assert tab.locator(".pair h3").all_inner_texts() == ["toy", "early"]
    assert tab.locator(".triple canvas").count() == 3


def test_every_export_is_a_file(tab, address):
    go(tab, address)
    tab.wait_for_selector(".lines button.word")
    # PDF, which imports matplotlib, is in test_exports.py.
    starts = {"SVG": b"<svg", "PNG": b"\x89PNG", "HTML": b"<!doctype html>", "NPZ": b"PK"}
    for name, start in starts.items():
        tab.locator("details.menu summary").click()
        with tab.expect_download() as download:
            tab.get_by_role("button", name=name).click()
        until(tab, "!document.querySelector('details.menu').open")
        content = Path(download.value.path()).read_bytes()
        assert content.startswith(start), name
        expected = "attention.npz" if name == "NPZ" else f"cross-2-mean.{name.lower()}"
        assert download.value.suggested_filename == expected
    assert "decoder.layers.1.cross" in np.load(io.BytesIO(content))


def test_long_texts_zoom_and_have_an_overview(tab, address):
    go(tab, address, view="heads", map=0, head=0, text=" ".join(["the red dog sees"] * 60))
    tab.wait_for_selector(".lines.long button.word")
    canvas = tab.locator(".matrix canvas").first
    size = "Number(document.querySelector('.matrix canvas').dataset.cell)"
    before = tab.evaluate(size)
    tab.get_by_role("button", name="Fit the whole matrix").first.click()
    fitted = tab.evaluate(size)
    assert fitted < before
    assert tab.evaluate("(() => { const m = document.querySelector('.matrix');"
                        " return m.scrollWidth <= m.clientWidth + 1; })()")  # fmt: skip
    canvas.focus()
    for key in ("+", "+", "+", "+"):
        tab.keyboard.press(key)
    assert tab.evaluate(size) > fitted * 3
    tab.keyboard.press("End")
    tab.keyboard.press("PageDown")
    scroll = "(() => { const m = document.querySelector('.matrix'); return [m.scrollLeft, m.scrollTop]; })()"
    assert min(tab.evaluate(scroll)) > 300  # the keys scroll to their cell
    box = canvas.bounding_box()
    tab.mouse.click(box["x"] + 8, box["y"] + 8)  # the overview in the corner scrolls back
    assert max(tab.evaluate(scroll)) < 50
    assert " attends to " in tab.inner_text(".reading")
    # More values than Math.max takes as arguments.
    go(tab, address, view="heads", map=0, head=0, stage="energy", text=" ".join(["the red dog sees"] * 120))
    until(tab, "document.querySelector('.reading').textContent.includes('largest')")


def test_a_run_that_the_server_dropped_is_computed_again(tab, two, model):
    go(tab, two, view="heads")
    tab.wait_for_selector(".thumb")
    other = tab.context.new_page()
    for text in ("a man", "a ball", "a dog"):  # the server keeps two runs
        go(other, two, text=text)
    assert other.inner_text("#output .answer") != tab.inner_text("#output .answer")
    tab.expected.append("404")  # Chromium logs every failed request
    tab.get_by_role("button", name="Encoder self-attention, layer 1, head 2").click()
    until(tab, "document.getElementById('head-title').textContent.startsWith('Encoder')")
    until(tab, "document.querySelector('.reading').textContent.includes('attends to')")
    assert tab.locator("#error").is_hidden()
    other.close()


def test_the_page_waits_for_a_server_that_comes_back(tab, model):
    def make_service():
        service = GenerationService(model, "toy", workers=1)
        service.extensions.append(Explorer(service).add_routes)
        return service

    # 503: of scripts that still load when the server stops; 404: the new server does not have the first run.
    tab.expected += ["503", "ERR_CONNECTION_REFUSED", "404"]
    with running(make_service()) as client:
        address = f"http://127.0.0.1:{client.port}/explore/"
        go(tab, address)
        tab.wait_for_selector(".lines button.word")
    tab.fill("#text", "the dog")
    tab.press("#text", "Enter")
    until(tab, "document.getElementById('error').textContent.startsWith('The server does not answer')")
    with running(make_service(), port=client.port):
        until(tab, "document.querySelector('#output .answer').textContent === 'der hund'")
        assert tab.locator("#error").is_hidden()
        tab.goto("about:blank")


def test_a_model_that_fails_while_it_decodes_is_one_sentence(tab, tmp_path):
    torch.manual_seed(3)
    model = write_model(tmp_path)
    service = GenerationService(model, "small", workers=1)
    explorer = Explorer(service)
    service.extensions.append(explorer.add_routes)
    steps = {"left": 10_000}

    def fail_late(module, inputs, output):
        steps["left"] -= 1
        if steps["left"] == 0:
            raise RuntimeError("out of memory")

    explorer.explored.model.decoder.layers[0].register_forward_hook(fail_late)
    with running(service) as client:
        tab.goto(f"http://127.0.0.1:{client.port}/explore/?view=whatif&text=ein+Hund")
        tab.wait_for_selector(".controls select")
        before = tab.inner_text("#output .answer")
        steps["left"] = 3
        tab.expected.append("500")
        type_text(tab, "zwei Hunde")
        message = tab.inner_text("#error")
        assert message and "Traceback" not in message and "\n" not in message
        assert tab.inner_text("#output .answer") == before  # the last result stays
        type_text(tab, "zwei Hunde")  # and the model works again
        assert tab.locator("#error").is_hidden()
        tab.goto("about:blank")


COLOURS = re.compile(r"--(hot|cold): (\d+) (\d+) (\d+);")
# Machado et al. 2009, severity 1: what people see who lack one kind of cone, from linear RGB.
DEFICIENCIES = {
    "protan": [0.1523, 1.0526, -0.2049, 0.1145, 0.7863, 0.0992, -0.0039, -0.0481, 1.0520],
    "deutan": [0.3673, 0.8606, -0.2280, 0.2801, 0.6725, 0.0474, -0.0118, 0.0429, 0.9689],
    "tritan": [1.2555, -0.0767, -0.1788, -0.0784, 0.9308, 0.1476, 0.0047, 0.6914, 0.3039],
}


def _lab(rgb, seen):
    """CIE L*a*b* of a colour as seen with a deficiency (a matrix on linear RGB)."""
    linear = [(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in (x / 255 for x in rgb)]
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(to_xyz @ np.reshape(seen, (3, 3)) @ linear, 0, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_more_and_less_differ_for_colour_blind_readers(deficiency):
    css = (Path(explorer.__file__).parent / "page" / "style.css").read_text()
    found = [(name, [int(x) for x in rgb]) for name, *rgb in COLOURS.findall(css)]
    assert [name for name, _ in found] == ["hot", "cold"] * 2  # light and dark
    for (_, hot), (_, cold) in (found[:2], found[2:]):
        far = np.linalg.norm(_lab(hot, DEFICIENCIES[deficiency]) - _lab(cold, DEFICIENCIES[deficiency]))
        assert far > 40  # 2.3 is just noticeable


READY = {"alignment": ".lines button.word", "heads": ".thumb", "search": ".node", "whatif": "#view select",
         "trust": ".figure", "compare": ".triple canvas", "mechanism": ".calc"}  # fmt: skip
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_no_accessibility_violation(tab, address, scheme):
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    go(tab, address, text="the dog", links="0-0", other="a man", mode="text")
    tab.evaluate(axe.AXE_SCRIPT)
    violations = {}
    for view, selector in READY.items():
        tab.locator(f"#tab-{view}").click()
        tab.wait_for_selector(selector)
        report = tab.evaluate(f"axe.run({{runOnly: {json.dumps(TAGS)}, resultTypes: ['violations']}})")
        violations[view] = [
            (v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in report["violations"]
        ]
    assert violations == {view: [] for view in READY}
