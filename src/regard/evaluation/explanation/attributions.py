"""Explanations that do not use attention: gradient × input, integrated gradients, leave-one-out.

Each gives one score per feature; a large one says that the output depends on the token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.attention.edits import Mapped
from regard.decoding.batching import evaluation_mode
from regard.evaluation.explanation.comparisons import total_variation
from regard.evaluation.explanation.probe import Probe

PATH_STEPS = 32  # points of the path integral


def gradient_times_input(probe: Probe) -> Tensor:
    """|x · ∂p/∂x| of each vector x that the encoder reads, for the predicted class, (features,).

    The explaining attention is held fixed, as in Jain & Wallace 2019 (section 4.1): the gradient then says
    how the output depends on a token apart from the influence of the token on the weights.
    """
    frozen = Mapped(lambda weights: weights.detach())
    with probe.edited(dict.fromkeys(probe.weights, frozen)):
        x, gradient = _gradient(probe, torch.ones(1))
    return (x * gradient).sum(-1)[0, probe.given.keys].abs()


def integrated_gradients(probe: Probe, steps: int = PATH_STEPS) -> Tensor:
    """x · ∫ ∂p(a·x)/∂x da over a in [0, 1], for the predicted class, (features,); signed.

    From zero vectors to the text's (Sundararajan et al. 2017); special tokens stay. The sum over features is
    p(text) − p(zero vectors), up to the error of the midpoint rule with `steps` points.
    """
    points = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    with evaluation_mode(probe.explained.model):
        x, gradient = _gradient(probe, points)
    return (x * gradient.mean(0, keepdim=True)).sum(-1)[0, probe.given.keys]


def leave_one_out(probe: Probe) -> Tensor:
    """The change of the output (total variation) when a token is removed, (features,)."""
    outputs = probe.without([[at] for at in range(probe.count)])
    return total_variation(outputs, probe.distribution.cpu())


def _gradient(probe: Probe, scales: Tensor) -> tuple[Tensor, Tensor]:
    """The token vectors (1, S, width) and ∂p/∂x at each scale, (scales, S, width), in float64."""
    vectors: list[Tensor] = []
    features = torch.zeros(probe.inputs.shape[1] + 1, dtype=torch.bool)  # one more: BOS may be prepended
    features[probe.given.keys] = True

    def scale(x: Tensor) -> Tensor:
        on = features[: x.shape[1], None].to(x.device)
        scaled = torch.where(on, x * scales.to(x)[:, None, None], x).detach().requires_grad_()
        vectors.extend([x.detach(), scaled])
        return scaled

    with torch.enable_grad(), _differentiable(), probe.explained.vectors(scale):
        p = probe.output(probe.copies(len(scales)))[:, probe.predicted].sum()
        x, scaled = vectors
        (gradient,) = torch.autograd.grad(p, scaled)
    return x[:1].double().cpu(), gradient.double().cpu()


@contextmanager
def _differentiable() -> Iterator[None]:
    """cuDNN's recurrent layers have no backward pass in evaluation mode; torch's own have."""
    with torch.backends.cudnn.flags(enabled=False):
        yield
