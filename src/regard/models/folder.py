"""A trained model as a folder: config.json, model.safetensors, its tokenizers, and a card that says how it came to be."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from regard.data.tokenizer import Tokenizer
from regard.errors import FolderError
from regard.models.build import build
from regard.models.counted import COMMANDS, Counted
from regard.version import __version__

FORMAT = 1  # of this folder; raised when an older regard could not read it


def save(
    folder: str | Path,
    model: Counted,
    config: dict[str, Any],
    source_tokenizer: Tokenizer | None,
    target_tokenizer: Tokenizer,
    card: dict[str, Any],
) -> None:
    """Write the folder. Every file appears whole or not at all; config.json comes last, so that a folder with it is complete."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().to("cpu").contiguous() for name, p in model.named_parameters()}
    _whole(folder / "model.safetensors", lambda path: save_file(tensors, path))
    joint = source_tokenizer is None or source_tokenizer.fingerprint == target_tokenizer.fingerprint
    names = {"tokenizer.json": target_tokenizer} if joint else {"source.json": source_tokenizer, "target.json": target_tokenizer}
    for name, tokenizer in names.items():
        _whole(folder / name, tokenizer.save)
    _whole(folder / "card.json", lambda path: _write_json(path, card))
    top = {
        "format": FORMAT,
        "regard": __version__,
        "kind": model.kind,
        "source_vocabulary": None if source_tokenizer is None or model.kind == "language-model" else len(source_tokenizer),
        "target_vocabulary": len(target_tokenizer),
        "model": config,
    }
    _whole(folder / "config.json", lambda path: _write_json(path, top))


def load(folder: str | Path, device: str | torch.device = "cpu") -> Any:
    """The model of a folder, ready to use, with `.source_tokenizer`, `.target_tokenizer`, `.config` and `.card` on it."""
    folder = Path(folder)
    if (folder / "model" / "config.json").is_file():  # a run folder: its finished model
        folder = folder / "model"
    config = _config(folder)
    if (folder / "tokenizer.json").is_file():
        source = target = Tokenizer.load(folder / "tokenizer.json")
    else:
        source, target = (Tokenizer.load(_need(folder / f"{side}.json")) for side in ("source", "target"))
    for side, tokenizer in (("source", source), ("target", target)):
        if config[f"{side}_vocabulary"] not in (None, len(tokenizer)):
            raise FolderError(
                f"{folder} was trained with {config[f'{side}_vocabulary']} {side} words and its tokenizer has {len(tokenizer)}; "
                "the tokenizer belongs to another model, so copy the folder again"
            )
    with torch.random.fork_rng(devices=[]):  # drawing weights that are replaced at once must not change the caller's numbers
        model = build(config["model"], config["source_vocabulary"], config["target_vocabulary"])
    _fill(model, folder / "model.safetensors")
    model.source_tokenizer, model.target_tokenizer = source, target
    model.config = config["model"]
    model.card = read_json(folder / "card.json") if (folder / "card.json").is_file() else {}
    return model.to(device).eval()


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}; give the folder of a trained model, such as runs/NAME/model")
    if not (folder / "config.json").is_file():
        raise FolderError(f"{folder} has no config.json, so it is no model folder; give one that regard train has written")
    config = read_json(folder / "config.json")
    if config.get("kind") == "recommender":
        raise FolderError(
            f"{folder} is a recommender: use it with `regard recommend --model {folder}`, or in Python with "
            "regard.interactions.Recommender.load"
        )
    missing = {"format", "kind", "source_vocabulary", "target_vocabulary", "model"} - set(config)
    if missing:
        raise FolderError(f"{folder / 'config.json'} has no {sorted(missing)[0]!r}; it was not written by regard, or is damaged")
    if config["format"] != FORMAT:
        raise FolderError(
            f"{folder} has format {config['format']} (regard {config.get('regard', '?')}) and this regard reads format {FORMAT}; "
            "install that version, or train again"
        )
    if config["kind"] not in COMMANDS:
        raise FolderError(
            f"{folder} is a {config['kind']!r} (regard {config.get('regard', '?')}), which this regard does not know; "
            f"it knows {', '.join(COMMANDS)}, so install the version that wrote it"
        )
    return config


def _fill(model: torch.nn.Module, path: Path) -> None:
    """Put the stored numbers into the model; names, shapes and completeness are checked first."""
    want = dict(model.named_parameters())
    try:
        with safe_open(str(_need(path)), "pt") as stored:
            have = set(stored.keys())
            wrong = sorted(have ^ set(want))
            if wrong:
                side = "lacks" if wrong[0] in want else "has an unknown"
                raise FolderError(f"{path} {side} {wrong[0]!r}: it belongs to another config.json; copy the folder again")
            for name, p in want.items():
                x = stored.get_tensor(name)
                if x.shape != p.shape:
                    raise FolderError(
                        f"{path} holds {name!r} as {tuple(x.shape)} and config.json makes it {tuple(p.shape)}; copy it again"
                    )
                p.data.copy_(x)  # copied: products of unaligned memory may differ in their last bit
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{path} cannot be read ({error}); it is truncated or damaged, so copy it again") from None


def _need(path: Path) -> Path:
    if not path.is_file():
        raise FolderError(f"{path.parent} has no {path.name}; the folder is incomplete, so copy it again")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model or run folder."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read ({error}); it is damaged, so copy it again") from None
    if not isinstance(found, dict):
        raise FolderError(f"{path} holds a {type(found).__name__} where an object belongs; it is damaged, so copy it again")
    return found


def _write_json(path: Path | str, value: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _whole(path: Path, write: Any) -> None:
    """Write beside, then rename: a crash leaves the old file or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
