"""Tests of the page in Chromium: typed text, every view, keyboard, hostile text, no request beyond loopback.

The screenshots of docs/explorer.md are written by test_screenshots.py.
"""

import json
import re
from urllib.parse import urlencode

import pytest
import torch

import regard
from regard.attention import (
    ALiBi,
    Causal,
    Distance,
    Dot,
    Hard,
    ScaledDot,
    Sigmoid,
    Softmax,
    Sparsemax,
    Window,
)
from regard.explorer.explorer_routes import Explorer
from regard.models.folder import load
from regard.pipelines.token_words import Words, word_weights
from regard.serving.request_limits import RequestLimits
from regard.serving.text_services import make_service
from tests.decoding import model_folders
from tests.explorer import toy
from tests.explorer.toy import type_text, until
from tests.models.test_tagger import make_tagger as tagger
from tests.search.small import embedder
from tests.serving.server import running, write_model

TEXT = "the red dog sees a house"


def test_the_alignment_of_a_typed_text_has_exact_numbers(tab, model, address):
    tab.goto(address)
    type_text(tab, TEXT)
    tab.wait_for_selector(".lines button.word")
    assert tab.inner_text("#output .answer") == "der roter hund sieht ein hausboot"
    words = tab.locator(".lines button.word").all_inner_texts()
    assert words == ["der", "roter", "hund", "sieht", "ein", "hausboot", "end"]
    source = tab.locator(".lines span.word").all_inner_texts()
    assert source == [*TEXT.split(), "end"]

    tab.locator("canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        tab.keyboard.press(key)
    ring = tab.evaluate(
        "(({outlineStyle: s, outlineOffset: o}) => [s, o])(getComputedStyle(document.activeElement))"
    )
    assert ring == ["solid", "-2px"]  # inside: what scrolls would cut it
    expected = float(_word_row(model, 2)[2])
    reading = tab.inner_text(".reading")
    assert reading.startswith("hund attends to") and "—" not in reading  # the number stands there once
    assert tab.locator(".reading b").all_inner_texts() == ["hund", f"dog {expected:.3f}"]
    until(tab, "document.getElementById('live').textContent.startsWith('hund, dog')")

    tab.locator(".lines button.word", has_text="sieht").click()
    assert tab.inner_text(".reading").startswith("sieht attends to")
    assert "row=3" in tab.url and "text=the+red+dog" in tab.url
    tab.reload()  # the address holds the state
    tab.wait_for_selector(".lines button.word[aria-pressed=true]")
    assert tab.inner_text(".reading").startswith("sieht attends to")


def _word_row(model, word):
    translation = regard.translate(TEXT, model, attention=True)
    source = Words.of_text(model.source_tokenizer, TEXT)
    target = Words.of_tokens(model.target_tokenizer, translation.hypotheses[0].tokens)
    return word_weights(translation.attention.cross(layer=-1), source, target)[word]


def test_the_matrix_paints_large_weights_darker(tab, model, address):
    tab.goto(f"{address}?text={TEXT.replace(' ', '+')}")
    tab.wait_for_selector(".lines button.word")
    tab.expected.append("willReadFrequently")  # the pixels are read by this test alone
    row = _word_row(model, 2)
    largest, smallest = int(row.argmax()), int(row.argmin())
    brightness = tab.evaluate(
        """([row, columns]) => {
          const canvas = document.querySelector(".matrix canvas");
          const context = canvas.getContext("2d");
          const { cell, left, top } = canvas.dataset, middle = (i) => (i + 0.2) * cell; // beside the number
          return columns.map((c) => {
            const [r, g, b] = context.getImageData(+left + middle(c), +top + middle(row), 1, 1).data;
            return r + g + b;
          });
        }""",
        [2, [largest, smallest]],
    )
    assert brightness[0] < brightness[1] - 60


def test_every_head_has_a_thumbnail_and_can_be_enlarged(tab, address):
    tab.goto(f"{address}?view=heads&text={TEXT.replace(' ', '+')}")
    tab.wait_for_selector(".thumb")
    names = tab.locator(".kind h3").all_inner_texts()
    assert names == ["Encoder self-attention", "Decoder self-attention", "Cross-attention"]
    assert tab.locator(".layer > span").all_inner_texts()[:2] == ["head", "layer 1"]
    assert "Hide heads by entropy" in tab.inner_text(".limits")
    # Two heads in each of one encoder layer, two decoder layers and their two cross-attentions.
    assert tab.locator(".thumb").count() == 10
    tab.get_by_role("button", name="Encoder self-attention, layer 1, head 2").click()
    until(tab, "document.getElementById('head-title').textContent.startsWith('Encoder')")
    assert tab.locator(".lines button.word").count() == 7
    tab.get_by_role("button", name="Decoder self-attention", exact=True).click()
    assert tab.locator(".thumb").count() == 4
    tab.get_by_role("button", name="tokens", exact=True).click()
    until(tab, "document.querySelectorAll('.lines button.word').length === 7")
    tab.locator(".thumb").first.focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    until(tab, "document.getElementById('head-title').textContent.endsWith('layer 1, head 2')")


def test_changed_attention_changes_the_translation_side_by_side(tab, model, address):
    tab.goto(f"{address}?view=whatif&text={TEXT.replace(' ', '+')}")
    tab.get_by_role("combobox", name="attention").select_option(label="Cross-attention, layer 1")
    tab.get_by_role("button", name="Change and run again").click()
    tab.get_by_role("combobox", name="attention").select_option(label="Cross-attention, layer 2")
    tab.wait_for_selector(".pair .answer")
    tab.get_by_role("button", name="Change and run again").click()
    until(
        tab,
        "document.querySelectorAll('.list li').length === 2 && !document.querySelector('.result[aria-busy]')",
    )
    from regard.attention import Uniform

    with regard.intervene(model, {"decoder.layers.*.cross": Uniform()}):
        expected = regard.translate(TEXT, model)
    answers = tab.locator(".pair .answer").all_inner_texts()
    assert answers == ["der roter hund sieht ein hausboot", str(expected)]
    assert (
        answers[0] != answers[1]
        and tab.inner_text(".verdict") == "The output changes; underlined words differ."
    )
    assert tab.locator(".result tbody tr").count() == 2
    assert tab.locator(".result td b").count() == 2  # the likelier output of each column
    assert "greedy search" in tab.inner_text("#searched")
    # The map as it is stands beside it, to be edited; the changed one has its scale.
    assert tab.locator("#maps h3").all_inner_texts() == ["Attention changed"]
    assert tab.inner_text(".whatif h3").startswith("Edit here: Cross-attention, layer 2")
    assert "each weight 1/7 = 0.14" in tab.inner_text("#maps .legend")

    tab.reload()  # the address holds the changes
    until(tab, "document.querySelectorAll('.pair .answer').length === 2")
    assert tab.locator(".pair .answer").all_inner_texts() == answers
    changes = [f"Cross-attention, layer {n}, all heads, all rows, uniform" for n in (1, 2)]
    assert tab.locator(".list li span").all_inner_texts() == changes
    type_text(tab, "a dog")
    assert "changes" not in tab.url and tab.locator(".list li").count() == 0


SEARCHED = """async ([[plain, edited, plainChanged, editedChanged], beam]) => {
  const comparison = { original: { plain, edited }, changed: { plain: plainChanged, edited: editedChanged } };
  const { searched } = await import("./whatif.js");
  return searched({ text: "b", comparison }, { text: "a" }, beam).textContent;
}"""
MISSED = (
    "output is likelier in both columns; greedy search missed it: it takes the likeliest token of each step"
)


# log p of the original output (attention as it is, changed) and of the changed one, beam size, expected text.
SEARCHES = [
    ([-1, -3, -4, -2], 1, "Both outputs are from greedy search; each is the likelier one in its own column."),
    ([-1, -2, -4, -3], 1, f"The original {MISSED}"),
    ([-4, -5, -1, -2], 1, f"The changed {MISSED}"),
    ([-1, -2, -4, -3], 4, "it keeps 4 beginnings at each step and ranks them"),
]


def test_if_the_search_missed_a_likelier_output_the_page_says_why(tab, address):
    tab.goto(f"{address}mechanism.html")
    texts = [tab.evaluate(SEARCHED, [log_p, beam]) for log_p, beam, _ in SEARCHES]
    assert [
        text for text, (_, _, expected) in zip(texts, SEARCHES, strict=True) if expected not in text
    ] == []
    assert texts[0] == SEARCHES[0][2]  # nothing was missed


READ_ROW = """async ([texts, weights, column]) => {
  const { readRow } = await import("./words.js"), { probability } = await import("./format.js");
  const node = document.createElement("p"), columns = texts.map((text) => ({ text }));
  readRow(node, Float32Array.from(weights), [{ text: "zu" }], columns, 0, column);
  return [node.textContent, ...[0.105, 0.0012, 0.00023].map((p) => probability(Math.log(p)))];
}"""


def test_readings_tell_repeated_words_apart_and_have_one_number_format(tab, address):
    tab.goto(f"{address}mechanism.html")
    text, *numbers = tab.evaluate(READ_ROW, [["to", "go", "to"], [0.25, 0.125, 0.625], 1])
    assert text == "zu attends to to (2nd) 0.625 · to (1st) 0.250 · go 0.125"
    assert numbers == ["0.105", "1.2e-3", "2.3e-4"]
    text, *_ = tab.evaluate(READ_ROW, [["a", "b", "c", "d", "e"], [0.3, 0.3, 0.2, 0.15, 0.05], 4])
    assert text.endswith("rest 0.050 · e: 0.050")  # a chosen column that is not in the list


def test_broken_changes_in_the_address_are_left_out(tab, address):
    broken = [{"map": "none", "change": "zero"}, 7, None]
    sound = {"map": "decoder.layers.0.cross", "change": "zero", "head": 1}
    for changes in ("{", json.dumps([*broken, sound])):
        tab.goto(f"{address}?{urlencode({'view': 'whatif', 'text': 'the dog', 'changes': changes})}")
        tab.wait_for_selector("#view select")
    tab.wait_for_selector(".pair .answer")
    assert tab.locator(".list li span").all_inner_texts() == [
        "Cross-attention, layer 1, head 2, all rows, zero"
    ]


def kind_of_model(kind, folder):
    torch.manual_seed(3)
    if kind == "recurrent translator":
        return load(model_folders.translator(folder))
    if kind == "language model":
        return write_model(folder, encoder=None)
    if kind == "classifier":
        return load(model_folders.classifier(folder, encoder=toy.ENCODER))
    return tagger("transformer", use_characters=False) if kind == "tagger" else embedder()


@pytest.mark.parametrize(
    ("kind", "thumbnails"),
    [
        ("tagger", 2),
        # Those of the bundled models are in test_bundled_choices.py.
        pytest.param("recurrent translator", 1, marks=pytest.mark.slow),
        pytest.param("language model", 4, marks=pytest.mark.slow),
        pytest.param("classifier", 3, marks=pytest.mark.slow),
        pytest.param("embedder", 8, marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_model_has_heads_and_can_be_changed(tab, tmp_path, kind, thumbnails):
    service = make_service(kind_of_model(kind, tmp_path), kind, RequestLimits(), workers=1)
    service.extensions.append(Explorer(service).add_routes)
    with running(service) as client:
        tab.goto(f"http://127.0.0.1:{client.port}/explore/?view=heads&text=ada+met+a+dog")
        tab.wait_for_selector(".lines button.word")
        assert tab.locator(".thumb").count() == thumbnails
        assert " attends to " in tab.inner_text(".reading") and tab.inner_text("#output").strip()
        tab.get_by_role("tab", name="What if").click()
        tab.get_by_role("combobox", name="change").select_option("zero")
        tab.get_by_role("button", name="Change and run again").click()
        tab.wait_for_selector(".pair .answer")
        # The map as it is is drawn again where its rows cannot be edited.
        assert tab.locator("#maps canvas").count() == (2 if kind == "recurrent translator" else 1)
        tab.get_by_role("button", name=re.compile("Remove")).click()
        assert tab.locator(".pair").count() == 0
        tab.goto("about:blank")  # closes its connections, so that the server ends at once


# The direction of the words of the source and of the translation.
DIRECTIONS = "[...document.querySelectorAll('.lines .side')].map((e) => getComputedStyle(e).direction).join()"


def test_hostile_text_is_shown_as_text_and_errors_are_shown(tab, address):
    text = "<script>alert(1)</script> <img src=x onerror=alert(2)> שלום 世界 😀 &amp;"
    tab.goto(f"{address}?view=heads")
    type_text(tab, text)
    tab.wait_for_selector(".thumb")
    ready = {
        "Search": ".node",
        "Trust": ".figure, .empty",
        "Compare": "#view .ask",
        "What if": "#view select",
    }
    for view, selector in ready.items():
        tab.get_by_role("tab", name=view).click()
        tab.wait_for_selector(selector)
    assert tab.locator("main script, main img").count() == 0
    assert tab.input_value("#text") == text
    tab.get_by_role("tab", name="Alignment").click()
    until(tab, "document.querySelectorAll('.lines span.word').length > 0")
    assert tab.locator(".lines span.word").all_inner_texts() == [*text.split(), "end"]
    matrix = tab.locator(".matrix canvas")
    matrix.focus()
    for _ in range(4):
        matrix.press("ArrowRight")
    assert tab.evaluate(DIRECTIONS) == "ltr,ltr"  # the first letter is Latin
    assert "\u2068שלום\u2069" in tab.inner_text(".reading")  # isolated, or the number would jump
    type_text(tab, "שלום עולם dog")
    until(tab, f"{DIRECTIONS} === 'rtl,ltr'")  # the translation has its own direction
    tab.expected.append("422")  # Chromium logs every failed request
    type_text(tab, "dog " * 600)
    assert "at most 512" in tab.inner_text("#error")
    type_text(tab, "dog " * 10_000)
    assert "at most 10,000" in tab.inner_text("#error")
    type_text(tab, "\u200b\u200b")  # no space, and no token either, or one that is unknown
    assert tab.inner_text("#output").strip() and "Traceback" not in tab.inner_text("#error")
    type_text(tab, "the red dog")
    assert tab.locator("#error").is_hidden() and tab.inner_text("#output .answer") == "der roter hund"


def test_a_missing_text_is_an_error_of_one_sentence_in_every_view(tab, address):
    tab.goto(f"{address}?text=the+dog")
    until(tab, "document.getElementById('output').hasChildNodes()")
    fields = {
        "Search": ("A word to force here", "Type a word to force."),
        "Compare": ("Another text", "Type another text first."),
        "Mechanism": (
            "Two to six words",
            "Type two to six words; the numbers are those of the words before.",
        ),
    }
    for view in ("Alignment", "Heads", "Search", "What if", "Trust", "Compare", "Mechanism"):
        tab.get_by_role("tab", name=view).click()
        for text in ("", " \t  "):
            if view != "Mechanism":  # it has no text of its own
                type_text(tab, text)
                assert tab.inner_text("#error") == "Type a text first.", view
                assert tab.inner_text("#output .answer") == "der hund"  # the last result stays
            if view in fields:
                label, sentence = fields[view]
                tab.get_by_label(label).fill(text)
                tab.keyboard.press("Enter")
                until(tab, f"document.getElementById('view').innerText.includes({json.dumps(sentence)})")


def test_long_texts_scroll_in_their_lines(tab, address):
    tab.goto(f"{address}?view=heads&kind=encoder&map=0&head=0&text={'+'.join(['the red dog sees'] * 60)}")
    tab.wait_for_selector(".lines.long button.word")
    assert tab.locator(".lines button.word").count() == 241
    assert tab.locator(".lines").bounding_box()["height"] < 450
    tab.locator(".lines button.word").nth(200).focus()
    assert tab.evaluate("document.querySelector('.lines [role=group]').scrollTop") > 0
    assert tab.locator(".lines path").count() > 0 or "rest" in tab.inner_text(".reading")


@pytest.mark.parametrize("width", [400, pytest.param(1280, marks=pytest.mark.slow)])
def test_nothing_is_wider_than_the_screen(tab, address, width):
    tab.set_viewport_size({"width": width, "height": 800})
    changes = json.dumps([{"map": "decoder.layers.1.cross", "change": "uniform"}])
    state = {
        "text": TEXT,
        "mode": "probe",
        "other": "the man/dog sees a ball",
        "changes": changes,
        "pruned": 1,
    }
    tab.goto(f"{address}?{urlencode(state)}")
    ready = {
        "Search": ".panel form",
        "What if": "#maps canvas",
        "Trust": ".figure",
        "Compare": ".triple canvas",
    }
    for view in ("Alignment", "Heads", "Search", "What if", "Trust", "Compare", "Mechanism"):
        tab.get_by_role("tab", name=view).click()
        tab.wait_for_selector(ready.get(view, "#view .card"))
        tab.wait_for_timeout(60)
        assert tab.evaluate("document.documentElement.scrollWidth") == width, view
        if view == "Search":  # the selected token is in sight
            tree, chosen = tab.locator(".tree"), tab.locator(".tree [aria-pressed=true]")
            left, right = tree.bounding_box()["x"], tree.bounding_box()["x"] + tree.bounding_box()["width"]
            box = chosen.bounding_box()
            assert left <= box["x"] and box["x"] + box["width"] <= right


def test_tabs_are_reached_by_keyboard(tab, address):
    tab.goto(address)
    tab.locator("[role=tab][aria-selected=true]").focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector("[role=tab][aria-selected=true] >> text=Heads")
    assert tab.evaluate("document.activeElement.textContent") == "Heads"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    check_arrow_keys(tab)


ITEMS = """async () => {
  const { el, rove } = await import("./dom.js");
  const box = el("div", { dir: "rtl", id: "items" }, ["1", "2", "3"].map((text) => el("button", {}, text)));
  rove(box, "button");
  document.body.append(box);
  box.children[1].focus();
}"""


def check_arrow_keys(tab):
    """In text from right to left the keys follow the direction of the text."""
    tab.evaluate(ITEMS)
    for key, expected in (("ArrowLeft", "3"), ("ArrowRight", "2"), ("ArrowUp", "1"), ("ArrowDown", "2")):
        tab.keyboard.press(key)
        assert tab.inner_text(":focus") == expected, key


def test_the_mechanism_runs_without_a_server_and_traces_numbers(tab, address):
    tab.goto(f"{address}mechanism.html")
    cell = tab.locator("button.cell[data-stage=weights]").first
    before = cell.inner_text()
    tab.get_by_label("q of the, 1").fill("3")
    assert tab.locator("button.cell[data-stage=weights]").first.inner_text() != before
    tab.locator("button.cell[data-stage=energies]").first.focus()
    assert tab.inner_text(".trace").startswith("e[1,1] = q·k / √d = (3.00·0.10 + 0.10·0.20) / √2 = 0.23")
    assert tab.locator("input.used").count() == 4  # a query and a key
    tab.get_by_role("combobox", name="mask").select_option(label="causal")
    assert tab.locator("button.cell[data-stage=masked]").nth(1).inner_text() == "·"
    tab.get_by_label("Two to six words").fill("eins zwei")
    assert tab.locator("button.cell[data-stage=output]").count() == 4
    shown = tab.locator("button.cell").all_inner_texts()
    tab.reload()  # the address holds the numbers
    assert tab.locator("button.cell").all_inner_texts() == shown
    assert tab.input_value("[aria-label='Two to six words']") == "eins zwei"
    tab.goto(f"{address}mechanism.html?mechanism=%7B%22words%22%3A%5B1%5D%2C%22mask%22%3A%22no%22%7D")
    assert tab.locator("button.cell[data-stage=weights]").count() == 16  # broken: the example is shown


ENERGIES = {"scaled dot": ScaledDot(), "dot": Dot(), "distance": Distance()}
MASKS = {"none": None, "causal": Causal(), "window 1": Window(1, 1)}
NORMALISERS = {"softmax": Softmax, "sparsemax": Sparsemax, "sigmoid": Sigmoid, "hard": Hard}


def test_the_arithmetic_of_the_page_equals_attend(tab, address):
    tab.goto(f"{address}mechanism.html")
    q, k, v = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for energy in ENERGIES:
        for mask in MASKS:
            for normaliser, make in NORMALISERS.items():
                temperature = 2.0 if normaliser == "softmax" else 1.0
                options = {
                    "energy": energy,
                    "mask": mask,
                    "normaliser": normaliser,
                    "temperature": temperature,
                    "slope": 0.00390625,
                }
                arguments = json.dumps({"q": q.tolist(), "k": k.tolist(), "v": v.tolist(), **options})
                output = tab.evaluate(f"import('./calculus.js').then((m) => m.attend({arguments}).output)")
                normalize = make(temperature=temperature) if temperature != 1.0 else make()
                expected = regard.attend(
                    q[None],
                    k[None],
                    v[None],
                    energy=ENERGIES[energy],
                    mask=MASKS[mask],
                    bias=ALiBi(1),
                    normalize=normalize,
                )[0]
                assert torch.allclose(torch.tensor(output, dtype=torch.float64), expected, atol=1e-9), options
