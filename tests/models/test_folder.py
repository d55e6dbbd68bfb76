"""Model folders: saving and loading, and errors for damaged folders."""

import json

import pytest
import torch

from regard.data.tokenizer import Tokenizer
from regard.errors import FolderError
from regard.models import folder as folders
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from tests.models.small import DECODERS, ENCODERS, LAYER

LINES = ["ein kleiner Hund läuft", "a small dog runs", "zwei Hunde laufen 🐕"]


def write(path, **section):
    tokenizer = Tokenizer.train(LINES, "character", 40)
    config = AutoregressiveOptions.model_validate({"dim": 32, **section}).model_dump()
    model = build(config, len(tokenizer) if config["encoder"] else None, len(tokenizer)).eval()
    folders.save(path, model, config, tokenizer if config["encoder"] else None, tokenizer, {"name": "small"})
    return model


SECTIONS = [
    {"encoder": {"kind": "transformer", **LAYER}, "decoder": {"kind": "transformer", **LAYER}},
    {"encoder": ENCODERS["gru"], "decoder": DECODERS["bahdanau"], "tie": "target"},
    {
        "encoder": {"kind": "recurrent", "bidirectional": False},
        "decoder": {"kind": "recurrent", "initial_state": "copy", "shared_recurrence": True},
        "tie": "none",
    },
    {"encoder": None, "decoder": {"kind": "transformer", **LAYER}},
]


@pytest.mark.parametrize("section", SECTIONS, ids=["transformer", "bahdanau", "shared", "language"])
def test_a_loaded_model_computes_the_same(tmp_path, section):
    model = write(tmp_path, **section)
    before = torch.random.get_rng_state()
    loaded = folders.load(tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())  # loading does not advance the global generator
    tokens = torch.tensor([loaded.target_tokenizer.encode("ein Hund")])
    inputs = (tokens, tokens) if section["encoder"] else (tokens,)
    weights = model.state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in loaded.state_dict().items())
    # Not torch.equal: the memory alignment of the weights may change rounding.
    torch.testing.assert_close(loaded(*inputs), model(*inputs))
    assert loaded.card == {"name": "small"}
    assert loaded.target_tokenizer.decode(tokens[0].tolist()) == "ein Hund"


def damage_truncated(path):
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def damage_version(path):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "format": 99}))


def set_decoder(key, value):
    def damage(path):
        config = json.loads((path / "config.json").read_text())
        config["model"]["decoder"][key] = value
        (path / "config.json").write_text(json.dumps(config))

    return damage


def damage_tokenizer(path):
    Tokenizer.train(["ab"], "character", 40).save(path / "tokenizer.json")


DAMAGES = [
    (damage_truncated, "truncated or damaged"),
    (damage_version, "format 99"),
    (set_decoder("inner", 32), "holds 'decoder.layers.0.feed"),
    (set_decoder("layers", 3), "lacks 'decoder.layers.1"),
    (damage_tokenizer, "belongs to another model"),
    (lambda path: (path / "config.json").write_text("{"), "damaged"),
    (lambda path: (path / "config.json").write_text("[]"), "damaged"),
    (lambda path: (path / "config.json").write_text("{}"), "has no 'format'"),
    (lambda path: (path / "config.json").unlink(), "no config.json"),
    (lambda path: (path / "model.safetensors").unlink(), "has no model.safetensors"),
    (lambda path: (path / "tokenizer.json").unlink(), "has no source.json"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[message for _, message in DAMAGES])
def test_a_damaged_folder_is_refused_in_one_sentence(tmp_path, damage, message):
    write(tmp_path, **SECTIONS[0])
    damage(tmp_path)
    with pytest.raises(FolderError, match=message) as error:
        folders.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FolderError, match="nowhere"):
        folders.load(tmp_path / "nowhere")


def test_a_run_that_ended_before_its_first_validation_is_named_as_such(tmp_path):
    (tmp_path / "recipe.yaml").write_text("task: translate\n", encoding="utf-8")
    with pytest.raises(FolderError, match="has no model yet, .* continue it with `regard resume "):
        folders.read_config(tmp_path)
