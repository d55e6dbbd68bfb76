"""Folders whose weights are a pickle, pytorch_model.bin: read as tensors only, never executed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import FolderError, RegardError

SAFE = ("model.safetensors", "model.safetensors.index.json")


@contextmanager
def with_safetensors(folder: Path) -> Iterator[Path]:
    """Yield the folder itself; for one with pytorch_model*.bin, a temporary copy with model.safetensors.

    It is read by torch's weights-only unpickler, which creates tensors and plain containers only.
    """
    if any((folder / name).is_file() for name in SAFE):
        yield folder
        return
    pickled = sorted(folder.glob("pytorch_model*.bin"))  # several: each has some of the weights
    if not pickled:
        raise FolderError(
            f"{folder} has no model.safetensors and no pytorch_model.bin; the folder is incomplete, so copy "
            "it again"
        )
    weights = {name: x for path in pickled for name, x in _read(path).items()}
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / folder.resolve().name
        shutil.copytree(
            folder, copy, ignore=shutil.ignore_patterns("*.bin", "*.h5", "*.ot", "*.msgpack", ".git")
        )
        # Tensors that share memory, as tied embeddings do, cannot be stored together.
        save_file(
            {name: x.clone().contiguous() for name, x in weights.items()}, copy / SAFE[0], {"format": "pt"}
        )
        try:
            yield copy
        except RegardError as error:
            raise type(error)(str(error).replace(str(copy), str(folder))) from None


def _read(path: Path) -> dict[str, Tensor]:
    try:
        weights: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise FolderError(
            f"{path} is not a file of tensors only ({reason}), and anything else in a pickle could run code; "
            "convert it to model.safetensors where you trust it, with save_pretrained"
        ) from None
    tensors = isinstance(weights, dict) and all(isinstance(x, Tensor) for x in weights.values())
    if not tensors or not weights:
        raise FolderError(f"{path} holds no table of named tensors; copy the folder again")
    return weights
