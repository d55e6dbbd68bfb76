"""The models that the page offers if none is named: those known by name, and MiniLM where it is installed."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from regard.explorer.explored_model import TASK_VIEWS, VIEWS, ExploredModel
from regard.models import bert
from regard.models.catalog import CatalogEntry, known_models
from regard.models.folder import load


@dataclass
class ModelChoice:
    """A model that is loaded when it is first chosen."""

    name: str
    load: Callable[[], Any]
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _explored: ExploredModel | None = field(default=None, repr=False)

    def explored(self) -> ExploredModel:
        with self._lock:
            if self._explored is None:
                self._explored = ExploredModel(self.load(), self.name)
            return self._explored


def bundled_choices() -> list[ModelChoice]:
    """Models with more views first, so translators; of equal ones the default first."""

    def order(entry: CatalogEntry) -> tuple[int, bool]:
        return -len(TASK_VIEWS.get(entry.task, VIEWS)), not entry.default

    entries = sorted(known_models().values(), key=order)
    choices = [ModelChoice(entry.name, lambda folder=entry.folder: load(folder)) for entry in entries]
    if importlib.util.find_spec(bert.PACKAGE) is not None:
        choices.append(ModelChoice("minilm", bert.minilm))
    return choices
