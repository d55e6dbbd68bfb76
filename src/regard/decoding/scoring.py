"""How well a model foresees a text that is given."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from regard.data.batches import Batch
from regard.models.autoregressive import AutoregressiveModel


@torch.no_grad()
def negative_log_likelihood(model: AutoregressiveModel, batches: Iterable[Batch]) -> tuple[float, int]:
    """−Σ log p of the right words in nats, and how many words. Batches that continue each other carry the state."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    nll, tokens, state = (
        torch.zeros((), dtype=torch.float64, device=device),
        torch.zeros((), dtype=torch.long, device=device),
        None,
    )
    for batch in batches:
        loss = model.loss(batch.to(device), 0.0, state if batch.continues else None)
        nll, tokens, state = nll + loss.nll, tokens + loss.tokens, loss.state
    model.train(training)
    return float(nll), int(tokens)
