"""Load the model that embeds documents and queries."""

from __future__ import annotations

from typing import Any

from regard.errors import FolderError
from regard.models import bert
from regard.models.catalog import find_model
from regard.models.embedder import Embedder
from regard.models.folder import load, read_json


def load_embedder(name: str, device: str = "cpu") -> Embedder:
    """Load `minilm`, a folder with a BERT-like sentence encoder, or a model folder of regard."""
    folder = find_model(name)
    if name == "minilm":
        embedder: Any = bert.minilm()
    elif not folder.is_dir():
        raise FolderError(
            f"there is no model {name}; give minilm, or the folder of a model, such as runs/NAME"
        )
    elif (folder / "config.json").is_file() and read_json(folder / "config.json").get("model_type") == "bert":
        embedder = bert.read(folder)
    else:
        embedder = Embedder.of(load(folder))
    return embedder.to(device).eval()


def stored_name(name: str) -> str:
    """Return how an index stores the name of its model: a folder by its full path."""
    return name if name == "minilm" else str(find_model(name).resolve())
