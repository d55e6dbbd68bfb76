"""Cross-entropy of the next token without the batch × vocabulary tensor: scores exist only for a chunk of
rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention.tracing import is_fake, transform
from regard.data.tokenizer import PAD
from regard.models import fused_loss
from regard.models.fused_loss import product

CHUNK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 27}  # scores of a chunk: those of a CPU fit into its cache


@dataclass
class Loss:
    """Sums over the tokens of a batch.

    Attributes:
        total: the training loss, with label smoothing and agreement.
        nll: −Σ log p of the labels, without gradient.
        tokens: number of labels.
        state: the state of a recurrent language model after the batch.
    """

    total: Tensor
    nll: Tensor
    tokens: int | Tensor
    state: Any = None


@dataclass(frozen=True)
class Objective:
    """Label smoothing ε (Szegedy et al. 2016) and the strength α of R-Drop (Liang et al. 2021)."""

    smoothing: float = 0.0
    agreement: float = 0.0

    @property
    def passes(self) -> int:
        """Forward passes over the same tokens, under different dropout."""
        return 2 if self.agreement else 1


def cross_entropy(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    bias: Tensor | None = None,
    agreement: float = 0.0,
) -> Loss:
    """Σ −log softmax(features weightᵀ + bias)[label] over labels that are not PAD.

    Label smoothing ε gives (1 − ε) to the label and ε to the mean over all tokens. With `agreement` α, the
    features are (2, …, D), two passes over the same tokens under different dropout, and the loss is R-Drop's:
    the mean of both cross-entropies, plus α/2 times the mean of KL(p₁‖p₂) and KL(p₂‖p₁).

    Args:
        features: (…, D), or (2, …, D) with `agreement`.
        weight: (V, D), the output matrix.
        labels: (…), token ids.
        smoothing: label smoothing ε.
        bias: (V,), the output bias.
        agreement: strength α of R-Drop.
    """
    objective = Objective(smoothing, agreement)
    features, labels = features.reshape(objective.passes, -1, features.shape[-1]), labels.reshape(-1)
    keep = labels != PAD
    plain = transform() is not None or is_fake(features)
    if not plain and fused_loss.can_fuse(features, weight, agreement):
        total, nll = fused_loss.fused_cross_entropy(features[0], weight, bias, labels, smoothing)
        return Loss(total, nll, keep.sum())
    if features.device.type == "cpu" and not plain:  # skip padding; a GPU would have to wait for the count
        features, labels, keep = features[:, keep], labels[keep], None
    if torch.is_autocast_enabled(features.device.type) and features.device.type != "meta":
        dtype = torch.get_autocast_dtype(features.device.type)
        features, weight = features.to(dtype), weight.to(dtype)
    compute = _plain if plain else _Chunked.apply
    total, nll = compute(features, weight, bias, labels, keep, objective)
    return Loss(total, nll, len(labels) if keep is None else keep.sum())


def cross_entropy_of_scores(
    scores: Tensor, labels: Tensor, smoothing: float = 0.0, agreement: float = 0.0
) -> Loss:
    """The same loss from scores (…, V), or (2, …, V) with `agreement`: for output layers that are not a plain
    matrix.
    """
    objective = Objective(smoothing, agreement)
    scores, labels = scores.reshape(objective.passes, -1, scores.shape[-1]), labels.reshape(-1)
    keep = labels != PAD
    return Loss(*_of_scores(scores.to(_accumulator(scores)), labels, keep, objective), keep.sum())


def _plain(
    x: Tensor, w: Tensor, b: Tensor | None, labels: Tensor, keep: Tensor | None, objective: Objective
) -> tuple[Tensor, Tensor]:
    """What `_Chunked` computes, on all scores: for second derivatives, torch.func and fake tensors."""
    scores = (x @ w.t()).to(_accumulator(x))
    return _of_scores(scores if b is None else scores + b, labels, keep, objective)


def _of_scores(
    scores: Tensor, labels: Tensor, keep: Tensor | None, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Loss and −log p, summed over tokens, of scores (passes, rows, vocabulary)."""
    log_p, smoothing = torch.log_softmax(scores, -1), objective.smoothing
    nll = -log_p.gather(-1, labels.expand(len(scores), -1)[..., None])[..., 0]  # (passes, rows)
    loss = (1 - smoothing) * nll - smoothing * log_p.mean(-1)
    if objective.agreement:
        one, other = log_p
        both_ways = ((one.exp() - other.exp()) * (one - other)).sum(-1)  # KL in both directions
        loss = loss + objective.agreement / 4 * both_ways
    if keep is not None:
        loss, nll = loss.where(keep, 0.0), nll.where(keep, 0.0)
    return loss.sum() / len(scores), nll.detach().sum() / len(scores)


