"""Convolution over time for sequences laid out (..., T, dim)."""

from __future__ import annotations

from torch import Tensor, nn

from regard.arguments import flag, integer
from regard.errors import ShapeError


class Convolution(nn.Module):
    """1-D convolution, z_t = Σ_j W_j x_(t+j) over `kernel` tokens; zero padding keeps the length. K·M²
    parameters.

    The window is centred on t, or with `causal=True` ends at t.
    """

    def __init__(
        self, dim: int, kernel: int, *, out_dim: int | None = None, bias: bool = True, causal: bool = False
    ) -> None:
        super().__init__()
        self.dim, self.kernel = integer("dim", dim), integer("kernel", kernel)
        self.causal = flag("causal", causal)
        out_dim = dim if out_dim is None else integer("out_dim", out_dim)
        self.weight = nn.Conv1d(dim, out_dim, kernel, bias=flag("bias", bias))

    @property
    def reach(self) -> tuple[int, int]:
        """Number of tokens to the left and right of t that z_t depends on."""
        left = self.kernel - 1 if self.causal else self.kernel // 2
        return left, self.kernel - 1 - left

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[-1] != self.dim:
            shape = tuple(x.shape)
            raise ShapeError(
                f"this layer's input is (…, T, {self.dim}), got {shape}; make the layer for {x.shape[-1]}"
            )
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.weight.out_channels)
        flat = x.reshape(-1, *x.shape[-2:]).transpose(-1, -2)  # (batch, dim, T)
        out = self.weight(nn.functional.pad(flat, self.reach)).transpose(-1, -2)
        return out.reshape(*x.shape[:-1], -1)
