"""Tests of export.py and import_.py."""

import pytest
import typer
from typer.testing import CliRunner

from regard.cli import export, import_
from regard.errors import FolderError, OptionError
from regard.interchange.export import compare
from regard.models import folder
from tests.interchange.small_models import LAYER, make

pytest.importorskip("ctranslate2")
app = typer.Typer(pretty_exceptions_enable=False)
app.command("export")(export.command)
app.command("import")(import_.command)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    result = make(LAYER, LAYER)
    folder.save(place, result, result.config, result.source_tokenizer, result.target_tokenizer, {})
    return place


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch):
    monkeypatch.setattr(compare, "SENTENCES", 4)


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_an_export_prints_the_comparison_and_its_folder(model, tmp_path):
    done = run("export", model, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert done.exit_code == 0
    assert "4 of 4 sample sentences with identical tokens" in done.output and "README.md" in done.output
    assert {"model.bin", "tokenizer.json", "README.md"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }


def test_a_folder_is_replaced_only_with_overwrite_and_only_if_regard_wrote_it(model, tmp_path):
    run("export", model, "--to", "ctranslate2", "-o", tmp_path / "out")
    again = run("export", model, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert isinstance(again.exception, OptionError) and "--overwrite" in str(again.exception)
    options = "--to ctranslate2 --overwrite --quantization int8".split()
    done = run("export", model, *options, "-o", tmp_path / "out")
    assert done.exit_code == 0 and "weights quantized to int8" in done.output
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    refused = run("export", model, "--to", "ctranslate2", "-o", tmp_path / "mine", "--overwrite")
    assert isinstance(refused.exception, OptionError) and "was not written by regard" in str(
        refused.exception
    )
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_an_export_that_is_not_equal_ends_with_1_and_leaves_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "MAX_DIFFERENCE", 0.0)  # no difference is small enough
    done = run("export", model, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert done.exit_code == 1 and "does not give regard's outputs" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_round_trip_through_hugging_face(model, tmp_path):
    pytest.importorskip("transformers")
    assert run("export", model, "--to", "huggingface", "-o", tmp_path / "hf").exit_code == 0
    done = run("import", tmp_path / "hf", "-o", tmp_path / "back")
    assert done.exit_code == 0 and "4 of 4" in done.output
    assert folder.load(tmp_path / "back").target_tokenizer == folder.load(model).target_tokenizer


def test_wrong_arguments_of_export_are_errors_of_one_sentence(model, tmp_path):
    for args, kind, output in [
        (("export", model, "--to", "tflite", "-o", tmp_path / "x"), OptionError, "'tflite'"),
        (
            ("export", model, "--to", "onnx", "--quantization", "int8", "-o", tmp_path / "x"),
            OptionError,
            "ONNX takes --quantization float32",
        ),
        (
            ("export", tmp_path / "none", "--to", "onnx", "-o", tmp_path / "x"),
            FolderError,
            "there is no folder",
        ),
        (("import", model, "-o", tmp_path / "x"), FolderError, "model_type null"),
    ]:
        done = run(*args)
        assert isinstance(done.exception, kind) and output in str(done.exception), done
