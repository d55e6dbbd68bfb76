"""The attention maps that /attention sends, up to a maximum number of weights."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from regard.data.tokenizer import EOS
from regard.decoding.attention_weights import AttentionMaps, attention_maps, kind_of
from regard.models.translator import Translator
from regard.serving.http_errors import RequestError


class AttentionAnswers:
    """Computes the attention maps of a model for /attention.

    `watch` adds hooks to modules. Other requests use the model at the same time, so the maps come from
    `watched`, a copy of the modules that shares the weights, one request after the other.
    """

    def __init__(self, model: Any, max_weights: int) -> None:
        self.model, self.max_weights, self.lock = model, max_weights, threading.Lock()

    @cached_property
    def watched(self) -> Any:
        """A copy of the modules that shares all weights."""
        shared = {id(x): x for x in (*self.model.parameters(), *self.model.buffers())}
        return copy.deepcopy(self.model, shared)

    def check(self, source: int, target: int, kinds: Sequence[str]) -> None:
        """Raise RequestError if a text of `source` and `target` tokens has too many attention weights."""
        sizes = {"encoder": source * source, "decoder": target * target, "cross": target * source}
        count = sum(sizes[kind] * heads for kind, heads in self._heads if kind in kinds)
        if count > self.max_weights:
            raise RequestError(
                422,
                f"this attention has {count:,} weights, and at most {self.max_weights:,} are sent; "
                "request fewer kinds or send less text",
            )

    def answer(
        self,
        text: str,
        score: float | None,
        source: list[int] | None,
        target: list[int],
        kinds: Sequence[str],
    ) -> dict[str, Any]:
        """Return a text with its attention maps; `source` is None for a language model."""
        self.check(len(source or ()) + 1, len(target), kinds)
        if not target:
            return {"text": text, "score": score, "attention": []}
        with self.lock:
            maps = attention_maps(None if source is None else [source], [target], self.watched, kinds)[0]
        return {"text": text, "score": score, "attention": [_as_json(maps, name) for name in maps]}

    @cached_property
    def _heads(self) -> list[tuple[str, int]]:
        """Kind and number of heads of every attention layer, from one watched step."""
        source = [[EOS]] if isinstance(self.model, Translator) else None
        with self.lock:
            maps = attention_maps(source, [[EOS]], self.watched)[0]
        return [(kind_of(name), len(maps[name])) for name in maps]


def _as_json(maps: AttentionMaps, name: str) -> dict[str, Any]:
    rows, columns = maps.pieces(name)
    weights = (maps[name].double() * 1e6).round().div(1e6).tolist()  # (heads, rows, columns)
    return {"name": name, "kind": kind_of(name), "rows": rows, "columns": columns, "weights": weights}
