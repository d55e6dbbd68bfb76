"""Tests of explorer/page/: things done twice, fast, in another order, by keyboard, or while a text is run."""

import json
import re
from urllib.parse import urlencode

import pytest
import torch

from regard.explorer.explorer_routes import Explorer
from regard.serving.generation_service import GenerationService
from tests.explorer.toy import type_text, until
from tests.serving.server import running, write_model

TEXT = "the red dog sees a house"
TOO_LONG = "the red dog sees a ball " * 120
# The answers to requests of a path, and with a text in the body, are held back while `held` is true.
HOLD = """
const fetched = window.fetch;
window.held = null;
window.asked = [];
window.fetch = async (url, options) => {
  const request = `${url} ${options?.body ?? ""}`;
  window.asked.push(request);
  const answer = await fetched(url, options);
  while (window.held && request.includes(window.held)) await new Promise((done) => setTimeout(done, 20));
  return answer;
};
"""
FOCUSED = "(document.activeElement.ariaLabel ?? document.activeElement.textContent)"


def go(tab, address, **state):
    tab.goto(f"{address}?{urlencode({'text': TEXT, **state})}")
    until(tab, "document.getElementById('output').hasChildNodes()")


def show(tab, name):
    tab.get_by_role("tab", name=name).click()


def test_tokens_labels_and_addresses_of_any_form_are_read(tab, address):
    tab.goto(f"{address}mechanism.html?map=-1&head=&row=1.5")
    shown = tab.evaluate(
        """async () => {
          const { token, likeliest } = await import("./format.js");
          const { readRow } = await import("./words.js");
          const { headOf, mapIndex, readAddress, rowOf } = await import("./state.js");
          const node = document.createElement("p");
          const columns = Array.from({ length: 23 }, () => ({ text: "a" }));
          const read = (i) => {
            const row = Float32Array.from(columns, (_, c) => Number(c === i));
            readRow(node, row, [{ text: "b" }], columns, 0, -1);
            return node.textContent.match(/\\d+[a-z]+/u)[0];
          };
          const run = { maps: [{ heads: 2, rowSide: "source" }] }, places = [];
          for (const query of ["?map=-1&head=&row=1.5", "?map=0.5&head=-1", "?map=0&head=1&row=3"]) {
            history.replaceState(null, "", query);
            readAddress();
            places.push([mapIndex(run, 7), headOf(run.maps[0]), rowOf(run, "source"), rowOf(run, "target")]);
          }
          return {
            tokens: ["constructor", "valueOf", "</s>"].map(token),
            labels: likeliest({ 1: 0.1, 2: 0.2, 5: 0.7 }),
            ordinals: [0, 1, 2, 3, 10, 11, 12, 20, 21, 22].map(read),
            places,
          };
        }"""
    )
    assert shown["tokens"] == ["constructor", "valueOf", "end"]
    assert shown["labels"] == "5 70 % · 2 20 % · 1 10 %"
    assert shown["ordinals"] == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd"]
    assert shown["places"] == [[7, "mean", -1, -1], [7, "mean", -1, -1], [0, 1, 3, -1]]


@pytest.mark.parametrize("view", ["alignment", "heads", "compare"])
def test_an_address_with_indices_that_do_not_exist_shows_the_view(tab, address, view):
    go(tab, address, view=view, map=-1, head=-1, row="x", node=1.5, other="a dog")
    tab.wait_for_selector(".matrix canvas[data-cell]")
    assert "undefined" not in tab.inner_text("main") and tab.locator("#error").is_hidden()


