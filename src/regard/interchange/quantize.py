"""Quantize a model folder: the same model with its matrices stored in int8."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.errors import OptionError
from regard.files.atomic import write_folder
from regard.files.checksums import file_sha256
from regard.interchange.export.export_model import check_free
from regard.models import folder as model_folder

WEIGHTS = "model.safetensors"
FOLDERS = re.compile(r"(?<![^\s='\"\[,])/(?:[^/\s'\",\]]+/)+")  # of an absolute path, also inside a command


@dataclass(frozen=True)
class Quantized:
    """What quantizing did to a model.

    Attributes:
        parameters: number of weights.
        bytes: size of the new folder.
        bits: per weight, of the file of weights.
        error: ‖restored − weight‖ / ‖weight‖ over all weights.
        load_seconds: time to load the new folder.
    """

    parameters: int
    bytes: int
    bits: float
    error: float
    load_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} weights in {self.bytes / 2**20:.2f} MiB, {self.bits:.2f} bits each; "
            f"relative error {self.error:.2%}; loads in {self.load_seconds:.2f} s"
        )


def quantize_folder(
    source: str | Path, folder: str | Path, *, overwrite: bool = False, publish: bool = False
) -> Quantized:
    """Write the model of `source` to `folder` with matrices and embeddings in int8, a quarter of the bytes.

        quantize_folder("runs/small", "small-int8")

    `regard.load` restores the weights; `regard.fast` computes with the stored integers. With `publish`, files
    in card.json are named without their folders on this machine.
    """
    source, folder = model_folder.model_in(Path(source)), Path(folder)
    if folder.resolve() == source.resolve():
        raise OptionError(f"{folder} is the model itself; give another folder, so that it is kept")
    check_free(folder, overwrite)
    model = model_folder.load(source)
    if model.stored_precision == "int8":
        raise OptionError(f"{source} is stored in int8 already; copy it, or quantize the model it is from")
    card = model.card | {"quantized": {"precision": "int8", "from": file_sha256(source / WEIGHTS)}}
    card = _without_folders(card) if publish else card
    write_folder(
        folder,
        lambda place: model_folder.save(
            place, model, model.config, model.source_tokenizer, model.target_tokenizer, card, "int8"
        ),
    )
    start = time.perf_counter()
    restored = model_folder.load(folder)
    seconds = time.perf_counter() - start
    parameters = sum(p.numel() for p in model.parameters())
    return Quantized(
        parameters,
        sum(path.stat().st_size for path in folder.iterdir()),
        8 * (folder / WEIGHTS).stat().st_size / parameters,
        _relative_error(model, restored),
        seconds,
    )


def _without_folders(value: Any) -> Any:
    """The same JSON value with absolute paths shortened to the name of the file."""
    if isinstance(value, dict):
        return {key: _without_folders(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_folders(part) for part in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


@torch.no_grad()
def _relative_error(model: Any, restored: Any) -> float:
    pairs = zip(model.parameters(), restored.parameters(), strict=True)
    squares = [((b - a).double().square().sum(), a.double().square().sum()) for a, b in pairs]
    difference, norm = (float(sum(column)) for column in zip(*squares, strict=True))
    return (difference / norm) ** 0.5 if norm else 0.0
