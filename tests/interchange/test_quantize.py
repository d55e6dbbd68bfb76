"""`quantize_folder`, and the command in cli/quantize.py."""

import json

import pytest
from typer.testing import CliRunner

import regard
from regard.cli.main import app
from regard.errors import FolderError, OptionError
from regard.files.checksums import CHECKSUMS
from regard.interchange.quantize import quantize_folder
from regard.models.folder import load
from tests.decoding import model_folders
from tests.models.multilingual import TRANSFORMER, multilingual

LAYER = TRANSFORMER | {"inner": 512, "heads": 1}


def test_a_quantized_folder_is_a_model_folder_with_checksums(tmp_path):
    source = multilingual(tmp_path / "model", layer=LAYER)
    result = quantize_folder(source, tmp_path / "small")
    model = load(tmp_path / "small")
    assert model.stored_precision == "int8"
    assert result.parameters == sum(p.numel() for p in model.parameters())
    assert 8 < result.bits < 16 and 0 < result.error < 0.02
    assert result.bytes == sum(path.stat().st_size for path in (tmp_path / "small").iterdir())
    assert regard.translate("Tom", tmp_path / "small", to="de") == regard.translate("Tom", model, to="de")
    assert model.card["quantized"]["precision"] == "int8"
    assert model.card["recipe"] == load(source).card["recipe"]
    checksums = json.loads((tmp_path / "small" / CHECKSUMS).read_text())
    assert {"model.safetensors", "config.json", "tokenizer.json", "card.json"} <= set(checksums)
    with (tmp_path / "small" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(FolderError, match="model.safetensors is damaged: its SHA-256"):
        load(tmp_path / "small")


def test_a_published_card_names_no_folder_of_this_machine(tmp_path):
    source = multilingual(tmp_path / "model", layer=LAYER)
    card = {
        "command": "regard train x 'data={train: [/home/ada/a.tsv, b/c.tsv]}' lr=1/2 --folder=/var/runs/x",
        "recipe": {"data": {"train": ["/home/ada/a.tsv"], "max_length": 40}},
        "about": "de/en, see https://example.org/a/b",
    }
    (source / "card.json").write_text(json.dumps(card))
    quantize_folder(source, tmp_path / "plain")
    quantize_folder(source, tmp_path / "published", publish=True)
    plain, published = (load(tmp_path / name).card for name in ("plain", "published"))
    assert plain["recipe"] == card["recipe"]
    assert published["recipe"] == {"data": {"train": ["a.tsv"], "max_length": 40}}
    assert published["command"] == "regard train x 'data={train: [a.tsv, b/c.tsv]}' lr=1/2 --folder=x"
    assert published["about"] == card["about"]


def test_an_existing_folder_and_a_model_in_int8_are_refused(tmp_path):
    source = multilingual(tmp_path / "model", layer=LAYER, precision="int8")
    with pytest.raises(OptionError, match="is stored in int8 already"):
        quantize_folder(source, tmp_path / "again")
    with pytest.raises(OptionError, match="already exists; give another folder, or --overwrite"):
        quantize_folder(source, tmp_path)
    with pytest.raises(OptionError, match="is the model itself; give another folder"):
        quantize_folder(source, source, overwrite=True)


def test_the_command_reports_size_and_time(tmp_path):
    source = model_folders.classifier(tmp_path / "model")
    result = CliRunner().invoke(app, ["quantize", str(source), "-o", str(tmp_path / "small")])
    assert result.exit_code == 0, result.output
    assert "weights in" in result.output and "bits each" in result.output and "loads in" in result.output
    assert regard.classify("good", tmp_path / "small") == regard.classify("good", source)
