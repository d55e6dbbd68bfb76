"""Cross-entropy of the next token without the batch × vocabulary tensor: scores exist for a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.tracing import is_fake, transform
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
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    bias: Tensor | None = None,
    agreement: float = 0.0,
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
    plain = transform() is not None or is_fake(features)
    if (
        features.device.type == "cpu" and not plain
    ):  # no work on padding; a GPU would have to wait for the count
        features, labels, keep = features[:, keep], labels[keep], None
    if torch.is_autocast_enabled(features.device.type) and features.device.type != "meta":
        to = torch.get_autocast_dtype(features.device.type)
        features, weight = features.to(to), weight.to(to)
    compute = _plain if plain else _Chunked.apply
    total, nll = compute(features, weight, bias, labels, keep, smoothing, agreement)
    return Loss(total, nll, len(labels) if keep is None else keep.sum())


def cross_entropy_of_scores(
    scores: Tensor, labels: Tensor, smoothing: float = 0.0, agreement: float = 0.0
) -> Loss:
    """The same loss of scores that exist, (..., V), or (2, ..., V) with `agreement`: for an output layer that has to be called."""
    scores, labels = scores.reshape(2 if agreement else 1, -1, scores.shape[-1]), labels.reshape(-1)
    keep = labels != PAD
    return Loss(*_of_scores(scores.to(_accumulator(scores)), labels, keep, smoothing, agreement), keep.sum())


def _plain(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    labels: Tensor,
    keep: Tensor | None,
    smoothing: float,
    agreement: float,
) -> tuple[Tensor, Tensor]:
    """What `_Chunked` computes in torch operations, all scores at once: for second derivatives, torch.func and fake tensors."""
    scores = (x @ w.t()).to(_accumulator(x))
    return _of_scores(scores if b is None else scores + b, labels, keep, smoothing, agreement)


def _of_scores(
    scores: Tensor, labels: Tensor, keep: Tensor | None, smoothing: float, agreement: float
) -> tuple[Tensor, Tensor]:
    """Loss and −log p, each summed over tokens, of scores (readings, rows, vocabulary)."""
    logs, readings = torch.log_softmax(scores, -1), len(scores)
    wrong = -logs.gather(-1, labels.expand(readings, -1)[..., None])[..., 0]
    loss = (1 - smoothing) * wrong - smoothing * logs.mean(-1)
    if agreement:
        one, other = logs
        loss = loss + agreement / 4 * ((one.exp() - other.exp()) * (one - other)).sum(-1)  # KL there and back
    if keep is not None:
        loss, wrong = loss.where(keep, 0.0), wrong.where(keep, 0.0)
    return loss.sum() / readings, wrong.detach().sum() / readings


def _accumulator(x: Tensor) -> torch.dtype:
    """The dtype in which scores and sums are kept."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _Chunked(torch.autograd.Function):
    """The gradient of a chunk is formed while its scores exist, so that the backward pass computes nothing again.

    Under create_graph=True the backward pass differentiates `_plain` instead, so second derivatives are those of the formula.
    """

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
        exact = _accumulator(x)
        learn_x, learn_w, learn_b = ctx.needs_input_grad[:3]
        learn = learn_x or learn_w or learn_b
        dx = torch.empty_like(x) if learn_x else None
        dw = torch.zeros(w.shape, dtype=exact, device=w.device) if learn_w else None
        db = torch.zeros(len(w), dtype=exact, device=w.device) if learn_b else None
        total, nll = (torch.zeros((), dtype=exact, device=x.device) for _ in range(2))
        rows = max(1, ROOM.get(x.device.type, 1 << 22) // (len(w) * len(x)))
        each = smoothing / len(
            w
        )  # what smoothing takes off the gradient by every score; here off the products with it
        mean, read = w.mean(0, dtype=exact), torch.zeros(x.shape[-1], dtype=exact, device=x.device)
        for i in range(0, len(labels), rows):
            part = x[:, i : i + rows].flatten(0, 1)  # both readings of the same words, one after the other
            scores = _product(part, w.t(), exact)
            if b is not None:
                scores += b
            label = labels[i : i + rows, None].repeat(len(x), 1)
            real = None if keep is None else keep[i : i + rows, None].to(exact).repeat(len(x), 1)
            level = part.to(exact) @ mean + (0 if b is None else b.mean())
            loss, wrong, p = _piece(
                scores, label, level[:, None], real, smoothing, agreement, to=x.dtype if learn else None
            )
            nll += wrong / len(x)
            total += loss / len(x)
            if p is None:
                continue
            if dx is not None:
                found = torch.mm(p, w).sub_(smoothing * mean)
                dx[:, i : i + rows] = (found if real is None else found.mul_(real)).view(
                    len(x), -1, x.shape[-1]
                )
            if db is not None:
                db += (p if real is None else p * real).sum(0) - each * (
                    len(p) if real is None else real.sum()
                )
            if dw is not None:
                part = part if real is None else part * real.to(part.dtype)
                read += part.sum(0, dtype=exact)
                if dw.dtype == p.dtype:
                    dw.addmm_(p.t(), part)
                else:
                    dw += _product(p.t(), part, exact)
        if dw is not None:
            dw -= each * read
        ctx.save_for_backward(dx, dw, db, x, w, b, labels, keep)
        ctx.options = smoothing, agreement
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx, grad: Tensor, _):  # noqa: ANN001, ANN205
        *found, x, w, b, labels, keep = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = _differentiable_gradient(
                grad, (x, w, b), ctx.needs_input_grad, labels, keep, *ctx.options
            )
        else:
            scale = grad / len(x)
            found = [
                None if d is None else (d * scale.to(d.dtype)).to(t.dtype)
                for d, t in zip(found, (x, w, b), strict=True)
            ]
        return *found, None, None, None, None