def test_a_view_that_was_left_changes_neither_the_address_nor_other_views(tab, address):
    tab.add_init_script(HOLD)
    go(tab, address, view="mechanism")
    tab.evaluate("window.held = 'api/search'")
    show(tab, "Search")
    until(tab, "window.asked.some((request) => request.includes('api/search'))")
    show(tab, "Compare")
    tab.evaluate("window.held = null")
    tab.wait_for_timeout(700)
    assert "node=" not in tab.url
    assert "%" not in tab.inner_text("#live")

    tab.evaluate("window.held = 'heads/mean'")  # the picture of Alignment
    show(tab, "Alignment")
    tab.wait_for_timeout(100)
    show(tab, "Heads")
    tab.wait_for_selector(".trust-line")
    until(tab, "document.querySelector('.reading').textContent.includes('attends to')")
    tab.evaluate("window.held = null")
    until(tab, "document.querySelector('.trust-line').textContent.startsWith('Can you trust')")


def test_changes_of_a_text_that_was_left_are_gone(tab, address):
    tab.add_init_script(HOLD)
    go(tab, address, view="whatif")
    change = tab.get_by_role("button", name="Change and run again")
    change.wait_for()
    tab.evaluate("window.held = '\"changes\"'")
    change.click()
    change.click()
    assert tab.locator(".list li").count() == 2  # the second waits for the first
    type_text(tab, "a dog")
    tab.evaluate("window.held = null")
    tab.wait_for_timeout(500)
    assert "changes=" not in tab.url and tab.locator(".list li").count() == 0
    assert not tab.inner_text("#live").startswith("The output")


def test_of_two_changes_the_one_that_fails_is_taken_back(tab, address):
    tab.add_init_script(HOLD)
    go(tab, address, view="whatif")
    change = tab.get_by_role("button", name="Change and run again")
    change.wait_for()

    def refuse(route):
        if '"zero"' in (route.request.post_data or ""):
            return route.fulfill(status=422, json={"error": "weights of 0 are refused"})
        return route.continue_()

    tab.expected.append("422")
    tab.route("**/api/runs", refuse)
    tab.evaluate("window.held = '\"zero\"'")
    tab.get_by_role("combobox", name="change").select_option(label="set to zero")
    change.click()
    tab.get_by_role("combobox", name="change").select_option(label="make uniform")
    change.click()  # while the other is under way
    tab.evaluate("window.held = null")
    until(tab, "document.querySelectorAll('.pair .answer').length === 2")
    assert tab.locator(".list li span").all_inner_texts() == [
        "Cross-attention, layer 2, all heads, all rows, uniform"
    ]


def test_views_show_the_text_that_was_run_after_another_failed(tab, address):
    tab.add_init_script(HOLD)
    go(tab, address, view="whatif", beam=2)
    tab.expected.append("422")
    type_text(tab, TOO_LONG)
    assert "tokens" in tab.inner_text("#error")
    tab.evaluate("window.asked = []")
    tab.get_by_role("button", name="Change and run again").click()
    tab.wait_for_selector(".pair .answer")
    assert tab.locator("#view .pair .answer").first.inner_text() == tab.inner_text("#output .answer")
    show(tab, "Search")
    tab.wait_for_selector(".panel button")
    show(tab, "Compare")
    tab.get_by_role("textbox", name="Another text").fill("a dog")
    tab.get_by_role("button", name="Compare", exact=True).click()
    tab.wait_for_selector(".triple canvas")
    show(tab, "Search")
    tab.get_by_role("button", name=re.compile("^Force ")).last.click()
    until(tab, "document.getElementById('output').textContent.includes('forced to begin with')")
    bodies = [json.loads(one[one.index("{") :]) for one in tab.evaluate("window.asked") if "{" in one]
    assert len(bodies) >= 4
    assert {body["text"] for body in bodies if "text" in body} == {TEXT, "a dog"}


def test_a_first_text_that_fails_is_no_longer_running(tab, address):
    tab.add_init_script(HOLD.replace("held = null", "held = 'api/runs'"))
    tab.expected.append("422")
    tab.goto(address)
    tab.fill("#text", TOO_LONG)
    tab.press("#text", "Enter")
    until(tab, "document.getElementById('go').disabled")
    assert tab.inner_text("#view") == "Running…"
    tab.evaluate("window.held = null")
    until(tab, "!document.getElementById('go').disabled")
    assert "tokens" in tab.inner_text("#error")
    assert tab.inner_text("#view") == "Type a text and press Enter."


