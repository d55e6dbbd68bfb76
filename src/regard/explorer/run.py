"""One explored text: its tokens, words, output and attention maps, as JSON and as bytes for the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.attention.diversity import head_diversity
from regard.decoding.attention_weights import AttentionMaps, kind_of
from regard.errors import OptionError
from regard.pipelines.token_words import Words

THUMBNAIL = 40  # largest side of a thumbnail in cells; larger maps are max-pooled


@dataclass(frozen=True)
class Side:
    """The tokens of one axis of an attention map, and the words that they form.

    A token of no word (<s>, </s>, a language code) forms an entry of its own, marked as special, so the
    entries cover every token.
    """

    tokens: list[str]
    words: list[dict[str, Any]]

    @classmethod
    def of(cls, tokens: list[str], words: Words | None = None, first: int = 0) -> Side:
        """The side of these tokens; `words` describes the tokens from index `first` on."""
        if words is None:
            return cls(
                tokens, [_word(token, [i], special=_is_special(token)) for i, token in enumerate(tokens)]
            )
        owner = words.owner  # (tokens, words)
        last = min(len(tokens), first + len(owner))
        owned = [[t for t in range(first, last) if owner[t - first, w]] for w in range(len(words.words))]
        entries = [_word(text, own) for text, own in zip(words.words, owned, strict=True) if own]
        inside = {t for own in owned for t in own}
        entries += [_word(tokens[t], [t], special=True) for t in range(len(tokens)) if t not in inside]
        return cls(tokens, sorted(entries, key=lambda entry: entry["tokens"][0]))

    def describe(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "words": self.words}


def _word(text: str, tokens: list[int], *, special: bool = False) -> dict[str, Any]:
    return {"text": text, "tokens": tokens, "special": special}


def _is_special(token: str) -> bool:
    return token in ("<s>", "</s>", "<pad>")


SIDES = {  # the sides of the rows and columns of each kind of attention
    "encoder": ("source", "source"),
    "decoder": ("target", "inputs"),
    "cross": ("target", "source"),
    "pooling": ("queries", "source"),
}


@dataclass(frozen=True, eq=False)
class Run:
    """The result of one text.

    Attributes:
        task: the command of the model: translate, generate, classify, tag or embed.
        text: what the user typed.
        output: the result as JSON.
        sides: by name: source, target, inputs, queries.
        maps: the attention weights by name; None if the model has no attention.
        private: what later runs need for comparison; not sent.
        rows_editable: whether `intervene` can select single rows, by name of a map.
        model: index of the model that ran it.
    """

    task: str
    text: str
    output: dict[str, Any]
    sides: dict[str, Side]
    maps: AttentionMaps | None
    private: dict[str, Any] = field(default_factory=dict)
    rows_editable: dict[str, bool] = field(default_factory=dict)
    model: int = 0

    @property
    def names(self) -> list[str]:
        return [] if self.maps is None else list(self.maps)

    @property
    def bytes(self) -> int:
        """Size of the attention weights in memory."""
        return 0 if self.maps is None else sum(w.numel() * w.element_size() for w in self.maps.values())

    def describe(self, identity: str) -> dict[str, Any]:
        """The run as JSON, without weights."""
        return {
            "id": identity,
            "model": self.model,
            "task": self.task,
            "text": self.text,
            "output": self.output,
            "sides": {name: side.describe() for name, side in self.sides.items()},
            "maps": [self._describe_map(name) for name in self.names],
        }

    def _describe_map(self, name: str) -> dict[str, Any]:
        assert self.maps is not None
        kind, weights = kind_of(name), self.maps[name]
        heads, rows, columns = weights.shape
        same = [other for other in self.names if kind_of(other) == kind]
        row_side, column_side = SIDES[kind]
        return {
            "name": name,
            "kind": kind,
            "layer": same.index(name),
            "heads": heads,
            "rows": rows,
            "columns": columns,
            "rowSide": row_side,
            "columnSide": column_side,
            "thumbnail": [min(rows, THUMBNAIL), min(columns, THUMBNAIL)],
            "rowsEditable": self.rows_editable.get(name, True),
        }

    def head_statistics(self) -> list[dict[str, Any]]:
        """Mean entropy and distance of the heads of every map: too slow for what the first picture needs."""
        statistics = []
        for name in self.names:
            kind, weights = kind_of(name), self.map(self.names.index(name))
            distance = None if kind == "pooling" else _mean_distance(weights, kind)
            entropy = [round(x, 4) for x in _mean_entropy(weights).tolist()]
            statistics.append({"entropy": entropy, "distance": distance})
        return statistics

    def thumbnails(self) -> bytes:
        """Every head of every map in order, one byte per cell, 255 for the largest weight of the head."""
        if self.maps is None:
            return b""
        return b"".join(_thumbnails(weights) for weights in self.maps.values())

    def head(self, index: int, head: int | None) -> bytes:
        """The exact weights of one head, or the mean of the heads for None: float32, (rows, columns)."""
        return float32(self.weights(index, head))

    def weights(self, index: int, head: int | None) -> Tensor:
        """The weights of one head, or the mean of the heads for None: float64, (rows, columns)."""
        if head is None:
            return self.map(index).double().mean(0)
        return self.check_head(index, head).double()

    def check_head(self, index: int, head: int) -> Tensor:
        """The weights of one head, (rows, columns); an error if there is no such head."""
        weights = self.map(index)
        if not 0 <= head < len(weights):
            raise OptionError(f"there is no head {head}; this layer has {len(weights)}, counted from 0")
        return weights[head]

    def row(self, index: int, row: int) -> bytes:
        """The exact weights of one row in every head: float32, (heads, columns)."""
        weights = self.map(index)
        if not 0 <= row < weights.shape[1]:
            raise OptionError(f"there is no row {row}; this map has {weights.shape[1]}, counted from 0")
        return float32(weights[:, row])

    def diversity(self, index: int) -> dict[str, Any]:
        """How different the heads of a map are; see `regard.attention.head_diversity`."""
        diversity = head_diversity(self.map(index))
        pairs = [[round(x, 4) for x in row] for row in diversity.pairs.tolist()]
        return {
            "divergence": diversity.divergence, "effectiveRank": diversity.effective_rank, "pairs": pairs
        }  # fmt: skip

    def map(self, index: int) -> Tensor:
        """The weights of one map, (heads, rows, columns)."""
        if not 0 <= index < len(self.names):
            raise OptionError(f"there is no attention map {index}; this run has {len(self.names)}, from 0")
        assert self.maps is not None
        return self.maps[self.names[index]]


def merge_tokens(weights: Tensor, rows: list[list[int]], columns: list[list[int]]) -> Tensor:
    """Merge weights between tokens (Tq, Tk) into (len(rows), len(columns)) weights between groups of tokens:
    the sum over the columns of a group, the mean over its rows.
    """
    merged = weights.new_zeros(len(weights), len(columns))
    for at, tokens in enumerate(columns):
        merged[:, at] = weights[:, tokens].sum(1)
    if not rows:
        return merged[:0]
    return torch.stack([merged[tokens].mean(0) for tokens in rows])


def float32(weights: Tensor) -> bytes:
    """The values as little-endian float32."""
    return weights.float().contiguous().numpy().astype("<f4", copy=False).tobytes()


def _thumbnails(weights: Tensor) -> bytes:
    """(heads, rows, columns) as bytes; a large map is max-pooled, so that single peaks stay visible."""
    size = [min(side, THUMBNAIL) for side in weights.shape[1:]]
    if 0 in size:
        return b""
    small = torch.nn.functional.adaptive_max_pool2d(weights.float(), size)
    peak = small.amax((1, 2), keepdim=True).clamp(min=1e-12)
    return (small / peak * 255).round().clamp(0, 255).to(torch.uint8).contiguous().numpy().tobytes()


def _mean_entropy(weights: Tensor) -> Tensor:
    """Mean entropy of the rows of each head in bits, (heads,)."""
    if not weights.shape[1]:
        return torch.zeros(len(weights))
    return torch.special.entr(weights).sum(-1).double().mean(-1) / math.log(2)


def _mean_distance(weights: Tensor, kind: str) -> list[float]:
    """Mean distance in tokens between query and key, by weight, of each head.

    Of cross-attention it is the distance from the diagonal of the matrix, in source tokens.
    """
    _, rows, columns = weights.shape
    scale = (columns - 1) / max(1, rows - 1) if kind == "cross" else 1.0
    query, key = torch.arange(rows)[:, None] * scale, torch.arange(columns)
    distance = (query - key).abs().to(weights)  # (rows, columns)
    total = weights.sum((1, 2)).clamp(min=1e-12)
    return [round(x, 4) for x in ((weights * distance).sum((1, 2)) / total).tolist()]
