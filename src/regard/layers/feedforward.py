"""The position-wise feed-forward sublayer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from regard.errors import OptionError
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear, affine, is_plain

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "gelu-tanh": partial(nn.functional.gelu, approximate="tanh"),  # GPT-2's (Hendrycks & Gimpel 2016, eq. 2)
    "swish": nn.functional.silu,  # Marian's
    "tanh": torch.tanh,
    "swiglu": nn.functional.silu,  # silu(x W) · x V; W and V are the halves of W1 (Shazeer 2020)
}


class FeedForward(nn.Module):
    """f(x W₁ + b₁) W₂ + b₂ (Vaswani et al. 2017, eq. 2); "swiglu" gates it."""

    def __init__(self, dim: int, inner: int, *, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise OptionError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        self.activation = activation
        self.W1 = Linear(dim, 2 * inner if activation == "swiglu" else inner)
        self.W2 = Linear(inner, dim)
        self.dropout = Dropout(dropout)
        for linear in (self.W1, self.W2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        f = ACTIVATIONS[self.activation]
        if self.activation == "relu" and is_plain(self.W1):
            h = affine(x, self.W1.weight, self.W1.bias, relu=True)
        elif self.activation == "swiglu":
            a, b = self.W1(x).chunk(2, -1)
            h = f(a) * b
        else:
            h = f(self.W1(x))
        return self.W2(self.dropout(h))