def test_a_run_does_not_rebuild_the_mechanism_under_typing_hands(tab, address):
    tab.add_init_script(HOLD.replace("held = null", "held = 'api/runs'"))
    tab.goto(f"{address}?view=mechanism")
    field = tab.get_by_role("spinbutton", name="q of the, 1")
    field.fill("1000")
    tab.evaluate("window.held = null")
    until(tab, "document.getElementById('output').hasChildNodes()")
    assert tab.evaluate(FOCUSED) == "q of the, 1"
    field.press("Tab")
    assert field.input_value() == "99"  # what is computed with
    field.fill("")
    field.press("Tab")
    assert field.input_value() == "99"
    broken = {"words": ["a", "b"], "q": ["12", "34"], "k": [[1, 2], [1, 2]], "v": [[1, 2], [1, 2]]}
    tab.goto(f"{address}mechanism.html?{urlencode({'mechanism': json.dumps(broken)})}")
    assert tab.get_by_role("spinbutton").count() == 24  # the example


def test_what_failed_once_is_asked_for_again(tab, address):
    answers = iter([503])

    def fail_once(route):
        status = next(answers, None)
        return route.fulfill(status=status, json={"error": "later"}) if status else route.continue_()

    tab.expected.append("503")
    tab.route("**/statistics", fail_once)
    go(tab, address, view="heads")
    until(tab, "document.querySelector('.reading').textContent === 'later'")
    tab.get_by_role("button", name="Encoder self-attention, layer 1, head 2").click()
    until(tab, "document.querySelector('#head-title').nextSibling.textContent.includes('bits')")


def test_an_answer_that_breaks_off_is_a_server_that_does_not_answer(tab, address):
    tab.goto(f"{address}mechanism.html")
    messages = tab.evaluate(
        """async () => {
          const api = await import("./api.js"), run = { id: "a", maps: [] };
          const start = (stream) => stream.error(new TypeError("network error"));
          const broken = () => new ReadableStream({ start });
          const calls = [() => api.thumbnails(run), () => api.diversity(run, 0), () => api.describeModel()];
          const failed = [];
          for (const body of [broken, () => "<p>Log in"])
            for (const call of calls.slice(body === broken ? 0 : 1)) {
              window.fetch = async () => new Response(body());
              failed.push(await call().catch((error) => error.message));
            }
          return failed;
        }"""
    )
    assert set(messages) == {"The server does not answer. Is regard explore still running?"}


def test_the_focus_stays_on_controls_that_are_made_again(tab, address):
    go(tab, address, other="a dog")
    for view, name in [
        ("Alignment", "head"),
        ("Alignment", "tokens"),
        ("Heads", "+ mask"),
        ("Heads", "Decoder self-attention"),
        ("Search", "show all pruned tokens"),
        ("What if", "change"),
        ("Compare", "head"),
        ("Compare", "words"),
    ]:
        show(tab, view)
        control = (
            tab.locator("#view")
            .get_by_role("combobox", name=name, exact=True)
            .or_(tab.locator("#view").get_by_role("button", name=name, exact=True))
        )
        control.first.wait_for()
        tab.wait_for_load_state("networkidle")
        if control.first.evaluate("(node) => node.localName") == "select":
            control.first.focus()
            tab.keyboard.press("ArrowDown")
        else:
            control.first.press("Enter")
        tab.wait_for_timeout(150)
        assert tab.evaluate(FOCUSED).startswith(name), (view, name)
    show(tab, "Search")
    tab.get_by_role("button", name=re.compile("^Force ")).last.press("Enter")
    until(tab, "document.getElementById('output').textContent.includes('forced to begin with')")
    assert tab.evaluate("document.activeElement.id") == "view"
    tab.locator("#go").press("Enter")
    until(tab, "!document.getElementById('go').disabled")
    assert tab.evaluate("document.activeElement.id") == "go"


