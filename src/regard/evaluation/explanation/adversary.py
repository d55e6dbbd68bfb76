"""Adversarial attention: other weights that give nearly the same output (Jain & Wallace 2019, 4.2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.edits import CallWeights, Edit, Mapped
from regard.evaluation.explanation.comparisons import jensen_shannon, total_variation
from regard.evaluation.explanation.probe import Probe

TOLERANCE = 0.01  # largest change of the output, in total variation
STARTS = 6  # searches side by side
STEPS = 60
LEARNING_RATE = 0.3
PENALTY = 100.0  # of the change beyond the tolerance; the divergence is below 0.7


@dataclass(frozen=True)
class AdversarialAttention:
    """The most different attention found whose output stays within the tolerance.

    Attributes:
        divergence: Jensen–Shannon divergence from the model's attention in nats, at most log 2; the mean over
            heads and queries.
        change: total variation between the two outputs.
        weights: the attention, by name: (heads, rows, keys).
    """

    divergence: float
    change: float
    weights: dict[str, Tensor]


def adversarial_attention(
    probe: Probe, *, tolerance: float = TOLERANCE, starts: int = STARTS, steps: int = STEPS
) -> AdversarialAttention:
    """Search for the attention with the largest divergence at an output change ≤ `tolerance`.

    First all weight on one token is tried, for every token; then a search by gradient starts from the model's
    attention, from permutations of it, and from the tokens that changed the output least. What is found is a
    lower bound of the largest divergence; it is never worse than the model's own attention.
    """
    best, tokens = _one_token(probe, tolerance)
    logits = {name: _start(probe, name, starts, tokens).requires_grad_() for name in probe.weights}
    optimizer = torch.optim.Adam(list(logits.values()), lr=LEARNING_RATE)
    edits: dict[str, Edit] = {name: _Set(logits, name, probe.allowed[name]) for name in logits}
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), probe.edited(edits):
        for _ in range(steps):
            output = probe.output(probe.copies(starts))
            change = total_variation(output, probe.distribution)  # (starts,)
            weights = {name: _weights(logits[name], probe.allowed[name]) for name in logits}
            divergence = _divergence(probe, weights)
            best = _better(best, divergence, change, weights, tolerance)
            # Below the tolerance, because a step may go too far.
            loss = PENALTY * (change - 0.8 * tolerance).clamp(min=0) - divergence
            gradients = torch.autograd.grad(loss.sum(), list(logits.values()))
            for parameter, gradient in zip(logits.values(), gradients, strict=True):
                parameter.grad = gradient.nan_to_num()
            optimizer.step()
    return best


class _Set(Edit):
    """Weights from the current logits."""

    def __init__(self, logits: dict[str, Tensor], name: str, allowed: Tensor) -> None:
        object.__setattr__(self, "parts", (logits, name, allowed))

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        logits, name, allowed = self.parts  # type: ignore[attr-defined]
        return _weights(logits[name], allowed).to(rows.weights.dtype).expand(rows.weights.shape)


def _weights(logits: Tensor, allowed: Tensor) -> Tensor:
    weights = torch.softmax(logits.masked_fill(~allowed, -torch.inf), -1)
    return weights.nan_to_num()  # a query without keys


def _one_token(probe: Probe, tolerance: float) -> tuple[AdversarialAttention, list[int]]:
    """The best attention to a single token, and all tokens, those that change the output least first."""
    keys = torch.tensor(probe.given.keys)
    width = next(iter(probe.weights.values())).shape[-1]
    single = nn.functional.one_hot(keys, width).double()[:, None, None]  # (features, 1, 1, keys)
    output = torch.cat([_under(probe, rows) for rows in single.split(probe.batch)])
    change = total_variation(output, probe.distribution.cpu())  # (features,)
    for allowed in probe.allowed.values():  # a masked token cannot be attended to
        change = change.masked_fill(
            ~allowed[..., keys.to(allowed.device)].flatten(0, 1).all(0).cpu(), torch.inf
        )
    weights = {name: single.to(w.device).expand(-1, *w.shape) for name, w in probe.weights.items()}
    divergence = _divergence(probe, weights)
    best = AdversarialAttention(0.0, 0.0, dict(probe.weights))
    return _better(best, divergence.cpu(), change, weights, tolerance), change.argsort().tolist()


def _under(probe: Probe, weights: Tensor) -> Tensor:
    """Outputs under given weights, one row each."""
    return probe.under(Mapped(lambda own: weights.to(own).expand_as(own)), len(weights))


def _divergence(probe: Probe, weights: dict[str, Tensor]) -> Tensor:
    """Mean divergence of weights (rows, heads, queries, keys) from the model's, (rows,)."""
    divergences = [jensen_shannon(w, probe.weights[name]).mean((1, 2)) for name, w in weights.items()]
    return torch.stack(divergences).mean(0)


def _start(probe: Probe, name: str, starts: int, tokens: list[int]) -> Tensor:
    """Logits (starts, heads, rows, keys): the model's weights, permutations of them, and single tokens."""
    own, rng = probe.weights[name].clamp(min=1e-6).log(), probe.generator(f"adversary {name}")
    keys = own.shape[-1]
    logits = [own]
    for token in tokens[: starts // 2]:
        single = torch.zeros_like(own)
        single[..., probe.given.keys[token]] = 4.0
        logits.append(single)
    while len(logits) < starts:
        logits.append(own[..., torch.randperm(keys, generator=rng).to(own.device)])
    # The divergence has no slope at the model's own weights.
    noise = torch.randn((starts, *own.shape), generator=rng, dtype=torch.float64)
    return torch.stack(logits[:starts]) + 0.1 * noise.to(own.device)


def _better(
    best: AdversarialAttention,
    divergence: Tensor,
    change: Tensor,
    weights: dict[str, Tensor],
    tolerance: float,
) -> AdversarialAttention:
    """The best so far or the best of this step."""
    allowed = divergence.detach().masked_fill(change > tolerance, -1.0)
    row = int(allowed.argmax())
    if float(allowed[row]) <= best.divergence:
        return best
    best_weights = {name: w[row].detach().clone() for name, w in weights.items()}
    return AdversarialAttention(float(allowed[row]), float(change[row].detach()), best_weights)
