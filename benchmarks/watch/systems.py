"""The systems. Each returns a function that runs the model and answers the question from its attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.watch.model import Shape, layer_name, with_attention

HEAD, SUMS = "one head", "column sums of all layers"
Answer = Callable[[], Tensor]  # one head: (T, T); column sums: (layers, heads, T)


def plain(model: Any, ids: Tensor) -> Answer:
    """The forward pass alone, to which all others are compared."""
    return lambda: model(ids, use_cache=False, logits_to_keep=1).logits


def regard_watch(model: Any, ids: Tensor, shape: Shape, question: str) -> Answer:
    """`regard.watch`: weights of one layer, or sums taken while the model runs."""

    def head() -> Tensor:
        with regard.watch(model, only=layer_name(shape.layer)) as seen:
            model(ids, use_cache=False, logits_to_keep=1)
        return seen[layer_name(shape.layer)].weights(batch=0, head=shape.head)

    def sums() -> Tensor:
        sums_of_layers: list[Tensor] = []
        with regard.watch(
            model, on_call=lambda _, recorded: sums_of_layers.append(recorded.column_sums(batch=0))
        ):
            model(ids, use_cache=False, logits_to_keep=1)
        return torch.stack(sums_of_layers)

    return head if question == HEAD else sums


def eager(model: Any, ids: Tensor, shape: Shape, question: str) -> Answer:
    """transformers' eager attention with output_attentions=True: all weights of all layers."""
    eager_model = with_attention(model, "eager")

    def answer() -> Tensor:
        attentions = eager_model(ids, use_cache=False, logits_to_keep=1, output_attentions=True).attentions
        if question == HEAD:
            return attentions[shape.layer][0, shape.head]
        return torch.stack([weights[0].sum(-2, dtype=torch.float32) for weights in attentions])

    return answer


def attnread(model: Any, ids: Tensor, shape: Shape, question: str) -> Answer:
    """attnread: weights through identity values, one forward pass per head-dim tokens."""
    from attnread import extract_attention  # type: ignore[import-not-found]

    def head() -> Tensor:
        return extract_attention(model, {"input_ids": ids}, heads=[(shape.layer, shape.head)])[
            "text", shape.layer, shape.head
        ][0]

    def sums() -> Tensor:
        weights = extract_attention(model, {"input_ids": ids})
        rows = [
            weights["text", layer, head][0].sum(-2)
            for layer in range(shape.layers)
            for head in range(shape.heads)
        ]
        return torch.stack(rows).view(shape.layers, shape.heads, -1)

    return head if question == HEAD else sums


SYSTEMS: dict[str, Callable[..., Answer]] = {
    "regard.watch": regard_watch,
    "eager": eager,
    "attnread": attnread,
}
