"""Load the model that embeds documents and queries."""

from __future__ import annotations

from typing import Any

import torch

from regard import arguments
from regard.errors import FolderError
from regard.models import bert
from regard.models.catalog import find_model
from regard.models.embedder import Embedder
from regard.models.folder import load

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_embedder(name: str, device: str = "cpu", precision: str = "float32") -> Embedder:
    """Load `minilm`, a folder with a BERT-like sentence encoder, or a model folder of regard.

    `precision` is that of weights and computation; `embed` returns float32 with any.
    """
    dtype = PRECISIONS[arguments.one_of("precision", precision, PRECISIONS)]
    folder = find_model(name)
    if (encoder := bert.encoder_folder(name if name == "minilm" else folder)) is not None:
        embedder: Any = bert.read(encoder)
    elif not folder.is_dir():
        raise FolderError(
            f"there is no model {name}; give minilm, or the folder of a model, such as runs/NAME"
        )
    else:
        embedder = Embedder.of(load(folder))
    return embedder.to(device, dtype).eval()


def stored_name(name: str) -> str:
    """Return how an index stores the name of its model: a folder by its full path."""
    return name if name == "minilm" else str(find_model(name).resolve())
