"""Load a folder as a model of transformers, and refuse one whose weights are not those of its config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import FolderError


def load_transformers(model_class: Any, folder: Path) -> Any:
    """Return the model in float32.

    FolderError if transformers cannot load it, if its weights are missing, too many, of another shape, or
    NaN or infinite.
    """
    try:
        loaded: Any = model_class.from_pretrained(
            str(folder),
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # of many types
        raise FolderError(
            f"transformers cannot load {folder} as {model_class.__name__} ({reason(error)}); it is damaged "
            "or of a kind that transformers does not read, so copy it again or import another model"
        ) from None
    model, report = loaded
    _check_names(folder, report)
    for name, x in model.state_dict().items():
        check_finite(folder, name, x)
    return model.eval()


def _check_names(folder: Path, report: dict[str, Any]) -> None:
    """Raise FolderError for weights that are missing, too many or of another shape."""
    mismatched = [
        f"{name} of shape {tuple(found)} instead of {tuple(expected)}"
        for name, found, expected in report["mismatched_keys"]
    ]
    additional = [name for name in report["unexpected_keys"] if _is_weight_of_layer(name)]
    for problem, names in (
        ("have", mismatched),
        ("lack", report["missing_keys"]),
        ("have an additional", additional),
    ):
        if names:
            raise FolderError(
                f"the weights in {folder} {problem} {min(names)}, so they do not belong to its config.json; "
                "copy the folder again"
            )


def _is_weight_of_layer(name: str) -> bool:
    """False for other tensors in old files, such as masks (attn.bias, attn.masked_bias of GPT-2)."""
    in_layer = ".layers." in name or ".h." in name or "norm" in name
    return in_layer and name.endswith((".weight", ".bias")) and not name.endswith("attn.bias")


def check_finite(folder: Path, name: str, x: Tensor) -> None:
    """Raise FolderError for a weight with NaN or infinite values."""
    if x.is_floating_point() and not x.isfinite().all():
        raise FolderError(f"the weight {name} in {folder} has NaN or infinite values; copy the folder again")


def reason(error: Exception) -> str:
    """Return the beginning of an error's message on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
