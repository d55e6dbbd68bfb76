"""Tests of demo_bundled.py: the demo uses the models that are there; test_main.py tests what it trains."""

import pytest
from typer.testing import CliRunner

from regard.cli import demo
from regard.cli.demo_bundled import bundled
from regard.cli.main import app
from regard.models import catalog
from regard.models.default import default_model
from tests.decoding import model_folders
from tests.models.multilingual import CARD, catalogued

HEADER = "---\nabout: x\ntask: {}\nlanguages: [en]\nlicense: CC0\n---\n"


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_MODELS", str(tmp_path))
    monkeypatch.setattr(catalog, "BUNDLED", tmp_path / "nothing")
    return tmp_path


def test_every_bundled_model_is_shown_and_nothing_is_trained(models, monkeypatch):
    monkeypatch.setattr(demo, "_train", None)
    catalogued(models)
    for task, write in (
        ("classify", model_folders.classifier),
        ("tag", model_folders.tagger),
        ("generate", model_folders.language_model),
    ):
        write(models / task)
        (models / task / "card.md").write_text(HEADER.format(task))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    for line in (
        "1. Translate, and show what each word attends to (tiny)",
        "Where is the station? → ",
        "Cats do not like dogs. → ",
        "2. Classify (classify)",
        "3. Tag names (tag)",
        "4. Continue a text (generate)",
        "5. One operator",
        "output (4, 8, 512, 64)",
        "regard train translator pairs.tsv",
    ):
        assert line in result.output
    assert any(shade in result.output for shade in "░▒▓█")
    assert result.stdout.splitlines()[-1].startswith("regard explore ")


@pytest.mark.parametrize("arguments", [["attention"], ["--steps", "7"]])
def test_a_word_and_steps_without_train_are_an_error(arguments, run_regard):
    code, out, err = run_regard("demo", *arguments)
    assert (code, out) == (2, "") and "add --train" in err


@pytest.mark.parametrize("arguments", [["--train"], []])
def test_without_a_bundled_translator_or_with_train_it_trains(models, monkeypatch, arguments):
    trained = []
    monkeypatch.setattr(demo, "_train", lambda steps, console: trained.append(steps))
    monkeypatch.setattr(demo, "_show_attention", lambda *given: None)
    if arguments:
        catalogued(models)
    result = CliRunner().invoke(app, ["demo", "--no-translator", "--steps", "7", *arguments])
    assert result.exit_code == 0 and trained == [7], result.output
    assert "\nregard explore " in result.output


def test_other_bundled_models_are_shown_before_a_translator_is_trained(models, monkeypatch):
    trained = []
    monkeypatch.setattr(demo, "_translate", trained.append)
    model_folders.classifier(models / "classify")
    (models / "classify" / "card.md").write_text(HEADER.format("classify"))
    output = CliRunner().invoke(app, ["demo"]).output
    assert output.index("1. Classify") < output.index("4. Translate: no translator is bundled yet")
    assert len(trained) == 1


def test_the_demo_uses_the_default_translator(models, monkeypatch):
    monkeypatch.delenv("REGARD_MODEL", raising=False)
    other = CARD.replace("a tiny translator", "another").replace("default: true\n", "")
    catalogued(models, "a", other)
    catalogued(models, "b", CARD)
    catalogued(models, "c", CARD)
    assert bundled()["translate"].folder == default_model("translate") == models / "b"
