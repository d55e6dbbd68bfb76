"""Check the config.json of a model folder before a model is built from it: schema, sizes, depth."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regard.errors import FolderError
from regard.models.build import MODELS
from regard.models.model import COMMANDS
from regard.models.options import reads_numbers

MAX_DEPTH = 24  # levels of nested blocks
MAX_ENTRIES = 100  # entries of a list
MAX_INTEGER = 1 << 24
MAX_WIDTH = 1 << 20  # of the keys in WIDTHS
WIDTHS = frozenset(
    {"dim", "heads", "key_heads", "inner", "width", "last_width", "attention_width", "queries", "kernel"}
)


def check_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with its `model` block validated and completed; a FolderError names a wrong key."""
    for side in ("source", "target"):
        size = config[f"{side}_vocabulary"]
        if size is None and (side == "source" or config["kind"] == "embedder"):
            continue
        # A vocabulary has the four special tokens; a sequence of numbers has at least one channel.
        minimum = 1 if side == "source" and reads_numbers(config["model"]) else 4
        if isinstance(size, bool) or not isinstance(size, int) or not minimum <= size <= MAX_INTEGER:
            problem = f"{_short(size)}, not an integer between {minimum} and {MAX_INTEGER}"
            raise _wrong(path, f"{side}_vocabulary is {problem}")
    if config["source_vocabulary"] is None and config["kind"] in ("translator", "classifier", "tagger"):
        raise _wrong(path, f"source_vocabulary is null, and a {config['kind']} reads a source")
    _check_sizes(path, config["model"], "model", 0)
    model = complete(path, config["kind"], config["model"])
    if config["kind"] in ("translator", "language-model") and (model["encoder"] is None) != (
        config["kind"] == "language-model"
    ):
        raise _wrong(
            path, f"kind is {config['kind']!r}, and model.encoder is {_short(config['model'].get('encoder'))}"
        )
    return config | {"model": model}


def check_layers(path: Path, config: Any, tensors: int, where: str = "model") -> None:
    """Refuse more layers than the file has tensors: every layer has at least one."""
    for key, value in _entries(config):
        if key == "layers" and isinstance(value, int) and value > tensors:
            raise _wrong(path, f"{where}.layers is {value}, and model.safetensors has {tensors} tensors")
        check_layers(path, value, tensors, f"{where}.{key}")


def complete(path: Path, kind: str, block: Any) -> dict[str, Any]:
    """Return a `model:` block of that kind with all defaults."""
    options = MODELS["autoregressive" if kind in ("translator", "language-model") else kind]
    try:
        return options.model_validate(block).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, ("model", *first["loc"])))
        got = "" if first["type"] == "missing" else f", got {_short(first['input'])}"
        raise _wrong(path, f"{key}: {first['msg']}{got}") from None


def _check_sizes(path: Path, value: Any, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _wrong(path, f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list) and len(value) > MAX_ENTRIES:
        raise _wrong(path, f"{where} has {len(value)} entries, more than {MAX_ENTRIES}")
    for key, entry in _entries(value):
        limit = MAX_WIDTH if key in WIDTHS else MAX_INTEGER
        if isinstance(entry, int) and entry > limit:
            raise _wrong(path, f"{where}.{_short(key)} is {_short(entry)}, more than {limit}")
        _check_sizes(path, entry, f"{where}.{key}", depth + 1)


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values of a block, the indices and entries of a list; nothing for other values."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _short(value: Any) -> str:
    """A value as quoted in an error."""
    if isinstance(value, int) and abs(value) > 10**18:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list):
        return f"a {'block' if isinstance(value, dict) else 'list'} of {len(value)} entries"
    shown = ascii(value) if isinstance(value, str) else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"


def _wrong(path: Path, what: str) -> FolderError:
    return FolderError(
        f"{path}: {what}; it was changed or is damaged, so copy the folder again".replace("\n", " ")
    )


def known_kind(kind: object) -> bool:
    """True if `kind` is a kind of model."""
    return isinstance(kind, str) and kind in COMMANDS
