"""A Llama-shaped model with random weights, and the attention of one of its layers recomputed in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regard
from regard.attention import Recorded

VOCABULARY = 1000


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    layers: int
    heads: int
    key_heads: int
    head_dim: int
    hidden: int
    dtype: torch.dtype

    @property
    def layer(self) -> int:
        """The layer that is watched."""
        return self.layers // 2

    @property
    def head(self) -> int:
        return self.heads // 2

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.layers} layers, {self.heads} heads, {self.key_heads} key heads, "
            f"head dim {self.head_dim}, hidden {self.hidden}, {dtype}"
        )


SHAPES = {
    "cpu": Shape(layers=4, heads=16, key_heads=4, head_dim=64, hidden=1024, dtype=torch.float32),
    "cuda": Shape(layers=4, heads=32, key_heads=8, head_dim=128, hidden=4096, dtype=torch.bfloat16),
}


def build_model(shape: Shape, device: str, attention: str) -> Any:
    """The model in evaluation mode; with `attention` "regard" after `regard.huggingface.register()`."""
    import transformers

    if attention == "regard":
        from regard import huggingface  # type: ignore[attr-defined]

        huggingface.register()
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=shape.hidden, intermediate_size=shape.hidden * 11 // 4,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads, head_dim=shape.head_dim, max_position_embeddings=1 << 17,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=shape.dtype, attn_implementation=attention
        )
    return model.eval().requires_grad_(False)


def with_attention(model: Any, attention: str) -> Any:
    """The model with another attention and the same weights, which are shared."""
    import transformers

    with torch.device("meta"):
        config = copy.deepcopy(model.config)  # from_config stores the attention in it
        copied_model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=model.dtype, attn_implementation=attention
        )
    copied_model.load_state_dict(model.state_dict(), assign=True, strict=False)
    copied_model.model.rotary_emb = model.model.rotary_emb  # its frequencies are not among the weights
    return copied_model.eval().requires_grad_(False)


def random_tokens(T: int, device: str) -> Tensor:
    """One sequence of random token ids, (1, T)."""
    return torch.randint(VOCABULARY, (1, T), generator=torch.Generator().manual_seed(T)).to(device)


def layer_name(layer: int) -> str:
    """The module name of a layer's attention."""
    return f"model.layers.{layer}.self_attn"


@torch.no_grad()
def queries_and_keys(model: Any, ids: Tensor, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of one head, (T, dim), as the model computes them, in float64."""
    recorded_vectors: list[tuple[Tensor, Tensor]] = []

    def record(name: str, recorded: Recorded) -> None:
        call = recorded.call
        recorded_vectors.append(
            (call.query[0, head].double(), call.key[0, head * call.key.shape[1] // call.heads].double())
        )

    with regard.watch(model, only=layer_name(layer), on_call=record):
        model(ids, use_cache=False, logits_to_keep=1)
    return recorded_vectors[0]


def reference_rows(q: Tensor, k: Tensor, rows: Tensor) -> Tensor:
    """Causal softmax attention of some queries in float64, (rows, T)."""
    scores = q[rows] @ k.T / q.shape[-1] ** 0.5
    hidden = torch.arange(len(k), device=k.device) > rows[:, None].to(k.device)
    return torch.softmax(scores.masked_fill_(hidden, -torch.inf), -1)


def reference_column_sums(q: Tensor, k: Tensor) -> Tensor:
    """Column sums of the full matrix in float64, (T,), computed in blocks of rows."""
    total = torch.zeros(len(k), dtype=torch.float64, device=k.device)
    for rows in torch.arange(len(q)).split(512):
        total += reference_rows(q, k, rows.to(k.device)).sum(0)
    return total
