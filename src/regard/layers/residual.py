"""A sublayer with a way around it, and where the normalisation stands."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.errors import OptionError
from regard.layers.dropout import Dropout

NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
PLACES = ("post", "pre", "none")


class Residual(nn.Module):
    """post: norm(x + f(x)) (Vaswani et al. 2017); pre: x + f(norm(x)) (Xiong et al. 2020); none: x + f(x)."""

    def __init__(
        self, dim: int, *, norm: str = "post", norm_kind: str = "layer", norm_eps: float | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.place = norm
        self.norm = make_norm(dim, norm, norm_kind, norm_eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.place == "pre":
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


def make_norm(dim: int, place: str, kind: str, eps: float | None = None) -> nn.Module:
    """The normalisation of a sublayer, nothing when the place is none. `eps` is added to the variance; None: torch's own."""
    if place not in PLACES:
        raise OptionError(f"norm must be one of {', '.join(PLACES)}, got {place!r}")
    if kind not in NORMS:
        raise OptionError(f"norm_kind must be one of {', '.join(NORMS)}, got {kind!r}")
    if place == "none":
        return nn.Identity()
    return NORMS[kind](dim) if eps is None else NORMS[kind](dim, eps=eps)
