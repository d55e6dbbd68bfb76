"""Normalisers: from scores to attention weights, row by row.

A normaliser maps (scores, allowed) to weights of the same shape. Masked weights are 0, and a row with no
allowed key is all zeros with zero gradient, never NaN.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from regard.attention.entmax import entmax
from regard.attention.grid import Index, take
from regard.attention.kernel_hints import reset_inherited_hints
from regard.attention.mask import tensor_signature
from regard.attention.tracing import broadcasts, can_read_values
from regard.errors import DeviceError, OptionError, ShapeError


class Normalizer:
    """Base class of normalisers. Rows depend only on allowed scores: kernels may leave out masked keys."""

    zero_at_neg_inf = True  # `rows` gives a score of −∞ the weight 0 exactly
    allows_empty_rows = False  # also in rows that are all −∞
    is_softmax = False  # exp(e/τ) / Σ exp(e/τ), τ in `temperature`

    def __init_subclass__(cls, **more: object) -> None:
        super().__init_subclass__(**more)
        hints = {"zero_at_neg_inf": False, "allows_empty_rows": False, "is_softmax": False}
        reset_inherited_hints(
            cls,
            ("rows", "__call__"),
            hints,
            {"signature": Normalizer.signature, "tensors": Normalizer.tensors},
        )

    def __call__(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        if allowed is None:
            return self.rows(scores)
        hidden = ~allowed
        masked = scores.masked_fill(hidden, -math.inf)
        empty = hidden.all(-1, keepdim=True)
        if self.zero_at_neg_inf and (
            self.allows_empty_rows or (can_read_values(empty) and not bool(empty.any()))
        ):
            return self.rows(masked)
        # Empty rows are filled with zeros first: −∞ − −∞ would be NaN in the forward or backward pass.
        return self.rows(masked.masked_fill(empty, 0.0)).masked_fill(hidden, 0.0)

    def rows(self, scores: Tensor) -> Tensor:
        """Weights of rows with at least one finite score each; −∞ is a masked key."""
        raise NotImplementedError

    def of_heads(self, head: Index) -> Normalizer:
        """The normaliser for some heads (None: all)."""
        return self

    def check(self, heads: int, device: torch.device) -> None:
        """Raise if this normaliser does not fit the call."""

    def signature(self) -> Hashable | None:
        """A key for cached plans: everything that checks and planning read. None: plan every call."""
        return None

    def tensors(self) -> tuple[Tensor, ...] | None:
        """All tensors this normaliser reads beside the scores; None: unknown."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Softmax(Normalizer):
    """a_j = exp(e_j/τ) / Σ exp(e/τ).

    >>> q, k = torch.ones(1, 1, 1, 4), torch.zeros(1, 1, 2, 4)
    >>> regard.weights(q, k, normalize=regard.Softmax(temperature=2.0)).tolist()
    [[[[0.5, 0.5]]]]

    Attention sinks, one number per head, add exp(sink/τ) to the sum (GPT-OSS; Xiao et al. 2024): an extra key
    that takes weight and has no value, so a row may sum to less than 1. They may be trained. The kernels
    `reference`, `tiled` and, on a GPU, `triton` support them.
    """

    zero_at_neg_inf = True
    is_softmax = True

    def __init__(self, temperature: float = 1.0, *, sinks: Tensor | None = None) -> None:
        if (
            isinstance(temperature, Tensor)
            or not isinstance(temperature, int | float)
            or not 0 < temperature < math.inf
        ):
            raise OptionError(
                f"temperature must be a number above 0, got {temperature!r}; for τ → 0 use Hard()"
            )
        if sinks is not None and not (
            isinstance(sinks, Tensor) and sinks.ndim == 1 and sinks.is_floating_point()
        ):
            is_tensor = isinstance(sinks, Tensor)
            got = f"{sinks.dtype} of shape {tuple(sinks.shape)}" if is_tensor else repr(sinks)[:60]
            raise OptionError(
                f"sinks must be a tensor of real numbers, one per head, shape (heads,), got {got}"
            )
        self.temperature, self.sinks = float(temperature), sinks
        if sinks is not None:
            self.is_softmax = False  # kernels that compute a plain softmax refuse the call

    def rows(self, scores: Tensor) -> Tensor:
        sinks = None if self.sinks is None else self.sinks.to(scores.dtype)[:, None, None]  # (heads, 1, 1)
        if self.temperature != 1.0:
            # Subtracted first: a low temperature cannot overflow.
            top = scores.detach().amax(-1, keepdim=True)
            scores = (scores - top) / self.temperature
            sinks = None if sinks is None else (sinks - top) / self.temperature
        if sinks is None:
            return torch.softmax(scores, -1)
        # exp(e_j) / (Σ exp(e) + exp(sink)) = softmax(e)_j · σ(log Σ exp(e) − sink)
        return torch.softmax(scores, -1) * torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sinks)

    def of_heads(self, head: Index) -> Normalizer:
        if self.sinks is None or head is None or self.sinks.shape[0] == 1:
            return self
        copied = copy.copy(self)
        copied.sinks = take(self.sinks, 0, head)
        return copied

    def check(self, heads: int, device: torch.device) -> None:
        if self.sinks is None:
            return
        if not broadcasts(self.sinks.shape[0], heads):
            raise ShapeError(
                f"sinks were given for {self.sinks.shape[0]} heads and the call has {heads}; "
                f"give {heads} numbers"
            )
        if self.sinks.device != device:
            raise DeviceError(
                f"the sinks are on {self.sinks.device} and the query on {device}; move one with .to()"
            )

    def signature(self) -> Hashable | None:
        return Softmax, self.temperature, None if self.sinks is None else tensor_signature(self.sinks)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return () if self.sinks is None else (self.sinks,)

    def __repr__(self) -> str:
        options = [f"temperature={self.temperature:g}"] if self.temperature != 1.0 else []
        return f"Softmax({', '.join(options + (['sinks'] if self.sinks is not None else []))})"


