"""Average the weights of several checkpoints into one model (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import FolderError
from regard.files.atomic import write_folder
from regard.files.checksums import CHECKSUMS, verify_complete
from regard.models import folder as model_folder
from regard.training.run_folder import RunFolder
from regard.training.step_folders import step_folders


def average(
    folders: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    card: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Average model folders or checkpoints of one model into a new model folder.

    Args:
        folders: model folders or checkpoints; a single run folder means its best checkpoints.
        out: the new folder. A folder that is not empty is refused.
        card: entries to add to the model card of the first model.
        overwrite: replace a model folder that regard wrote; other files in it are kept.
    """
    paths = [Path(folder) for folder in folders]
    if len(paths) == 1 and RunFolder(paths[0]).exists():
        paths = step_folders(RunFolder(paths[0]).best)
        if not paths:
            raise FolderError(f"{folders[0]} has no best checkpoints yet; it has not been validated")
    if not paths:
        raise FolderError("there is nothing to average; give model folders or checkpoints")
    files = [_weights_file(path) for path in paths]
    target = Path(out)
    check_target(target, [file.parent for file, _ in files], overwrite)
    model = _load_model(paths)
    weights = mean_of_files(files)
    for name, p in model.named_parameters():
        p.data = weights[name]
    new_card = {**getattr(model, "card", {}), **(card or {}), "average_of": [str(path) for path in paths]}
    write_folder(target, lambda folder: save_model(folder, model, new_card))
    return target


def mean_of_files(files: Sequence[tuple[Path, str]]) -> dict[str, Tensor]:
    """Return the mean of every tensor over the files, summed in float64.

    Args:
        files: pairs of a safetensors file and the prefix of the weight names in it.
    """
    names: list[set[str]] = []
    try:
        for path, prefix in files:
            with safe_open(str(path), "pt") as stored:
                keys = list(stored.keys())
            names.append({key.removeprefix(prefix) for key in keys if key.startswith(prefix)})
        for (path, _), model_names in zip(files, names, strict=True):
            if unmatched := sorted(model_names ^ names[0]):
                raise FolderError(
                    f"{path} and {files[0][0]} do not have the same weights: only one has {unmatched[0]!r}; "
                    "give checkpoints of one model"
                )
        return {name: _mean(name, files) for name in sorted(names[0])}
    except (SafetensorError, OSError) as error:
        folder = files[len(names) - 1 if names else 0][0].parent
        raise FolderError(f"{folder} cannot be averaged ({error})") from None


def _mean(name: str, files: Sequence[tuple[Path, str]]) -> Tensor:
    total: Tensor | None = None
    dtype = torch.float32
    for path, prefix in files:
        with safe_open(str(path), "pt") as stored:
            x = stored.get_tensor(prefix + name)
        if total is not None and x.shape != total.shape:
            raise FolderError(
                f"{path} has {name!r} with shape {tuple(x.shape)}, the first with {tuple(total.shape)}; "
                "give checkpoints of one model"
            )
        dtype = x.dtype
        total = x.double() if total is None else total.add_(x)
    assert total is not None
    return total.div_(len(files)).to(dtype)


def check_target(target: Path, inputs: Sequence[Path], overwrite: bool) -> None:
    """Raise a FolderError if the output is, contains or is inside an input, or may not be replaced."""
    resolved = target.resolve()
    for folder in inputs:
        source = folder.resolve()
        if resolved == source or resolved in source.parents or source in resolved.parents:
            raise FolderError(f"-o {target} would change {folder}, which is averaged; give another folder")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise FolderError(f"{target} already exists; give another folder, or --overwrite")
    if not (target / CHECKSUMS).is_file() or not (target / "config.json").is_file():
        raise FolderError(
            f"{target} is not a model folder that regard wrote, so --overwrite does not replace it; "
            "give another folder"
        )


def save_model(folder: Path, model: Any, card: dict[str, Any]) -> None:
    """Save a model that has its tokenizers and config as a model folder."""
    model_folder.save(folder, model, model.config, model.source_tokenizer, model.target_tokenizer, card)


def _load_model(paths: Sequence[Path]) -> Any:
    """Load the first model; raise a FolderError if another one has a different config or tokenizer."""
    model = _load_float(paths[0])
    for path in paths[1:]:
        other = _load_float(path)
        same = other.config == model.config
        for side in ("source_tokenizer", "target_tokenizer"):
            same = same and getattr(other, side).fingerprint == getattr(model, side).fingerprint
        if not same:
            raise FolderError(
                f"{path} and {paths[0]} are different models (config or tokenizer); "
                "give checkpoints of one model"
            )
    return model


def _load_float(path: Path) -> Any:
    model = model_folder.load(_config_folder(path))
    if model.stored_precision == "int8":
        raise FolderError(f"{path} is stored in int8; average the models, then `regard quantize` the average")
    return model


def _weights_file(path: Path) -> tuple[Path, str]:
    """The weights file of a model folder or checkpoint, and the prefix of the weights' names."""
    if (path / "model" / "model.safetensors").is_file():
        path = path / "model"
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors", ""
    file = path / "tensors.safetensors"
    if not file.is_file():
        raise FolderError(
            f"{path} is neither a model folder nor a checkpoint; "
            "give runs/NAME/best/step-… or runs/NAME/model"
        )
    verify_complete(path)
    with safe_open(str(file), "pt") as stored:
        has_ema = any(name.startswith("ema.") for name in list(stored.keys()))
    return file, "ema." if has_ema else "model."


def _config_folder(path: Path) -> Path:
    """Return the model folder with the config of these weights; for a checkpoint, one of the same run."""
    if not (path / "tensors.safetensors").is_file():
        return path
    run = RunFolder(path.resolve().parent.parent)
    for folder in [run.model, *reversed(step_folders(run.best))]:
        if (folder / "config.json").is_file():
            return folder
    raise FolderError(
        f"the run of {path} has no model folder yet with config and tokenizers; wait for its first validation"
    )
