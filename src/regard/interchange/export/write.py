"""`regard export`: refuse first, write beside, check, and only then put it in its place."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Protocol

from regard.errors import OptionError
from regard.files.atomic import write_folder
from regard.files.checksums import CHECKSUMS
from regard.files.progress import track
from regard.interchange.export.check import Check, Model, Runner, check, require
from regard.models.autoregressive import writing

TARGETS = ("ctranslate2", "huggingface", "onnx")


class Target(Protocol):
    """A format: what it cannot express, its files, and the runtime that reads them."""

    name: str

    @property
    def exact(self) -> Target:
        """The same format with weights that are ours to the last bit, whose output must be equal; as a rule itself."""
        ...

    def refuse(self, model: Model) -> None:
        """An error with the reason, for a model that this format cannot express."""
        ...

    def write(self, model: Model, folder: Path) -> None:
        """Fill the folder."""
        ...

    def load(self, model: Model, folder: Path) -> Runner:
        """What was written, in its own runtime."""
        ...


def target(name: str, quantization: str = "float32") -> Target:
    """The format of that name."""
    if name not in TARGETS:
        raise OptionError(f"a model is exported to one of {', '.join(TARGETS)}, got {name!r}")
    if name == "ctranslate2":
        from regard.interchange.export.ctranslate2 import CTranslate2

        return CTranslate2(quantization)
    if quantization != "float32":
        raise OptionError(
            f"only ctranslate2 takes a quantization; {name} is written in float32, so leave it out"
        )
    if name == "huggingface":
        from regard.interchange.export.huggingface import HuggingFace

        return HuggingFace()
    from regard.interchange.export.onnx import Onnx

    return Onnx()


def export(model: Model, folder: str | Path, to: Target, *, overwrite: bool = False) -> Check:
    """Write a model for another runtime and compare the two; an export that is not equal leaves nothing behind.

    With rounded weights (int8 …) the same layout is checked with exact ones first; the figures that come back then tell what the
    rounding changed.
    """
    folder = Path(folder)
    writing(model, "exports")
    to.refuse(model)
    free_place(folder, overwrite)
    ours: Model = copy.deepcopy(model).cpu().float().eval()
    found: list[Check] = []

    def fill(place: Path) -> None:
        if to.exact is not to:
            inner = place / "exact"
            inner.mkdir()
            found.append(_written(ours, inner, to.exact))
            shutil.rmtree(inner)
        found.append(_written(ours, place, to))

    def _written(ours: Model, place: Path, to: Target) -> Check:
        with track(None, "writing"):
            to.write(ours, place)
        runner = to.load(ours, place)
        return require(ours, runner, to.name) if to.exact is to else check(ours, runner)

    write_folder(folder, fill)
    return found[-1]


def free_place(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds something; with `overwrite`, one that regard did not write."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise OptionError(f"{folder} is already there; give another folder, or --overwrite")
    if not (folder / CHECKSUMS).is_file():
        raise OptionError(
            f"{folder} was not written by regard, so --overwrite does not replace it; give another folder"
        )
