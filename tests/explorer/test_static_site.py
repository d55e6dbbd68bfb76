"""Tests of the site without a server, in Chromium: its engine equals PyTorch with the same int8 weights."""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from regard.cli.main import app
from regard.data.tokenizer import EOS, Tokenizer
from regard.errors import OptionError
from regard.explorer.attention_changes import AttentionChange, as_edits
from regard.explorer.explored_model import ExploredModel
from regard.explorer.run import Side
from regard.explorer.run_job import Job
from regard.explorer.static_site import site_files, write_site
from regard.models import folder as folders
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.pipelines.token_words import Words
from tests.explorer import toy
from tests.explorer.toy import type_text, until
from tests.search.small import embedder

RECURRENT = {"kind": "recurrent", "cell": "gru", "width": 64}
BAHDANAU = {"kind": "bahdanau", "cell": "gru", "width": 64}
TEXT = "the red dog sees a house"
LINES = [
    "Wo ist mein Buch?",
    "Where is my book?",
    "Où est mon livre ? 12 euros",
    "naïve — café, 3.5 %",
    "日本語 mixed",
]
RUN = """async ([address, request]) => {
  const api = await import(`${address}api.js`);
  await api.describeModel();
  const run = await api.run(request);
  const maps = [];
  for (let i = 0; i < run.maps.length; i++) maps.push([...await api.head(run, i, run.maps[i].heads - 1)]);
  const small = (await api.thumbnails(run)).map((heads) => heads.map((bytes) => [...bytes]));
  return { ...run, weights: maps, small };
}"""


@pytest.fixture(scope="module")
def sites(model, tmp_path_factory):
    """The sites of a trained Transformer and of a trained recurrent translator."""
    recurrent = toy.translator(tmp_path_factory.mktemp("recurrent"), 100, encoder=RECURRENT, decoder=BAHDANAU)
    folders_by_name = {}
    for name, translator in {"transformer": model, "bahdanau": recurrent}.items():
        folders_by_name[name] = tmp_path_factory.mktemp("sites") / name
        write_site(folders_by_name[name], translator, "toy")
    return folders_by_name


def run_in_page(tab, site, **request):
    """Run a text with the engine of the page; return the run as JSON."""
    with toy.files_served(site) as address:
        tab.goto(f"{address}mechanism.html")  # a page of the site that runs nothing by itself
        return tab.evaluate(RUN, [address, request])


def difference(result, run):
    """The largest difference of the weights of the last heads."""
    expected = [weights[-1].double().numpy().ravel() for weights in run.maps.values()]
    return max(float(np.abs(np.array(a) - b).max()) for a, b in zip(result["weights"], expected, strict=True))


@pytest.mark.parametrize(
    ("name", "beam"),
    [
        ("transformer", 4),
        ("bahdanau", 1),
        pytest.param("transformer", 1, marks=pytest.mark.slow),
        pytest.param("bahdanau", 4, marks=pytest.mark.slow),
    ],
)
def test_the_engine_translates_and_attends_as_python_with_the_same_weights(tab, sites, name, beam):
    result = run_in_page(tab, sites[name], text=TEXT, beam=beam)
    run = ExploredModel(folders.load(sites[name] / "model"), "toy").run(Job(TEXT, beam=beam))
    expected = json.loads(json.dumps(run.describe("run1")))
    assert result["output"]["text"] == expected["output"]["text"] == "der roter hund sieht ein hausboot"
    assert result["sides"] == expected["sides"]
    assert difference(result, run) < 1e-5
    assert abs(result["output"]["logP"] - expected["output"]["logP"]) < 1e-4
    assert [h["text"] for h in result["output"]["hypotheses"]] == [
        h["text"] for h in expected["output"]["hypotheses"]
    ]
    for ours, theirs, figures in zip(result["maps"], expected["maps"], run.head_statistics(), strict=True):
        assert {
            key: ours[key] for key in ("name", "kind", "layer", "heads", "rows", "columns", "thumbnail")
        } == {key: theirs[key] for key in ("name", "kind", "layer", "heads", "rows", "columns", "thumbnail")}
        assert np.allclose(ours["entropy"], figures["entropy"], atol=1e-3)
        assert np.allclose(ours["distance"], figures["distance"], atol=1e-3)
    small = np.concatenate([np.ravel(heads) for heads in result["small"]])
    assert np.abs(small - np.frombuffer(run.thumbnails(), np.uint8)).max() <= 1


