"""`regard import`: a Hugging Face folder with a MarianMT, GPT-2 or BERT-like model becomes a regard folder of the same outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import FolderError
from regard.files.atomic import write_folder
from regard.interchange.export.check import Check, require
from regard.interchange.export.libraries import need, quiet_transformers
from regard.interchange.export.write import free_place
from regard.interchange.import_bert import Compared, checked
from regard.models import folder as model_folder
from regard.models.bert import refuse_pickle

KINDS = ("marian", "gpt2", "bert")


def import_model(source: str | Path, folder: str | Path, *, overwrite: bool = False) -> Check | Compared:
    """Read a Hugging Face folder, compare the two models on sample sentences, and write a regard folder if they are equal."""
    source, folder = Path(source), Path(folder)
    kind = _kind(source)
    need("transformers")
    free_place(folder, overwrite)
    with quiet_transformers():
        if kind == "bert":
            model, found = checked(source)
        else:
            model, found = _writer(source, kind)
    card = {"name": source.resolve().name, "imported_from": f"Hugging Face {kind}"}
    write_folder(
        folder,
        lambda place: model_folder.save(
            place, model, model.config, model.source_tokenizer, model.target_tokenizer, card
        ),
    )
    return found


def _writer(source: Path, kind: str) -> tuple[Any, Check]:
    """A model that writes, and how it compares."""
    if kind == "marian":
        from regard.interchange import import_marian as reader
    else:
        from regard.interchange import import_gpt2 as reader
    model, rows = reader.read(source)
    return model, require(model, reader.runner(source, rows), "regard")


def _kind(source: Path) -> str:
    """Which model a folder holds, by its config.json."""
    if not source.is_dir():
        raise FolderError(
            f"there is no folder {source}; give one that transformers' save_pretrained has written"
        )
    path = source / "config.json"
    if not path.is_file():
        raise FolderError(
            f"{source} has no config.json, so it is no Hugging Face model; give the folder that has it"
        )
    kind = model_folder.read_json(path).get("model_type")
    if kind not in KINDS:
        raise FolderError(
            f"{path} says model_type {json.dumps(kind)}, and regard imports {', '.join(KINDS)}; give one of these"
        )
    refuse_pickle(source)
    return kind
