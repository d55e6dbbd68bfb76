"""The inputs of a case and its reference output.

Masks and biases come in two forms: as plain formulas for the peers, and as regard's objects. The reference
is computed in float64 by regard's reference kernel.
"""

from __future__ import annotations

import copy
import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import regard
from benchmarks.attend.cases import Case
from regard.attention import Cosine, Distance, Documents, Energy, Entmax, RelativeBuckets, Sigmoid

SEED = 0
WINDOW = 256
ONE_SEQUENCE = 4096  # from this length on, the truth is computed for the first sequence only …
NO_GRADIENTS = 4096  # … and without gradients: they would need tens of GB in float64


class Problem:
    """Inputs (B, H, T, D), masks and biases of a case. `leaves` get gradients in a training step."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(SEED)
        self.case = case
        kind = {"dtype": case.dtype, "device": case.device}
        scale = 0.5 if case.energy == "distance" else 1.0  # with 1, one key would get all the weight
        keys = (case.B, case.heads_of_keys, case.T, case.D)
        self.q = (torch.randn(case.B, case.H, case.T, case.D) * scale).to(**kind)
        self.k, self.v = (torch.randn(keys) * scale).to(**kind), torch.randn(keys).to(**kind)
        self.grad = torch.randn(case.B, case.H, case.T, case.D).to(**kind)
        self.lengths = torch.randint(case.T // 4, case.T + 1, (case.B,)).to(case.device)
        starts = torch.rand(case.B, case.T) < 8 / case.T  # about eight documents to a row
        self.ids = starts.cumsum(-1).to(case.device)
        energy: Any = _energy(case)  # Any: its parameters differ from energy to energy
        self.energy = energy.to(**kind) if case.energy in ("bilinear", "additive") else energy
        self.table: Any = RelativeBuckets(case.H).to(**kind) if case.bias == "T5" else None
        bias: Any = torch.randn(case.H, case.T, case.T).to(**kind) if case.bias == "dense" else None
        self.dense_bias = bias
        for x in self.leaves.values():
            x.requires_grad_(case.train)

    @cached_property
    def leaves(self) -> dict[str, Tensor]:
        leaves = {"q": self.q, "k": self.k, "v": self.v}
        if isinstance(self.energy, nn.Module):
            leaves |= {f"energy.{name}": x for name, x in self.energy.named_parameters()}
        if self.table is not None:
            leaves["table"] = self.table.weight
        if self.dense_bias is not None:
            leaves["dense"] = self.dense_bias
        return leaves

    # -------------------------------------------------------------------- masks and biases as plain formulas
    def allowed(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """True where query i of sequence b may attend to key j; the signature of Flex's mask_mod."""
        mask = self.case.mask
        if mask == "causal":
            return i >= j
        if mask == f"window {WINDOW}":
            return (i - j).abs() <= WINDOW // 2
        if mask == f"causal & window {WINDOW}":
            return (i >= j) & (i - j < WINDOW)
        if mask == "padding":
            return j < self.lengths[b]
        if mask == "documents":
            return self.ids[b, i] == self.ids[b, j]
        raise ValueError(f"no mask is called {mask!r}")

    def added(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The bias of head h for query i and key j."""
        if self.case.bias == "ALiBi":
            return -self.slopes[h] * (i - j).abs()
        if self.case.bias == "T5":
            return self.table.weight[self.buckets[j - i + self.case.T - 1], h]
        return self.dense_bias[h, i, j]

    @cached_property
    def slopes(self) -> Tensor:
        return torch.tensor(
            [2 ** (-8 * (h + 1) / self.case.H) for h in range(self.case.H)], device=self.case.device
        )

    @cached_property
    def buckets(self) -> Tensor:
        """The bucket of each distance from −(T−1) to T−1."""
        return self.table.bucket(torch.arange(1 - self.case.T, self.case.T, device=self.case.device))

    @cached_property
    def axes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Indices of sequence, head, query and key that broadcast to (B, H, T, T)."""
        case = self.case
        sizes = (case.B, case.H, case.T, case.T)
        b, h, i, j = (
            torch.arange(n, device=case.device).view(-1, *(1,) * (3 - d)) for d, n in enumerate(sizes)
        )
        return b, h, i, j

    @cached_property
    def dense_mask(self) -> Tensor | None:
        """(B or 1, 1, T or 1, T), True where allowed; None without a mask."""
        return None if self.case.mask == "none" else self.allowed(*self.axes).view(-1, *self._mask_shape)

    @property
    def _mask_shape(self) -> tuple[int, int, int]:
        return (1, 1 if self.case.mask == "padding" else self.case.T, self.case.T)

    def bias_values(self) -> Tensor | None:
        """The bias without the mask, (1, H, T, T), with its graph; None without one."""
        case = self.case
        if case.bias == "none":
            return None
        if case.bias == "dense":
            return self.dense_bias[None]
        if case.bias == "T5":  # one lookup of rows for all heads, not one per head
            return self.table.weight[self.bucket_of_pair].permute(2, 0, 1)[None]
        return self.added(*self.axes[1:])[None].to(case.dtype)

    @property
    def learns_bias(self) -> bool:
        return self.case.train and self.case.bias in ("dense", "T5")

    @cached_property
    def fixed(self) -> Tensor | None:
        """Mask and bias as one tensor for SDPA: boolean, or a bias with −∞; no bias if it is learned."""
        with torch.no_grad():
            bias = None if self.learns_bias else self.bias_values()
            if bias is None or self.dense_mask is None:
                return self.dense_mask if bias is None else bias
            return bias.masked_fill(~self.dense_mask, -math.inf)

    @cached_property
    def bucket_of_pair(self) -> Tensor:
        _, _, i, j = self.axes
        return self.buckets[j - i + self.case.T - 1]

    def pairs(self) -> float:
        """Pairs of query and key that the mask allows, per head, over all sequences; half for causal."""
        case = self.case
        if case.mask in ("none", "causal"):
            return case.B * case.T**2 * (0.5 if case.mask == "causal" else 1.0)
        allowed = self.dense_mask
        assert allowed is not None
        return float(allowed.expand(-1, 1, case.T, -1).sum()) * case.B / len(allowed)

    def flops(self) -> float | None:
        """4·D per pair and head, 3.5 times that with the backward pass; None for the additive energy."""
        case = self.case
        return (
            None
            if case.energy == "additive"
            else 4 * case.D * case.H * self.pairs() * (3.5 if case.train else 1.0)
        )

    # ------------------------------------------------------------------- masks and biases as regard's objects
    def options(self, sequences: slice = slice(None)) -> dict:
        """The options of regard.attend for these sequences of the batch."""
        case = self.case
        mask = {
            "none": lambda: None,
            "causal": regard.Causal,
            f"window {WINDOW}": lambda: regard.Window.centered(WINDOW),
            f"causal & window {WINDOW}": lambda: regard.Causal() & regard.Window(WINDOW - 1),
            "padding": lambda: regard.Padding(self.lengths[sequences]),
            "documents": lambda: Documents(self.ids[sequences]),
        }[case.mask]()
        bias = {"none": None, "ALiBi": regard.ALiBi(case.H), "T5": self.table, "dense": self.dense_bias}[
            case.bias
        ]
        normalize = {
            "softmax": regard.Softmax,
            "sparsemax": regard.Sparsemax,
            "entmax 1.5": Entmax,
            "sigmoid": Sigmoid,
        }[case.normalize]()
        return {
            "energy": self.energy,
            "mask": mask,
            "bias": bias,
            "normalize": normalize,
            "softcap": case.softcap,
        }

    def truth(self) -> dict[str, Tensor]:
        """The output and, when training, the gradients in float64, sequence by sequence to save memory."""
        exact = copy.copy(self)
        exact.energy, exact.table = copy.deepcopy(self.energy), copy.deepcopy(self.table)
        for module in (exact.energy, exact.table):
            if isinstance(module, nn.Module):
                module.double()
        if self.dense_bias is not None:
            exact.dense_bias = self.dense_bias.detach().double().requires_grad_(self.case.train)
        count = 1 if self.case.T >= ONE_SEQUENCE else self.case.B
        parts = [self._reference_of_sequence(exact, slice(b, b + 1)) for b in range(count)]
        shared = [name for name in parts[0] if name not in ("out", "q", "k", "v")]
        truth = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name not in shared}
        if count == self.case.B:
            truth |= {name: torch.stack([part[name] for part in parts]).sum(0) for name in shared}
        return truth

    def _reference_of_sequence(self, exact: Problem, sequence: slice) -> dict[str, Tensor]:
        learn = self.case.train and self.case.T < NO_GRADIENTS
        exact.q, exact.k, exact.v = (
            x.detach()[sequence].double().requires_grad_(learn) for x in (self.q, self.k, self.v)
        )
        exact.__dict__.pop("leaves", None)
        with torch.set_grad_enabled(learn):
            out = regard.attend(exact.q, exact.k, exact.v, kernel="reference", **exact.options(sequence))
            if not learn:
                return {"out": out}
            grads = torch.autograd.grad(out, list(exact.leaves.values()), self.grad[sequence].double())
        return {"out": out.detach(), **dict(zip(exact.leaves, grads, strict=True))}


def _energy(case: Case) -> Energy:
    if case.energy == "cosine":
        return Cosine(scale=10.0)
    if case.energy == "bilinear":
        return regard.Bilinear(case.D, rank=case.D // 4, scale=1 / math.sqrt(case.D // 4))
    if case.energy == "distance":
        return Distance()
    if case.energy == "additive":
        return regard.Additive(case.D)
    return regard.ScaledDot()