SMALL = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 64}
KINDS = {
    "post-learned-gqa": {
        "tie": "all",
        "encoder": SMALL | {"layers": 2, "heads": 4, "key_heads": 2, "position": "learned"},
        "decoder": SMALL | {"heads": 4, "key_heads": 1, "activation": "swish"},
    },
    "pre-rms-swiglu": {
        "tie": "none", "output_bias": True, "scale_embeddings": False,
        "encoder": SMALL | {"norm": "pre", "norm_kind": "rms", "activation": "swiglu", "position": "none"},
        "decoder": SMALL | {"norm": "none", "activation": "gelu-tanh"},
    },
    "lstm-mean": {
        "encoder": {"kind": "recurrent", "cell": "lstm", "layers": 2, "width": 64},
        "decoder": {"kind": "bahdanau", "cell": "lstm", "layers": 2, "width": 64, "initial_state": "mean"},
    },
    "rnn-copy": {
        "encoder": {"kind": "recurrent", "cell": "rnn", "bidirectional": False, "width": 80},
        "decoder": BAHDANAU | {"cell": "rnn", "width": 80, "initial_state": "copy", "attention_width": 24},
    },
    "transformer-to-gru": {
        "encoder": SMALL,
        "decoder": BAHDANAU | {"initial_state": "final"},
    },
}  # fmt: skip


QUICK = ("post-learned-gqa", "lstm-mean")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_every_kind_of_network_gives_the_probabilities_and_weights_of_pytorch(tab, tmp_path, kind):
    tokenizer = Tokenizer.train(LINES, "byte-bpe", 280, languages=["de", "fr"])
    config = AutoregressiveOptions.model_validate({"dim": 64, "dropout": 0.0} | KINDS[kind]).model_dump()
    torch.manual_seed(3)
    folders.save(tmp_path / "model", build(config, 280, 280).eval(), config, tokenizer, tokenizer, {})
    write_site(tmp_path / "site", folders.load(tmp_path / "model"), "random")
    target = (*tokenizer.encode("Où est — 12"), EOS)
    # The output is given, so that it does not depend on ties.
    result = run_in_page(tab, tmp_path / "site", text=LINES[1], to="fr", prefix=target)
    model = ExploredModel(folders.load(tmp_path / "site" / "model"), "random")
    run = model.run(Job(LINES[1], "fr", prefix=target))
    assert result["sides"] == json.loads(json.dumps(run.describe("")))["sides"]
    assert np.allclose(result["output"]["tokenLogP"], run.output["tokenLogP"], atol=1e-4)
    assert difference(result, run) < 1e-5


