"""Residual connections with layer normalisation before or after the sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.attention.precision import HALF
from regard.errors import OptionError
from regard.layers.dropout import Dropout

PLACES = ("post", "pre", "none")


class LayerNorm(nn.LayerNorm):
    """LayerNorm that keeps half-precision inputs in half precision under autocast (torch returns float32).

    The statistics are computed in float32 either way.
    """

    def forward(self, input: Tensor) -> Tensor:  # torch's argument name
        if (
            input.dtype not in HALF
            or input.device.type == "meta"
            or not torch.is_autocast_enabled(input.device.type)
        ):
            return super().forward(input)
        weight, bias = (None if x is None else x.to(input.dtype) for x in (self.weight, self.bias))
        with torch.autocast(input.device.type, enabled=False):
            return nn.functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


NORMS: dict[str, Callable[..., nn.Module]] = {"layer": LayerNorm, "rms": nn.RMSNorm}


class Residual(nn.Module):
    """post: norm(x + f(x)) (Vaswani et al. 2017); pre: x + f(norm(x)) (Xiong et al. 2020); none: x + f(x)."""

    def __init__(
        self,
        dim: int,
        *,
        norm: str = "post",
        norm_kind: str = "layer",
        norm_eps: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.place = norm
        self.norm = make_norm(dim, norm, norm_kind, norm_eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.place == "pre":
            return x + self.dropout(sublayer(self.norm(x)))
        y = self.dropout(sublayer(x))
        return self.norm((x + y).to(y.dtype))  # under autocast, y and so the output are half precision


def make_norm(dim: int, place: str, kind: str, eps: float | None = None) -> nn.Module:
    """The norm of a sublayer, nn.Identity for place "none".

    `eps` is added to the variance; None: torch's default.
    """
    if place not in PLACES:
        raise OptionError(f"norm must be one of {', '.join(PLACES)}, got {place!r}")
    if kind not in NORMS:
        raise OptionError(f"norm_kind must be one of {', '.join(NORMS)}, got {kind!r}")
    if place == "none":
        return nn.Identity()
    return NORMS[kind](dim) if eps is None else NORMS[kind](dim, eps=eps)
