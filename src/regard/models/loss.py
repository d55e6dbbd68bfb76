"""Cross-entropy of the next word without the batch × vocabulary tensor: scores exist for a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenizer import PAD

ROOM = {"cpu": 1 << 22, "cuda": 1 << 27}  # scores that may exist at a time: the CPU's stay in its cache


@dataclass
class Loss:
    """Sums over the tokens of a batch: `total` is what to train on (label-smoothed), `nll` −Σ log p of the right words."""

    total: Tensor
    nll: Tensor
    tokens: int | Tensor
    state: Any = None  # of a recurrence after the batch


def cross_entropy(
    features: Tensor, weight: Tensor, labels: Tensor, smoothing: float = 0.0, bias: Tensor | None = None, agreement: float = 0.0
) -> Loss:
    """Σ −log softmax(features weightᵀ + bias)[label] over labels that are not padding; smoothing ε as in Szegedy et al. 2016:
    (1 − ε) of the right word and ε of the mean over all words.

    features (..., D), weight (V, D), labels (...), bias (V,). With `agreement` α the features are (2, ..., D), two readings of
    the same words under different dropout, and the loss is R-Drop's (Liang et al. 2021): the mean of both cross-entropies and
    α/2 times the mean of KL(p₁‖p₂) and KL(p₂‖p₁).
    """
    readings = 2 if agreement else 1
    features, labels = features.reshape(readings, -1, features.shape[-1]), labels.reshape(-1)
    keep = labels != PAD
    if features.device.type == "cpu":  # no work on padding; a GPU would have to wait for the count
        features, labels, keep = features[:, keep], labels[keep], None
    if torch.is_autocast_enabled(features.device.type) and features.device.type != "meta":
        to = torch.get_autocast_dtype(features.device.type)
        features, weight = features.to(to), weight.to(to)
    total, nll = _Chunked.apply(features, weight, bias, labels, keep, smoothing, agreement)
    return Loss(total, nll, len(labels) if keep is None else keep.sum())


class _Chunked(torch.autograd.Function):
    """The gradient of a chunk is formed while its scores exist, so that the backward pass computes nothing again."""

    @staticmethod
    def forward(  # noqa: ANN205
        ctx,  # noqa: ANN001
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        labels: Tensor,
        keep: Tensor | None,
        smoothing: float,
        agreement: float,
    ):
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        learn_x, learn_w, learn_b = ctx.needs_input_grad[:3]
        dx = torch.empty_like(x) if learn_x else None
        dw = torch.zeros(w.shape, dtype=exact, device=w.device) if learn_w else None
        db = torch.zeros(len(w), dtype=exact, device=w.device) if learn_b else None
        total, nll = (torch.zeros((), dtype=exact, device=x.device) for _ in range(2))
        rows = max(1, ROOM.get(x.device.type, 1 << 22) // (len(w) * len(x)))
        for i in range(0, len(labels), rows):
            part = x[:, i : i + rows].flatten(0, 1)  # both readings of the same words, one after the other
            scores = (part @ w.t()).to(exact)
            if b is not None:
                scores += b
            label = labels[i : i + rows, None].repeat(len(x), 1)
            real = None if keep is None else keep[i : i + rows, None].to(exact).repeat(len(x), 1)
            loss, wrong, p = _piece(scores, label, real, smoothing, agreement, learn=learn_x or learn_w or learn_b)
            nll += wrong / len(x)
            total += loss / len(x)
            if p is None:
                continue
            if db is not None:
                db += p.sum(0)
            p = p.to(x.dtype)
            if dx is not None:
                dx[:, i : i + rows] = torch.mm(p, w).view(len(x), -1, x.shape[-1])
            if dw is not None and dw.dtype == p.dtype:
                dw.addmm_(p.t(), part)
            elif dw is not None:
                dw += p.t() @ part
        ctx.save_for_backward(*(d for d in (dx, dw, db) if d is not None))
        ctx.learn, ctx.dtypes = (learn_x, learn_w, learn_b), (x.dtype, w.dtype, None if b is None else b.dtype)
        ctx.readings = len(x)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor, _):  # noqa: ANN001, ANN205
        saved, grad = list(ctx.saved_tensors), grad / ctx.readings
        found = [saved.pop(0) if learn else None for learn in ctx.learn]
        dx, dw, db = (None if d is None else (d * grad.to(d.dtype)).to(to) for d, to in zip(found, ctx.dtypes, strict=True))
        return dx, dw, db, None, None, None, None


def _piece(
    scores: Tensor, label: Tensor, real: Tensor | None, smoothing: float, agreement: float, learn: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The loss and −log p of a chunk, summed over real rows, and the gradient by its scores. `scores` is used up."""
    right, mean = scores.gather(-1, label), scores.mean(-1, keepdim=True) if smoothing else None
    top = scores.amax(-1, keepdim=True)
    logs = scores - top if agreement else None
    norm = scores.sub_(top).exp_().sum(-1, keepdim=True)  # from here on `scores` holds e^(score − top)
    lse = norm.log() + top
    wrong = lse - right
    loss = wrong if mean is None else (1 - smoothing) * wrong + smoothing * (lse - mean)
    p = scores.div_(norm) if learn or agreement else scores
    extra = None
    if logs is not None:
        apart, extra = _agreement(p, logs.sub_(norm.log()), agreement)
        loss = loss + apart
    if real is not None:
        loss, wrong = loss * real, wrong * real
    if not learn:
        return loss.sum(), wrong.sum(), None
    if smoothing:
        p.sub_(smoothing / p.shape[-1])
    p.scatter_add_(-1, label, p.new_full(label.shape, smoothing - 1))
    if extra is not None:
        p += extra
    return loss.sum(), wrong.sum(), p if real is None else p.mul_(real)


def _agreement(p: Tensor, logs: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """strength/2 · (KL(p₁‖p₂) + KL(p₂‖p₁))/2 per reading's row, and its gradient by the scores of both readings."""
    a, b = p.chunk(2)
    far = logs[: len(a)] - logs[len(a) :]  # log p₁ − log p₂
    there, back = (a * far).sum(-1, keepdim=True), -(b * far).sum(-1, keepdim=True)
    slope = torch.cat([a * (far - there) + a - b, b * (-far - back) + b - a])
    apart = (there + back) * (strength / 4)  # the two rows together carry the term twice; the sum is halved with the readings
    return torch.cat([apart, apart]), slope.mul_(strength / 2)
