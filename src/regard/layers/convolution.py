"""Convolution over time for sequences laid out (..., T, dim)."""

from __future__ import annotations

from torch import Tensor, nn

from regard.arguments import flag, integer
from regard.errors import ShapeError


class Convolution(nn.Module):
    """z_t = Σ_j W_j x_(t+j) over `kernel` neighbours, length kept by zero padding: K·M² parameters.

    Centred, or with `causal=True` the last `kernel` tokens up to t.
    """

    def __init__(
        self, dim: int, kernel: int, *, out_dim: int | None = None, bias: bool = True, causal: bool = False
    ) -> None:
        super().__init__()
        self.dim, self.kernel, self.causal = (
            integer("dim", dim),
            integer("kernel", kernel),
            flag("causal", causal),
        )
        wide = dim if out_dim is None else integer("out_dim", out_dim)
        self.weight = nn.Conv1d(dim, wide, kernel, bias=flag("bias", bias))

    @property
    def reach(self) -> tuple[int, int]:
        """How many tokens to the left and to the right z_t sees."""
        left = self.kernel - 1 if self.causal else self.kernel // 2
        return left, self.kernel - 1 - left

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[-1] != self.dim:
            raise ShapeError(
                f"this layer's input is (…, T, {self.dim}), got {tuple(x.shape)}; make the layer for {x.shape[-1]}"
            )
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.weight.out_channels)
        flat = x.reshape(-1, *x.shape[-2:]).transpose(-1, -2)  # (batch, dim, T)
        out = self.weight(nn.functional.pad(flat, self.reach)).transpose(-1, -2)
        return out.reshape(*x.shape[:-1], -1)
