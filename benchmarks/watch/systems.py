"""Who answers, and how: each system is a function that runs the model and gives the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.watch.model import Shape, name_of, same_with

HEAD, SUMS = "one head", "column sums of all layers"
Answer = Callable[[], Tensor]  # one head: (T, T); column sums: (layers, heads, T)


def plain(model: Any, ids: Tensor) -> Answer:
    """The forward pass alone, to which all others are compared."""
    return lambda: model(ids, use_cache=False, logits_to_keep=1).logits


def ours(model: Any, ids: Tensor, shape: Shape, question: str) -> Answer:
    def head() -> Tensor:
        with regard.watch(model, only=name_of(shape.layer)) as seen:
            model(ids, use_cache=False, logits_to_keep=1)
        return seen[name_of(shape.layer)].weights(batch=0, head=shape.head)

    def sums() -> Tensor:
        found: list[Tensor] = []
        with regard.watch(model, on_call=lambda _, recorded: found.append(recorded.column_sums(batch=0))):
            model(ids, use_cache=False, logits_to_keep=1)
        return torch.stack(found)

    return head if question == HEAD else sums


def eager(model: Any, ids: Tensor, shape: Shape, question: str) -> Answer:
    other = same_with(model, "eager")

    def answer() -> Tensor:
        found = other(ids, use_cache=False, logits_to_keep=1, output_attentions=True).attentions
        if question == HEAD:
            return found[shape.layer][0, shape.head]
        return torch.stack([weights[0].sum(-2, dtype=torch.float32) for weights in found])

    return answer


def attnread(model: Any, ids: Tensor, shape: Shape, question: str) -> Answer:
    from attnread import extract_attention  # type: ignore[import-not-found]

    def head() -> Tensor:
        return extract_attention(model, {"input_ids": ids}, heads=[(shape.layer, shape.head)])[
            "text", shape.layer, shape.head
        ][0]

    def sums() -> Tensor:
        found = extract_attention(model, {"input_ids": ids})
        rows = [
            found["text", layer, head][0].sum(-2)
            for layer in range(shape.layers)
            for head in range(shape.heads)
        ]
        return torch.stack(rows).view(shape.layers, shape.heads, -1)

    return head if question == HEAD else sums


SYSTEMS: dict[str, Callable[..., Answer]] = {
    "regard.watch": ours,
    "eager": eager,
    "attnread": attnread,
}
