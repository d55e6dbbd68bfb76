"""Input of the workers, in one folder: weights in each system's format, tokens, sentences as token ids."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode_peers.joey_weights import joey_state
from benchmarks.decode_peers.systems import CT2, HF, JOEY, PRECISIONS
from benchmarks.decode_peers.texts import Text
from benchmarks.peers import environments
from benchmarks.peers.environments import Place
from benchmarks.peers.process import say
from regard.data.tokenizer import BOS, EOS, PAD, UNK
from regard.errors import RegardError
from regard.interchange.export.export import FORMATS, export
from regard.interchange.export.tokenizer_files import vocabulary_list


def write(model: Any, where: Path, texts: list[Text], folder: Path) -> None:
    """What all systems read; their own weights are written by `place`."""
    content = {
        "model": str(where.resolve()),
        "config": model.config,
        "source_pieces": vocabulary_list(model.source_tokenizer),
        "target_pieces": vocabulary_list(model.target_tokenizer),
        "specials": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
        "texts": {text.name: text.sources for text in texts},
    }
    (folder / "handout.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def place(model: Any, system: str, folder: Path) -> Place:
    """Where a system runs, with its weights written; or why it cannot."""
    say(f"weights for {system}")
    try:
        return _written(model, system, folder)
    except RegardError as trouble:
        return Place(None, str(trouble))


def _written(model: Any, system: str, folder: Path) -> Place:
    if system == CT2:
        for precision in PRECISIONS[CT2]:
            say(
                f"  {precision}: "
                f"{export(model, folder / f'ctranslate2-{precision}', FORMATS['ctranslate2'](precision))}"
            )
    elif system == HF:
        say(f"  {export(model, folder / 'huggingface', 'huggingface')}")
    elif system == JOEY:
        _joey_can(model.config)
        torch.save(joey_state(model), folder / "joey.pt")
        return environments.peer("joeynmt")
    return Place(sys.executable)


def _joey_can(config: dict[str, Any]) -> None:
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
