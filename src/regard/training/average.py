"""The mean of several checkpoints' weights as one model: often better than each (Vaswani et al. 2017, 6.1 take 5 to 20)."""

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


def mean(files: Sequence[tuple[Path, str]]) -> dict[str, Tensor]:
    """Tensor by tensor the mean over files, each with the prefix its weights' names have; added up in float64."""
    opened = []
    try:
        for path, prefix in files:
            with safe_open(str(path), "pt") as stored:
                names = stored.keys()  # not a dictionary: it has no iterator of its own
                opened.append({name.removeprefix(prefix) for name in names if name.startswith(prefix)})
        for (path, _), names in zip(files, opened, strict=True):
            if odd := sorted(names ^ opened[0]):
                raise FolderError(
                    f"{path} and {files[0][0]} do not hold the same weights, as {odd[0]!r}; average one model's"
                )
        return {name: _mean_of(name, files) for name in sorted(opened[0])}
    except (SafetensorError, OSError) as error:
        raise FolderError(
            f"{files[len(opened) - 1 if opened else 0][0].parent} cannot be averaged ({error})"
        ) from None


def _mean_of(name: str, files: Sequence[tuple[Path, str]]) -> Tensor:
    total: Tensor | None = None
    dtype = torch.float32
    for path, prefix in files:
        with safe_open(str(path), "pt") as stored:
            x = stored.get_tensor(prefix + name)
        if total is not None and x.shape != total.shape:
            raise FolderError(
                f"{path} holds {name!r} as {tuple(x.shape)}, the first {tuple(total.shape)}; average one model's"
            )
        dtype = x.dtype
        total = x.double() if total is None else total.add_(x)
    assert total is not None
    return total.div_(len(files)).to(dtype)


def average(
    folders: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    card: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Average model folders or checkpoints into the model folder `out`. A single run folder stands for its best checkpoints.

    A folder that holds something is refused; `overwrite` replaces a model folder of ours, and keeps what others put into it.
    """
    paths = [Path(folder) for folder in folders]
    if len(paths) == 1 and RunFolder(paths[0]).exists():
        paths = step_folders(RunFolder(paths[0]).best)
        if not paths:
            raise FolderError(f"{folders[0]} has no best checkpoints yet; it has not been validated")
    if not paths:
        raise FolderError("there is nothing to average; give model folders or checkpoints")
    files = [_weights(path) for path in paths]
    target = Path(out)
    check_target(target, [file.parent for file, _ in files], overwrite)
    model = model_folder.load(_like(paths[0]))
    for path in paths[1:]:
        other = model_folder.load(_like(path))
        same = other.config == model.config
        for side in ("source_tokenizer", "target_tokenizer"):
            same = same and getattr(other, side).fingerprint == getattr(model, side).fingerprint
        if not same:
            raise FolderError(
                f"{path} is another model than {paths[0]} (its config or tokenizer differs); average one model's"
            )
    found = mean(files)
    for name, p in model.named_parameters():
        p.data = found[name]
    about = {**getattr(model, "card", {}), **(card or {}), "average_of": [str(path) for path in paths]}
    write_folder(target, lambda place: save(place, model, about))
    return target


def check_target(target: Path, inputs: Sequence[Path], overwrite: bool) -> None:
    """Refuse a folder that is, holds or lies in an input, one that holds something, and with `overwrite` one that is not ours."""
    place = target.resolve()
    for folder in inputs:
        read = folder.resolve()
        if place == read or place in read.parents or read in place.parents:
            raise FolderError(f"-o {target} would change {folder}, which is averaged; give another folder")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise FolderError(f"{target} is already there; give another folder, or --overwrite")
    if not (target / CHECKSUMS).is_file() or not (target / "config.json").is_file():
        raise FolderError(
            f"{target} is no model folder that regard wrote, so --overwrite does not replace it; give another folder"
        )


def save(place: Path, model: Any, card: dict[str, Any]) -> None:
    """A model that has its tokenizers and config on it, as a model folder."""
    model_folder.save(place, model, model.config, model.source_tokenizer, model.target_tokenizer, card)


def _weights(path: Path) -> tuple[Path, str]:
    """Where the weights of a model folder or checkpoint are: the file and the prefix of their names."""
    if (path / "model" / "model.safetensors").is_file():
        path = path / "model"
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors", ""
    file = path / "tensors.safetensors"
    if not file.is_file():
        raise FolderError(
            f"{path} is neither a model folder nor a checkpoint; give runs/NAME/best/step-… or runs/NAME/model"
        )
    verify_complete(path)
    with safe_open(str(file), "pt") as stored:
        return file, "ema." if any(name.startswith("ema.") for name in stored.keys()) else "model."  # noqa: SIM118


def _like(path: Path) -> Path:
    """A model folder that says how the weights in `path` are used; a checkpoint borrows its run's."""
    if not (path / "tensors.safetensors").is_file():
        return path
    run = RunFolder(path.resolve().parent.parent)
    for place in [run.model, *reversed(step_folders(run.best))]:
        if (place / "config.json").is_file():
            return place
    raise FolderError(
        f"the run of {path} has no model folder yet to take config and tokenizers from; wait for its first validation"
    )
