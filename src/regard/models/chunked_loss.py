"""Cross-entropy of the next token in chunks of rows: the batch × vocabulary tensor never exists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.attention.kernels.kernel import grad_of_plain
from regard.attention.tracing import is_fake, transform
from regard.data.tokenizer import PAD
from regard.layers.linear import is_plain
from regard.models import fused_loss
from regard.models.fused_loss import matmul_to

if TYPE_CHECKING:
    from regard.models.embedding import Output

CHUNK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 27}  # scores of a chunk; on a CPU they fit into its cache


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


def next_token_loss(
    output: Output, features: Tensor, labels: Tensor, smoothing: float = 0.0, agreement: float = 0.0
) -> Loss:
    """The loss of a decoder's features (…, width) and labels (…); see `cross_entropy`."""
    features, layer = output.readout(features), output.projection
    if is_plain(layer):
        return cross_entropy(features, layer.weight, labels, smoothing, layer.bias, agreement)
    return cross_entropy_of_scores(layer(features), labels, smoothing, agreement)


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
    """The loss of `cross_entropy` from the scores themselves, (…, V), or (2, …, V) with `agreement`.

    For output layers that do more than multiply by a matrix.
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
    """Gradients of features, weight and bias, summed over chunks; None where none is needed."""

    def __init__(
        self, x: Tensor, w: Tensor, needed: Sequence[bool], mean_row: Tensor, smoothing: float
    ) -> None:
        dtype = _accumulator(x)
        self.dx = torch.empty_like(x) if needed[0] else None
        self.dw = torch.zeros(w.shape, dtype=dtype, device=w.device) if needed[1] else None
        self.db = torch.zeros(len(w), dtype=dtype, device=w.device) if needed[2] else None
        self.w, self.mean_row, self.smoothing = w, mean_row, smoothing
        self.feature_sum = torch.zeros(x.shape[-1], dtype=dtype, device=x.device)  # over all rows

    def __bool__(self) -> bool:
        return any(gradient is not None for gradient in (self.dx, self.dw, self.db))

    def add(self, chunk: _Chunk, dscores: Tensor) -> None:
        """Add a chunk, given the gradient of its scores without the −ε/V of smoothing.

        That term is the same for all scores, so it is applied to the products: to dx and db here, to dw in
        `finish`.
        """
        inside, features, share = chunk.inside, chunk.features, self.smoothing / len(self.w)
        if self.dx is not None:
            dx = torch.mm(dscores, self.w).sub_(self.smoothing * self.mean_row)
            dx = dx if inside is None else dx.mul_(inside)
            self.dx[:, chunk.rows] = dx.view(len(self.dx), -1, dx.shape[-1])
        if self.db is not None:
            count = len(dscores) if inside is None else inside.sum()
            self.db += (dscores if inside is None else dscores * inside).sum(0) - share * count
        if self.dw is not None:
            features = features if inside is None else features * inside.to(features.dtype)
            self.feature_sum += features.sum(0, dtype=self.feature_sum.dtype)
            if self.dw.dtype == dscores.dtype:
                self.dw.addmm_(dscores.t(), features)
            else:
                self.dw += matmul_to(dscores.t(), features, self.dw.dtype)

    def finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if self.dw is not None:
            self.dw -= self.smoothing / len(self.w) * self.feature_sum
        return self.dx, self.dw, self.db


class _Chunked(torch.autograd.Function):
    """Computes the gradients in the forward pass, chunk by chunk; the backward pass only scales them.

    Under create_graph=True the backward pass differentiates `_plain` instead, so second derivatives are
    exact.
    """

    @staticmethod
    def forward(ctx, x, w, b, labels, keep, objective):  # noqa: ANN001, ANN205
        sum_dtype, passes = _accumulator(x), len(x)
        mean_row = w.mean(0, dtype=sum_dtype)  # (D,), gives the mean score of a row without its scores
        gradients = _Gradients(x, w, ctx.needs_input_grad, mean_row, objective.smoothing)
        total, nll = (torch.zeros((), dtype=sum_dtype, device=x.device) for _ in range(2))
        for chunk in _chunks(x, labels, keep, len(w)):
            scores = matmul_to(chunk.features, w.t(), sum_dtype)
            if b is not None:
                scores += b
            mean_score = chunk.features.to(sum_dtype) @ mean_row + (0 if b is None else b.mean())
            dtype = x.dtype if gradients else None
            chunk_total, chunk_nll, dscores = _chunk_loss(
                scores, chunk, mean_score[:, None], objective, dtype
            )
            total += chunk_total / passes
            nll += chunk_nll / passes
            if dscores is not None:
                gradients.add(chunk, dscores)
        ctx.save_for_backward(*gradients.finish(), x, w, b, labels, keep)
        ctx.objective = objective
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx, grad: Tensor, _):  # noqa: ANN001, ANN205
        *gradients, x, w, b, labels, keep = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
                return _plain(x, w, b, labels, keep, ctx.objective)[0]

            gradients = grad_of_plain(plain, (x, w, b), grad, ctx.needs_input_grad[:3])
        else:
            scale = grad / len(x)
            gradients = [
                None if gradient is None else (gradient * scale.to(gradient.dtype)).to(tensor.dtype)
                for gradient, tensor in zip(gradients, (x, w, b), strict=True)
            ]
        return *gradients, None, None, None


def _chunk_loss(
    scores: Tensor, chunk: _Chunk, mean_score: Tensor, objective: Objective, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Loss and −log p of a chunk, summed over its tokens, and the gradient of its scores.

    `mean_score` is the mean of each row's scores, (n, 1). The gradient has this dtype; None: it is not
    needed. It lacks what is cheaper to apply to its products: −ε/V of smoothing at every score, and the zeros
    of padding rows.
    """
    smoothing, label = objective.smoothing, chunk.label
    log_p = torch.log_softmax(scores, -1)
    nll = -log_p.gather(-1, label)
    # (1 − ε)(lse − score) + ε(lse − mean score)
    loss = nll + smoothing * (scores.gather(-1, label) - mean_score)
    at_label = torch.exp(-nll) + (smoothing - 1)  # the gradient at the label, before rounding
    if objective.agreement:
        p = log_p.exp()
        divergence, extra = _agreement(p, log_p, objective.agreement)
        loss, at_label = loss + divergence, at_label + extra.gather(-1, label)
        dscores = (p + extra).to(dtype or p.dtype)
    elif dtype == log_p.dtype:
        dscores = log_p.exp_()
    else:
        dscores = None if dtype is None else torch.exp(log_p, out=torch.empty_like(log_p, dtype=dtype))
    if chunk.inside is not None:
        loss, nll = loss * chunk.inside, nll * chunk.inside
    if dtype is None or dscores is None:
        return loss.sum(), nll.sum(), None
    return loss.sum(), nll.sum(), dscores.scatter_(-1, label, at_label.to(dtype))


def _agreement(p: Tensor, log_p: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """strength/2 · (KL(p₁‖p₂) + KL(p₂‖p₁))/2 for each row of both passes, and its gradient of the scores."""
    a, b = p.chunk(2)
    ratio = log_p[: len(a)] - log_p[len(a) :]  # log p₁ − log p₂
    forward, backward = (a * ratio).sum(-1, keepdim=True), -(b * ratio).sum(-1, keepdim=True)
    dscores = torch.cat([a * (ratio - forward) + a - b, b * (-ratio - backward) + b - a])
    # Both rows hold the term, so it counts twice; dividing by the number of passes halves the sum.
    divergence = (forward + backward) * (strength / 4)
    return torch.cat([divergence, divergence]), dscores.mul_(strength / 2)