class Raw(Normalizer):
    """No normaliser: the weights are the energies themselves."""

    def __call__(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, 0.0)

    def signature(self) -> Hashable | None:
        return Raw

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()


class Sigmoid(Normalizer):
    """a_j = 1/(1 + exp(−e_j)), independently for each key; rows need not sum to 1."""

    zero_at_neg_inf = True
    allows_empty_rows = True

    def rows(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores)

    def signature(self) -> Hashable | None:
        return Sigmoid

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()


class Hard(Normalizer):
    """Hard attention: weight 1 on the first maximum. No gradient reaches the energies."""

    zero_at_neg_inf = True

    def rows(self, scores: Tensor) -> Tensor:
        top = scores == scores.amax(-1, keepdim=True)
        first = top & (top.cumsum(-1) == 1)
        has_nan = scores.isnan().any(-1, keepdim=True)
        return first.to(scores.dtype).masked_fill(has_nan, math.nan)

    def signature(self) -> Hashable | None:
        return Hard

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()


class Entmax(Normalizer):
    """α-entmax (Peters, Niculae & Martins 2019): a_j = [(α−1)e_j − τ]₊^(1/(α−1)), τ so that rows sum to 1.

    α = 1 is softmax, α = 2 is sparsemax; larger α gives more weights that are exactly 0. entmax.py finds τ.
    Gradients of any order are those of the exact solution.
    """

    zero_at_neg_inf = True

    def __init__(self, alpha: float = 1.5) -> None:
        if isinstance(alpha, Tensor) or not isinstance(alpha, int | float) or not 1 <= alpha < math.inf:
            raise OptionError(f"alpha must be a number of at least 1, got {alpha!r}")
        self.alpha = float(alpha)

    def rows(self, scores: Tensor) -> Tensor:
        # A weight is a power of 1/(α − 1), which multiplies rounding errors. Below this α, softmax is closer.
        if self.alpha < 1 + 1e-8:
            return torch.softmax(scores, -1)
        return entmax(scores, self.alpha)

    def signature(self) -> Hashable | None:
        return Entmax

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return f"Entmax(alpha={self.alpha:g})"


class Sparsemax(Entmax):
    """Projection of the energies onto the simplex (Martins & Astudillo 2016): entmax with α = 2.

    >>> q, k = torch.ones(1, 1, 1, 1), torch.tensor([[[[1.0], [0.5], [-3.0]]]])
    >>> regard.weights(q, k, normalize=regard.Sparsemax()).tolist()
    [[[[0.75, 0.25, 0.0]]]]
    """

    def __init__(self) -> None:
        super().__init__(2.0)

    def signature(self) -> Hashable | None:
        return Sparsemax

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return "Sparsemax()"


class CustomNormalizer(Normalizer):
    """A function of the scores (−∞ where masked) that returns weights of the same shape.

    It always gets all keys.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def rows(self, scores: Tensor) -> Tensor:
        weights = self.function(scores)
        if not isinstance(weights, Tensor) or weights.shape != scores.shape:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ShapeError(f"the normaliser function returned {got} and must return {tuple(scores.shape)}")
        return weights

    def __repr__(self) -> str:
        return f"CustomNormalizer({getattr(self.function, '__name__', type(self.function).__name__)})"
