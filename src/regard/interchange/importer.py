"""The registry of importers. An importer is one file in this folder, `import_NAME.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.interchange.export.compare import RuntimeComparison
from regard.registry import Registry


@dataclass(frozen=True)
class VectorComparison:
    """Result of comparing the embeddings of an imported model with those that transformers computes."""

    sentences: int
    max_difference: float

    def __str__(self) -> str:
        return f"vectors of {self.sentences} sample sentences differ by at most {self.max_difference:.1e}"


# Takes a Hugging Face folder; returns a model with config and tokenizers set, and the comparison of its
# outputs. Registered under the `model_type` of config.json. Raises UnequalError if the outputs differ.
Importer = Callable[[Path], tuple[Any, RuntimeComparison | VectorComparison]]
IMPORTERS: Registry[Importer] = Registry("model type")
