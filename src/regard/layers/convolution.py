"""Convolution over time for sequences laid out (..., T, dim)."""

from __future__ import annotations

from torch import Tensor, nn

from regard.arguments import flag, integer
from regard.layers.linear import check_input


class Convolution(nn.Module):
    """1-D convolution, z_t = Σ_j W_j x_(t+j) over K = `kernel` tokens; zero padding keeps the length.

    The window is centred on t, or with `causal=True` ends at t. K · dim² parameters.
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
        check_input("input", x, self.dim)
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.weight.out_channels)
        flat = x.reshape(-1, *x.shape[-2:]).transpose(-1, -2)  # (batch, dim, T)
        out = self.weight(nn.functional.pad(flat, self.reach)).transpose(-1, -2)  # (batch, T, out_dim)
        return out.reshape(*x.shape[:-1], -1)