def _differentiable_gradient(
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    learn: tuple[bool, ...],
    labels: Tensor,
    keep: Tensor | None,
    smoothing: float,
    agreement: float,
) -> list[Tensor | None]:
    """The gradient by features, weight and bias, itself a function of them and of `grad` that can be differentiated."""
    # Views, because the features may depend on the weight: the gradient by one must not flow on into the other.
    x, w = inputs[0].view_as(inputs[0]), inputs[1].view_as(inputs[1])
    b = None if inputs[2] is None else inputs[2].view_as(inputs[2])
    total, _ = _plain(x, w, b, labels, keep, smoothing, agreement)
    wanted = [t for t, yes in zip((x, w, b), learn, strict=False) if yes and t is not None]
    found = iter(torch.autograd.grad(total, wanted, grad, create_graph=True))
    return [next(found) if yes else None for yes in learn[:3]]


def _product(a: Tensor, b: Tensor, to: torch.dtype) -> Tensor:
    """a b, in `to`; a GPU writes it so at once."""
    return torch.mm(a, b, out_dtype=to) if a.device.type == "cuda" and a.dtype != to else (a @ b).to(to)


def _piece(
    scores: Tensor,
    label: Tensor,
    level: Tensor,
    real: Tensor | None,
    smoothing: float,
    agreement: float,
    to: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The loss and −log p of a chunk, summed over real rows, and the gradient by its scores in `to`, unless that is None. `level`
    is the mean of each row's scores.

    The gradient lacks what is cheaper done to its products: −ε/V of smoothing at every score, and zeros in rows that are not real.
    """
    logs = torch.log_softmax(scores, -1)
    wrong = -logs.gather(-1, label)
    loss = wrong + smoothing * (scores.gather(-1, label) - level)  # (1 − ε) (lse − right) + ε (lse − level)
    slope = torch.exp(-wrong) + (smoothing - 1)  # at the label, before it is rounded
    if agreement:
        p = logs.exp()
        apart, extra = _agreement(p, logs, agreement)
        loss, slope, p = loss + apart, slope + extra.gather(-1, label), (p + extra).to(to or p.dtype)
    elif to == logs.dtype:
        p = logs.exp_()
    else:
        p = None if to is None else torch.exp(logs, out=torch.empty_like(logs, dtype=to))
    loss, wrong = (loss, wrong) if real is None else (loss * real, wrong * real)
    if to is None or p is None:
        return loss.sum(), wrong.sum(), None
    return loss.sum(), wrong.sum(), p.scatter_(-1, label, slope.to(to))


def _agreement(p: Tensor, logs: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """strength/2 · (KL(p₁‖p₂) + KL(p₂‖p₁))/2 per reading's row, and its gradient by the scores of both readings."""
    a, b = p.chunk(2)
    far = logs[: len(a)] - logs[len(a) :]  # log p₁ − log p₂
    there, back = (a * far).sum(-1, keepdim=True), -(b * far).sum(-1, keepdim=True)
    slope = torch.cat([a * (far - there) + a - b, b * (-far - back) + b - a])
    apart = (there + back) * (
        strength / 4
    )  # the two rows together carry the term twice; the sum is halved with the readings
    return torch.cat([apart, apart]), slope.mul_(strength / 2)