def test_a_dragged_weight_is_announced(tab, address):
    go(tab, address, view="whatif")
    tab.wait_for_selector(".whatif canvas[data-cell]")
    tab.focus(".whatif canvas")
    tab.keyboard.press("ArrowRight")
    until(tab, "/^\\S+ → \\S+: 0?[.\\de-]+$/u.test(document.getElementById('live').textContent)")
    before = tab.inner_text("#live")
    tab.keyboard.press("Shift+ArrowUp")
    until(tab, f"document.getElementById('live').textContent !== {json.dumps(before)}")


def test_the_row_of_the_address_is_one_of_its_own_side_and_level(tab, address):
    go(tab, address, view="heads", level="words")
    tab.get_by_role("button", name="Encoder self-attention, layer 1, head 1").click()
    until(tab, "document.getElementById('head-title').textContent.startsWith('Encoder')")
    tab.locator(".lines button.word").nth(3).click()
    assert "row=3" in tab.url  # a source word
    show(tab, "Trust")
    tab.wait_for_selector(".figure")
    assert tab.locator("button.word[aria-pressed=true]").inner_text() == "der"
    show(tab, "Heads")
    tab.wait_for_selector(".thumb")
    tab.get_by_role("button", name="Cross-attention, layer 1, head 1").click()
    assert "row=" not in tab.url
    until(tab, "document.getElementById('head-title').textContent.startsWith('Cross')")
    tab.locator(".lines button.word").nth(3).click()
    assert "row=3" in tab.url
    tab.get_by_role("button", name="tokens", exact=True).click()
    assert "row=" not in tab.url


def test_pictures_that_have_left_the_page_are_not_kept(tab, address):
    go(tab, address)
    session = tab.context.new_cdp_session(tab)

    def nodes_after_visits():
        for _ in range(4):
            for name in ("alignment", "heads", "whatif", "mechanism"):  # Playwright would keep what it clicks
                tab.evaluate(f"document.getElementById('tab-{name}').click()")
                tab.wait_for_timeout(300)
        tab.wait_for_timeout(600)
        for _ in range(3):
            session.send("HeapProfiler.collectGarbage")
        return session.send("Memory.getDOMCounters")["nodes"]

    before = nodes_after_visits()
    assert nodes_after_visits() < 1.4 * before  # each visit adds a picture of its own


def test_figures_of_a_continuation_rank_the_tokens_before_it(tab, tmp_path):
    torch.manual_seed(3)
    service = GenerationService(write_model(tmp_path, encoder=None), "small", workers=1)
    service.extensions.append(Explorer(service).add_routes)
    with running(service) as client:
        tab.goto(f"http://127.0.0.1:{client.port}/explore/?view=trust&text=ein+Hund")
        tab.wait_for_selector(".figure")
        sentence = re.search(r"Figures rank (\d+) tokens, of (\d+)", tab.inner_text(".trust .legend"))
        ranked, of = map(int, sentence.groups())
        assert of == ranked + 1  # the first is “start”; those behind it come after the explained token
        tab.goto("about:blank")


def test_a_wide_matrix_is_painted_on_a_sharp_screen(tab, address):
    tab.context.new_cdp_session(tab).send(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 3, "mobile": True},
    )
    tab.goto(f"{address}mechanism.html")
    painted = tab.evaluate(
        """async () => {
          const { Matrix } = await import("./matrix.js"), matrix = new Matrix({ label: "" });
          document.querySelector("main").prepend(matrix.node);
          const columns = Array.from({ length: 512 }, () => ({ text: "a" }));
          matrix.show(new Float32Array(1024).fill(0.9), [{ text: "b" }, { text: "c" }], columns);
          for (let i = 0; i < 8; i++) matrix.enlarge(1.5);
          const { left, top, cell } = matrix.canvas.dataset, context = matrix.canvas.getContext("2d");
          const at = (start) => 3 * (Number(start) + Number(cell) / 4);
          return [Number(cell), context.getImageData(at(left), at(top), 1, 1).data[3]];
        }"""
    )
    assert painted[0] == 44 and painted[1] > 100
