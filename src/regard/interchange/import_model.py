"""Import a Hugging Face folder: read it, compare the outputs, write a model folder."""

from __future__ import annotations

import json
from pathlib import Path

from regard.errors import FolderError
from regard.files.atomic import write_folder
from regard.interchange import import_bert, import_gpt2, import_marian  # noqa: F401 (they register themselves)
from regard.interchange.export.compare import RuntimeComparison
from regard.interchange.export.export_model import check_free
from regard.interchange.export.libraries import quiet_transformers, require_library
from regard.interchange.importer import IMPORTERS, VectorComparison
from regard.interchange.pickled_weights import with_safetensors
from regard.models import folder as model_folder


def import_model(
    source: str | Path, folder: str | Path, *, overwrite: bool = False
) -> RuntimeComparison | VectorComparison:
    """Import a Hugging Face model, and compare its outputs on sample sentences.

        import_model("opus-mt-en-de", "models/en-de")

    Args:
        source: folder written by `save_pretrained`, with a model type in `IMPORTERS`.
        folder: new model folder.
        overwrite: replace a folder that regard wrote.

    Raises UnequalError and writes nothing if the outputs differ.
    """
    source, folder = Path(source), Path(folder)
    kind = _model_type(source)
    require_library("transformers")
    check_free(folder, overwrite)
    with quiet_transformers(), with_safetensors(source) as readable:
        model, comparison = IMPORTERS[kind](readable)
    card = {"name": _name(source.resolve()), "imported_from": f"Hugging Face {kind}"}
    card |= getattr(model, "card", None) or {}
    write_folder(
        folder,
        lambda place: model_folder.save(
            place, model, model.config, model.source_tokenizer, model.target_tokenizer, card
        ),
    )
    return comparison


def _name(folder: Path) -> str:
    """Return the name of a folder; in the hub's cache (models--OWNER--NAME/snapshots/…), NAME."""
    owner = folder.parent.parent.name
    return owner.rpartition("--")[2] if owner.startswith("models--") else folder.name


def _model_type(source: Path) -> str:
    """Return the `model_type` of a Hugging Face folder."""
    if not source.is_dir():
        raise FolderError(f"there is no folder {source}; give one that transformers' save_pretrained wrote")
    path = source / "config.json"
    if not path.is_file():
        raise FolderError(
            f"{source} has no config.json, so it is not a Hugging Face model; give the folder that has it"
        )
    kind = model_folder.read_json(path).get("model_type")
    if not isinstance(kind, str) or kind not in IMPORTERS:
        raise FolderError(
            f"{path} has model_type {json.dumps(kind)}, and regard imports {', '.join(sorted(IMPORTERS))}; "
            "give one of these"
        )
    return kind
