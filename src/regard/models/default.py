"""The model that a call uses: a loaded one, one in a folder, or the default."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from regard.arguments import quoted
from regard.errors import OptionError
from regard.models.catalog import known_models
from regard.models.folder import as_path, load, model_in
from regard.models.target_language import check_target

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
    "explore": "`regard train small`",
}
_loaded: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_lock = threading.Lock()


def default_model(task: str, to: str | None = None) -> Path:
    """The folder of the default model of a task: that in REGARD_MODEL, else one of the catalog.

    For a translator, `to` is the target language.
    """
    folder = os.environ.get(VARIABLE)
    if folder:
        return Path(folder)
    kind = "translate" if task in ("align", "serve", "explore") else task
    entries = [entry for entry in known_models().values() if entry.task == kind]
    fitting = [entry for entry in entries if to is None or to in entry.into]
    if fitting:
        return max(fitting, key=lambda entry: entry.default).folder  # the first of equal ones
    if entries:
        languages = dict.fromkeys(language for entry in entries for language in entry.into)
        raise OptionError(
            f"no bundled model translates into {quoted(to)}, only into {', '.join(languages)}; "
            "name another model with --model (in Python model=)"
        )
    raise OptionError(
        f"no model is named, and none is bundled yet to {task}; "
        "name a folder with --model (in Python model=), or in the "
        f"environment as {VARIABLE}, or train one with {TRAINED_BY[task]}"
    )


def as_model(model: Any, task: str, to: str | None = None) -> Any:
    """Return a model: the given one, the one in a folder, or for None the default of the task.

    A folder is loaded on the CPU, and again only if a file in it changes or other folders replace it in
    memory. For `embed` it may also be `minilm` or the folder of a BERT-like sentence encoder.
    """
    if model is None:
        model = default_model(task, to)
    if isinstance(model, str | os.PathLike):
        model = _from_folder(as_path("model", model), task)
    elif isinstance(model, list | tuple):
        raise OptionError(
            f"model is a folder or a loaded model, got {quoted(model)}; "
            f"texts come first: regard.{task}(texts, model)"
        )
    if to is not None:
        check_target(model, to)
    return model


def _from_folder(folder: Path, task: str) -> Any:
    from regard.models import bert

    encoder = bert.encoder_folder(folder) if task == "embed" else None
    place = encoder or model_in(folder)
    with _lock:
        key = (os.path.realpath(place), _file_stats(place))
        if key not in _loaded:
            _loaded[key] = load(folder) if encoder is None else bert.read(encoder)
            for old in [other for other in _loaded if other[0] == key[0] and other != key]:
                del _loaded[old]
        _loaded.move_to_end(key)
        while len(_loaded) > MAX_LOADED:
            _loaded.popitem(last=False)
        return _loaded[key]


def _file_stats(folder: Path) -> tuple[Any, ...]:
    """A value that changes when a file in the folder changes."""
    try:
        files = [(entry.name, entry.stat()) for entry in os.scandir(folder) if entry.is_file()]
    except OSError:  # `load` reports it
        return ()
    return tuple(sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in files))
