"""Inputs of the workers, in one folder: weights in each system's format, tokens, sentences as token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode_peers.joey_weights import joey_state
from benchmarks.decode_peers.systems import CT2, HF, JOEY, PRECISIONS
from benchmarks.decode_peers.texts import Text
from benchmarks.peers.environments import Environment, own_environment, peer_environment
from benchmarks.peers.process import log
from regard.data.tokenizer import BOS, EOS, PAD, UNK
from regard.errors import RegardError
from regard.interchange.export.export_model import FORMATS, export_model
from regard.interchange.export.tokenizer_files import vocabulary_list


def write_inputs(model: Any, model_folder: Path, texts: list[Text], folder: Path) -> None:
    """Write inputs.json, which the workers of all systems read; `prepare_system` writes the weights."""
    content = {
        "model": str(model_folder.resolve()),
        "config": model.config,
        "source_pieces": vocabulary_list(model.source_tokenizer),
        "target_pieces": vocabulary_list(model.target_tokenizer),
        "specials": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
        "texts": {text.name: text.sources for text in texts},
    }
    (folder / "inputs.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def prepare_system(model: Any, system: str, folder: Path) -> Environment:
    """Export the weights for a system and return its environment, or the reason why it cannot take part."""
    log(f"weights for {system}")
    try:
        return _export(model, system, folder)
    except RegardError as error:
        return Environment(None, str(error))


def _export(model: Any, system: str, folder: Path) -> Environment:
    if system == CT2:
        for precision in PRECISIONS[CT2]:
            target = folder / f"ctranslate2-{precision}"
            log(f"  {precision}: {export_model(model, target, FORMATS['ctranslate2'](precision))}")
    elif system == HF:
        log(f"  {export_model(model, folder / 'huggingface', 'huggingface')}")
    elif system == JOEY:
        _check_joey(model.config)
        torch.save(joey_state(model), folder / "joey.pt")
        return peer_environment("joeynmt")
    return own_environment()


def _check_joey(config: dict[str, Any]) -> None:
    """Raise a RegardError if Joey NMT has no such model."""
    expected = {
        "kind": "transformer",
        "position": "sinusoidal",
        "norm_kind": "layer",
        "key_heads": None,
        "mask": None,
    }
    for side in ("encoder", "decoder"):
        for key, value in expected.items():
            if config[side][key] not in (value, config[side]["heads"] if key == "key_heads" else value):
                raise RegardError(f"it cannot express this model: its {side} has {key} {config[side][key]}")
    if config.get("output_bias"):
        raise RegardError("it cannot express this model: its output has a bias")