CHANGES = {
    "transformer": [
        {"map": "encoder.layers.0.attention.self", "change": "uniform", "head": 1},
        {"map": "decoder.layers.0.attention.self", "change": "pin", "key": 1},
        {"map": "decoder.layers.0.cross", "change": "zero"},
        {"map": "decoder.layers.1.cross", "change": "weights", "row": 2, "weights": [0, 0.25, 0, 0.75]},
    ],
    "bahdanau": [{"map": "decoder.attention.cross", "change": "uniform"}],
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_attention_gives_the_comparison_and_leave_one_out_of_python(tab, sites, name):
    with toy.files_served(sites[name]) as address:
        tab.goto(f"{address}mechanism.html")
        result = tab.evaluate(
            """async ([address, text, changes]) => {
              const api = await import(`${address}api.js`);
              await api.describeModel();
              const base = await api.run({ text }), run = await api.runAgainst(base, { text, changes });
              const counts = await api.leaveOneOut(base, 2);
              const other = await api.runAgainst(base, { text: "a small man" });
              return { run, counts, other, last: [...await api.head(run, run.maps.length - 1, 0)] };
            }""",
            [address, TEXT, CHANGES[name]],
        )
    model = ExploredModel(folders.load(sites[name] / "model"), "toy")
    base = model.run(Job(TEXT))
    edits = as_edits(
        tuple(AttentionChange.model_validate_json(json.dumps(change)) for change in CHANGES[name])
    )
    run = model.run(Job(TEXT, edits=edits, base=base))
    assert result["run"]["output"]["text"] == run.output["text"] != base.output["text"]
    ours, expected = result["run"]["output"]["comparison"], run.output["comparison"]
    for which in ("original", "changed"):
        assert np.allclose(
            [ours[which]["plain"], ours[which]["edited"]],
            [expected[which]["plain"], expected[which]["edited"]],
            atol=1e-3,
        )
    assert np.allclose(result["last"], list(run.maps.values())[-1][0].ravel(), atol=1e-5)
    other = model.run(Job("a small man", base=base)).output["comparison"]
    assert (
        abs(result["other"]["output"]["comparison"]["original"]["plain"] - other["original"]["plain"]) < 1e-2
    )
    counts = model.trust(base, 2, None, lambda: False)["scores"]["leave_one_out"]
    assert np.allclose(result["counts"]["scores"], counts, atol=1e-4)


def test_a_cell_that_is_dragged_changes_the_translation_live_also_offline(tab, sites):
    with toy.files_served(sites["bahdanau"]) as address:
        tab.goto(f"{address}?view=whatif&text={TEXT.replace(' ', '+')}")
        until(tab, "document.querySelector('.matrix canvas')?.dataset.cell > 0")
        tab.wait_for_load_state("networkidle")
    # The server is gone, and the browser requests the icon at every change of the address.
    tab.expected.append("icon.svg")
    canvas = tab.locator(".matrix canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    cell, left, top = (float(canvas.get_attribute(f"data-{name}")) for name in ("cell", "left", "top"))
    x = box["x"] + left + 0.5 * cell
    y = box["y"] + top + 2.5 * cell  # the third row: part of "roter" or "hund"
    tab.mouse.move(x, y)
    tab.mouse.down()
    for step in range(1, 5):
        tab.mouse.move(x, y - 50 * step)
    tab.mouse.up()
    tab.wait_for_selector("#leave-one-out")
    until(tab, "document.querySelector('.list li').textContent.includes('the 1.00')")
    until(tab, "!document.querySelector('[aria-busy]')")
    before, after = tab.locator(".pair .answer").all_inner_texts()
    assert before == "der roter hund sieht ein hausboot" != after
    assert tab.locator("table td.num").count() == 4
    tab.get_by_role("button", name="Remove").click()
    assert tab.locator(".pair .answer").count() == 0
    type_text(tab, "a small man")
    assert tab.inner_text("#output .answer") == "ein kleiner mann"
    canvas.focus()
    tab.keyboard.press("Shift+ArrowUp")  # ignored if the weights are not there yet
    until(tab, "document.querySelector('.matrix canvas')?.dataset.cell > 0")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Shift+ArrowUp")
    tab.wait_for_selector("#leave-one-out")
    assert tab.locator(".list li").count() == 1


def test_hostile_texts_are_shown_as_text_and_errors_are_one_sentence(tab, sites):
    with toy.files_served(sites["transformer"]) as address:
        tab.goto(address)
        until(tab, "document.querySelector('.lines button.word')")
        for text in ("<img src=x onerror=alert(1)> dog", "😀 كلب red", "\u202e dog"):
            type_text(tab, text)
            assert tab.locator("#error").is_hidden() and tab.locator("#view img").count() == 0
        type_text(tab, "dog " * 600)
        message = tab.inner_text("#error")
        assert message == "The text has 2,400 characters, and the explorer takes at most 2,000; shorten it."
        type_text(tab, "a " * 513)
        message = tab.inner_text("#error")
        assert message == "The text has 513 tokens, and the explorer takes at most 512; shorten it."


def test_a_site_with_a_missing_file_says_so_and_keeps_the_mechanism(tab, sites, tmp_path):
    shutil.copytree(sites["transformer"], tmp_path / "site")
    (tmp_path / "site" / "model" / "model.safetensors").unlink()
    tab.expected.append("404")
    with toy.files_served(tmp_path / "site") as address:
        tab.goto(address)
        until(tab, "!document.getElementById('error').hidden")
        assert tab.inner_text("#error").startswith(
            "The file model/model.safetensors is missing; write the folder"
        )
        until(tab, "document.getElementById('view').dataset.view === 'mechanism'")


UNUSUAL_TEXTS = [
    "", " ", "a", "  two  spaces ", "don't stop", "ß İstanbul ΣΑΣ", "naïve café",
    "日本語のテキスト 12", "tabs\tand\nlines\u0085", "😀👍🏽 ok", "a\u0301 \ufeffb", "Wo ist mein Buch?",
    "12.5 % — (x)", ">>de<< Wo", "\u00a0x", "a\x1cb\u2009\r", "x" * 60,
]  # fmt: skip


def test_the_tokenizer_gives_the_ids_words_and_texts_of_python(tab, sites):
    kinds = [(kind, low) for kind in ("bpe", "byte-bpe", "word", "character") for low in (False, True)]
    trained = [Tokenizer.train(LINES * 2, kind, 300, lowercase=low, languages=["de"]) for kind, low in kinds]
    with toy.files_served(sites["transformer"]) as address:
        tab.goto(f"{address}mechanism.html")
        results = tab.evaluate(
            """async ([address, files, texts]) => {
              const { Tokenizer } = await import(`${address}tokenizer.js`);
              const all = files.map((file) => new Tokenizer(JSON.parse(file)));
              return all.map((tokenizer) => texts.map((text) => {
                const { ids, spans } = tokenizer.encode(text);
                const read = tokenizer.sideOfText(text, ids, spans), written = tokenizer.sideOfTokens(ids);
                return [ids, tokenizer.decode(ids), tokenizer.tokens(ids), read.words, written.words];
              }));
            }""",
            [address, [tokenizer.text for tokenizer in trained], UNUSUAL_TEXTS],
        )
    for kind, tokenizer, result in zip(kinds, trained, results, strict=True):
        for text, (ids, decoded, tokens, read, written) in zip(UNUSUAL_TEXTS, result, strict=True):
            expected_ids = tokenizer.encode(text)
            names = tokenizer.tokens(expected_ids)
            assert (ids, decoded, tokens) == (expected_ids, tokenizer.decode(expected_ids), names), (
                kind,
                text,
            )
            assert read == Side.of(names, Words.of_text(tokenizer, text)).words, (kind, text)
            assert written == Side.of(names, Words.of_tokens(tokenizer, expected_ids)).words, (kind, text)


def test_the_language_of_a_text_chooses_the_target_of_a_multilingual_model(tab, tmp_path):
    tokenizer = Tokenizer.train(LINES, "bpe", 120, languages=["de", "en", "fr"])
    config = AutoregressiveOptions.model_validate(
        {"dim": 8, "encoder": RECURRENT, "decoder": BAHDANAU}
    ).model_dump()
    folders.save(
        tmp_path / "model",
        build(config, len(tokenizer), len(tokenizer)).eval(),
        config,
        tokenizer,
        tokenizer,
        {},
    )
    write_site(tmp_path / "site", folders.load(tmp_path / "model"), "two")
    first = [
        run_in_page(tab, tmp_path / "site", text=text)["sides"]["source"]["tokens"][0] for text in LINES[:2]
    ]
    assert first == [">>en<<", ">>de<<"]


def test_the_documentation_includes_the_explorer_with_the_default_translator(sites, monkeypatch):
    monkeypatch.setenv("REGARD_MODEL", str(sites["bahdanau"] / "model"))
    hook = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "api" / "explorer_pages.py"))
    names = {path.name for path in hook["explorer_site"]().rglob("*")}
    assert {"index.html", "api.js", "worker.js", "model.safetensors", "description.json"} <= names


def test_the_page_and_the_engine_are_small():
    sizes = {name: len(content) for name, content in site_files().items()}
    engine = ("tokenizer.js", "tensors.js", "network.js", "translator.js")
    assert sum(sizes[name] for name in engine) <= 25_000
    assert sum(sizes.values()) <= 155_000


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"encoder": {"kind": "convolutional"}}, "its encoder is of kind convolutional"),
        ({"decoder": toy.DECODER | {"position": "alibi"}}, "its decoder has position: alibi"),
    ],
)
def test_a_translator_that_the_engine_cannot_run_is_refused_in_one_sentence(tmp_path, options, reason):
    toy.translator(tmp_path / "model", steps=1, **options)
    command = ["explore", "--static", str(tmp_path / "site"), str(tmp_path / "model")]
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, OptionError)
    assert str(error).startswith(f"toy cannot run without a server: {reason}")
    assert not (tmp_path / "site").exists()


def test_a_model_that_is_not_a_translator_is_refused(tmp_path):
    with pytest.raises(
        OptionError, match="the engine of the page runs translators, and this is an? embedder"
    ):
        write_site(tmp_path / "site", embedder(), "vectors")
