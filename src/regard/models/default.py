"""The model that a call uses: a loaded one, one in a folder, or the default."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from regard.arguments import quoted
from regard.errors import OptionError
from regard.models.folder import as_path, is_file, load

VARIABLE = "REGARD_MODEL"
MAX_LOADED = 2  # models loaded from folders that stay in memory
TRAINED_BY = {
    "translate": "`regard train small`",
    "align": "`regard train small`",
    "generate": "`regard train language-model FILE`",
    "classify": "`regard train classifier FILE`",
    "tag": "`regard train tagger FILE`",
    "embed": "`regard train embed-tatoeba`",
    "serve": "`regard train small`",
}
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][a-z]{2,4})?", re.IGNORECASE)
_loaded: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_lock = threading.Lock()


def default_model(task: str, to: str | None = None) -> Path:
    """The folder of the default model of a task, from the environment variable REGARD_MODEL."""
    folder = os.environ.get(VARIABLE)
    if folder:
        return Path(folder)
    raise OptionError(
        f"no model is named, and none is bundled yet to {task}; "
        "name a folder with --model (in Python model=), or in the "
        f"environment as {VARIABLE}, or train one with {TRAINED_BY[task]}"
    )


def as_model(model: Any, task: str, to: str | None = None) -> Any:
    """Return a model: the given one, the one in a folder, or for None the default of the task.

    A folder is loaded on the CPU, and again only if a file in it changes or other folders replace it in
    memory.
    """
    if model is None:
        model = default_model(task, to)
    if isinstance(model, str | os.PathLike):
        model = _from_folder(as_path("model", model))
    elif isinstance(model, list | tuple):
        raise OptionError(
            f"model is a folder or a loaded model, got {quoted(model)}; "
            f"texts come first: regard.{task}(texts, model)"
        )
    if to is not None:
        check_target(model, to)
    return model


def target_language(model: Any) -> str | None:
    """The target language of a translator, as in its recipe; None if unknown."""
    return language_of(getattr(model, "card", None) or {}, "target")


def language_of(card: dict[str, Any], side: str) -> str | None:
    """The language of the source or target side, as in the recipe of a model's card; None if unknown."""
    recipe = card.get("recipe") or {}
    named = (recipe.get("data") or {}).get(side)
    return named if isinstance(named, str) and _LANGUAGE.fullmatch(named) else None


def check_target(model: Any, to: str) -> None:
    """Raise an OptionError unless the model translates into `to`."""
    if not isinstance(to, str) or not to:
        raise OptionError(f"to is the name of a language, such as 'de', got {quoted(to)}")
    language = target_language(model)
    if language is None:
        raise OptionError(
            f"this model does not say which language it translates into, so to={to!r} cannot be checked; "
            "leave it out"
        )
    if language.lower() != to.lower():
        raise OptionError(
            f"this model translates into {language!r} only, got to={to!r}; "
            "leave it out, or name another model"
        )


def _from_folder(folder: Path) -> Any:
    inner = folder / "model"
    place = inner if is_file(inner / "config.json") else folder
    with _lock:
        key = (os.path.realpath(place), _state(place))
        if key not in _loaded:
            _loaded[key] = load(folder)
            for old in [other for other in _loaded if other[0] == key[0] and other != key]:
                del _loaded[old]
        _loaded.move_to_end(key)
        while len(_loaded) > MAX_LOADED:
            _loaded.popitem(last=False)
        return _loaded[key]


def _state(folder: Path) -> tuple[Any, ...]:
    """A value that changes when a file in the folder changes."""
    try:
        files = [(entry.name, entry.stat()) for entry in os.scandir(folder) if entry.is_file()]
    except OSError:  # `load` reports it
        return ()
    return tuple(sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in files))
