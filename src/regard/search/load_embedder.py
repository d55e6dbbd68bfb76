"""Load the model that embeds documents and queries."""

from __future__ import annotations

from regard.models.catalog import find_model
from regard.models.embedder import Embedder


def load_embedder(name: str, device: str = "cpu", precision: str = "float32") -> Embedder:
    """`Embedder.load`."""
    return Embedder.load(name, device, precision)


def stored_name(name: str) -> str:
    """Return how an index stores the name of its model: a folder by its full path."""
    return name if name == "minilm" else str(find_model(name).resolve())
