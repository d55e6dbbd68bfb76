"""`regard models`, and names in place of folders on the command line."""

import json

import pytest
from typer.testing import CliRunner

from regard.cli.main import app
from regard.errors import OptionError
from regard.models import catalog
from tests.models.multilingual import catalogued


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    catalogued(tmp_path / "models")
    monkeypatch.setenv("REGARD_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("REGARD_MODEL", raising=False)
    monkeypatch.setattr(catalog, "BUNDLED", tmp_path / "nothing")
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capfd.readouterr()
        result = CliRunner().invoke(app, arguments)
        if isinstance(result.exception, Exception):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout + capfd.readouterr().out  # jobs write to the file descriptor

    return call


def test_models_are_listed_with_size_license_and_scores(run):
    output = run("models")
    assert "tiny (translate, the default): a tiny translator" in output
    assert (
        "de, en, fr (into de, en, fr) · 0." in output and "CC0" in output and "BLEU of nothing: 0.1" in output
    )
    (record,) = json.loads(run("models", "--json"))
    assert record["name"] == "tiny" and record["bytes"] > 1000 and record["default"] is True


def test_a_card_and_a_folder_are_printed(run, tmp_path):
    assert "# Tiny\nNothing to see." in run("models", "tiny")
    assert run("models", "tiny", "--path").strip() == str(tmp_path / "models" / "tiny")
    assert json.loads(run("models", "tiny", "--json"))["task"] == "translate"
    with pytest.raises(OptionError, match="there is no model named 'big'; known are tiny"):
        run("models", "big")
    with pytest.raises(OptionError, match="--path prints the folder of one model"):
        run("models", "--path")


def test_the_list_says_if_no_model_is_bundled(run, monkeypatch):
    monkeypatch.delenv("REGARD_MODELS")
    assert "no model is bundled yet" in run("models")


def test_a_sentence_is_translated_by_the_default_or_by_name(run, tmp_path):
    translation = run("translate", "Tom is here.", "--to", "de")
    assert translation == run("translate", "Tom is here.", "--to", "de", "--model", "tiny") != "\n"
    run("translate", "Tom is here.", "--to", "de", "--model", "tiny", "-o", "out.txt")
    assert (tmp_path / "out.txt").read_text() == translation
    links = run("align", "Tom is here .", "Tom ist hier .")
    assert links == run("align", "Tom is here .", "Tom ist hier .", "--to", "de")
    with pytest.raises(OptionError, match="of 'Tom is here.' is missing: .* into de, en, fr; name one"):
        run("translate", "Tom is here.")
    run("quantize", "tiny", "-o", "small")
    assert (tmp_path / "small" / "config.json").is_file()