def _accumulator(x: Tensor) -> torch.dtype:
    """The dtype of scores and sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class _Chunk:
    """Some rows of a batch, both passes one after the other: n = passes · rows."""

    rows: slice
    features: Tensor  # (n, D)
    label: Tensor  # (n, 1)
    inside: Tensor | None  # (n, 1): 1 at tokens, 0 at padding; None: all are tokens


def _chunks(x: Tensor, labels: Tensor, keep: Tensor | None, vocabulary: int) -> Iterator[_Chunk]:
    passes = len(x)
    size = max(1, CHUNK_SCORES.get(x.device.type, 1 << 22) // (vocabulary * passes))
    for start in range(0, len(labels), size):
        rows = slice(start, start + size)
        inside = None if keep is None else keep[rows, None].to(_accumulator(x)).repeat(passes, 1)
        yield _Chunk(rows, x[:, rows].flatten(0, 1), labels[rows, None].repeat(passes, 1), inside)


class _Gradients:
    """Gradients by features, weight and bias, summed over chunks; None where none is needed."""

    def __init__(self, x: Tensor, w: Tensor, needed: Sequence[bool], mean: Tensor, smoothing: float) -> None:
        exact = _accumulator(x)
        self.dx = torch.empty_like(x) if needed[0] else None
        self.dw = torch.zeros(w.shape, dtype=exact, device=w.device) if needed[1] else None
        self.db = torch.zeros(len(w), dtype=exact, device=w.device) if needed[2] else None
        self.w, self.mean, self.smoothing = w, mean, smoothing
        self.features = torch.zeros(x.shape[-1], dtype=exact, device=x.device)  # their sum over rows

    def __bool__(self) -> bool:
        return any(gradient is not None for gradient in (self.dx, self.dw, self.db))

    def add(self, chunk: _Chunk, slope: Tensor) -> None:
        """Add a chunk, given the gradient by its scores without the −ε/V of smoothing, which is subtracted
        here.
        """
        inside, features, share = chunk.inside, chunk.features, self.smoothing / len(self.w)
        if self.dx is not None:
            dx = torch.mm(slope, self.w).sub_(self.smoothing * self.mean)
            dx = dx if inside is None else dx.mul_(inside)
            self.dx[:, chunk.rows] = dx.view(len(self.dx), -1, dx.shape[-1])
        if self.db is not None:
            count = len(slope) if inside is None else inside.sum()
            self.db += (slope if inside is None else slope * inside).sum(0) - share * count
        if self.dw is not None:
            features = features if inside is None else features * inside.to(features.dtype)
            self.features += features.sum(0, dtype=self.features.dtype)
            if self.dw.dtype == slope.dtype:
                self.dw.addmm_(slope.t(), features)
            else:
                self.dw += product(slope.t(), features, self.dw.dtype)

    def finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if self.dw is not None:
            self.dw -= self.smoothing / len(self.w) * self.features
        return self.dx, self.dw, self.db


class _Chunked(torch.autograd.Function):
    """Forms the gradient of a chunk while its scores exist, so that the backward pass computes nothing again.

    Under create_graph=True the backward pass differentiates `_plain` instead, so second derivatives are
    exact.
    """

    @staticmethod
    def forward(ctx, x, w, b, labels, keep, objective):  # noqa: ANN001, ANN205
        exact, passes = _accumulator(x), len(x)
        mean = w.mean(0, dtype=exact)
        gradients = _Gradients(x, w, ctx.needs_input_grad, mean, objective.smoothing)
        total, nll = (torch.zeros((), dtype=exact, device=x.device) for _ in range(2))
        for chunk in _chunks(x, labels, keep, len(w)):
            scores = product(chunk.features, w.t(), exact)
            if b is not None:
                scores += b
            level = chunk.features.to(exact) @ mean + (0 if b is None else b.mean())  # mean score of each row
            dtype = x.dtype if gradients else None
            chunk_total, chunk_nll, slope = _chunk_loss(scores, chunk, level[:, None], objective, dtype)
            total += chunk_total / passes
            nll += chunk_nll / passes
            if slope is not None:
                gradients.add(chunk, slope)
        ctx.save_for_backward(*gradients.finish(), x, w, b, labels, keep)
        ctx.objective = objective
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx, grad: Tensor, _):  # noqa: ANN001, ANN205
        *gradients, x, w, b, labels, keep = ctx.saved_tensors
        if torch.is_grad_enabled():
            needed = ctx.needs_input_grad[:3]
            plain = partial(_plain, labels=labels, keep=keep, objective=ctx.objective)
            gradients = fused_loss.differentiable_gradient(plain, grad, (x, w, b), needed)
        else:
            scale = grad / len(x)
            gradients = [
                None if gradient is None else (gradient * scale.to(gradient.dtype)).to(tensor.dtype)
                for gradient, tensor in zip(gradients, (x, w, b), strict=True)
            ]
        return *gradients, None, None, None


def _chunk_loss(
    scores: Tensor, chunk: _Chunk, level: Tensor, objective: Objective, to: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Loss and −log p of a chunk, summed over its tokens, and the gradient by its scores in dtype `to` unless
    it is None.

    `level` is the mean of each row's scores. The gradient lacks what is cheaper to apply to its products:
    −ε/V of smoothing at every score, and the zeros of padding rows.
    """
    smoothing, label = objective.smoothing, chunk.label
    log_p = torch.log_softmax(scores, -1)
    nll = -log_p.gather(-1, label)
    loss = nll + smoothing * (scores.gather(-1, label) - level)  # (1 − ε)(lse − score) + ε(lse − level)
    slope = torch.exp(-nll) + (smoothing - 1)  # gradient at the label, before rounding
    if objective.agreement:
        p = log_p.exp()
        divergence, extra = _agreement(p, log_p, objective.agreement)
        loss, slope, p = loss + divergence, slope + extra.gather(-1, label), (p + extra).to(to or p.dtype)
    elif to == log_p.dtype:
        p = log_p.exp_()
    else:
        p = None if to is None else torch.exp(log_p, out=torch.empty_like(log_p, dtype=to))
    if chunk.inside is not None:
        loss, nll = loss * chunk.inside, nll * chunk.inside
    if to is None or p is None:
        return loss.sum(), nll.sum(), None
    return loss.sum(), nll.sum(), p.scatter_(-1, label, slope.to(to))


def _agreement(p: Tensor, log_p: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """strength/2 · (KL(p₁‖p₂) + KL(p₂‖p₁))/2 for each row of each pass, and its gradient by the scores of
    both.
    """
    a, b = p.chunk(2)
    ratio = log_p[: len(a)] - log_p[len(a) :]  # log p₁ − log p₂
    forward, backward = (a * ratio).sum(-1, keepdim=True), -(b * ratio).sum(-1, keepdim=True)
    slope = torch.cat([a * (ratio - forward) + a - b, b * (-ratio - backward) + b - a])
    # Both rows hold the term, so it counts twice; dividing by the number of passes halves the sum.
    divergence = (forward + backward) * (strength / 4)
    return torch.cat([divergence, divergence]), slope.mul_(strength / 2)
