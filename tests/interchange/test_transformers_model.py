"""Tests of transformers_model.py: weights that do not belong to config.json are refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.errors import FolderError
from regard.interchange.transformers_model import load_transformers

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    config = transformers.GPT2Config(vocab_size=9, n_positions=4, n_embd=4, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    return tmp_path


def change_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})


NAME = "transformer.h.0.mlp.c_fc.bias"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda weights: weights.pop(NAME), f"lack {NAME}"),
        (lambda weights: weights.update({NAME: torch.ones(3)}), rf"have {NAME} of shape \(3,\) instead of"),
        (lambda weights: weights.update({NAME.replace("0", "1"): torch.ones(3)}), "have an additional .*h.1"),
        (lambda weights: weights[NAME].fill_(torch.nan), f"the weight {NAME} in .* has NaN or infinite"),
    ],
)
def test_other_weights_are_refused(folder, change, reason):
    change_weights(folder, change)
    with pytest.raises(FolderError, match=reason):
        load_transformers(transformers.GPT2LMHeadModel, folder)


def test_masks_in_old_files_are_ignored(folder):
    masks = {"transformer.h.0.attn.bias": torch.ones(4, 4), "transformer.h.0.attn.masked_bias": torch.ones(1)}
    before = load_transformers(transformers.GPT2LMHeadModel, folder).state_dict()
    change_weights(folder, lambda weights: weights.update(masks))
    after = load_transformers(transformers.GPT2LMHeadModel, folder).state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_a_truncated_file_and_a_wrong_config_are_refused(folder):
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_head": 3}))
    with pytest.raises(FolderError, match="transformers cannot load .* as GPT2LMHeadModel .*num_heads"):
        load_transformers(transformers.GPT2LMHeadModel, folder)
    (folder / "config.json").write_text(json.dumps(config))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(FolderError, match="transformers cannot load .* so copy it again"):
        load_transformers(transformers.GPT2LMHeadModel, folder)
