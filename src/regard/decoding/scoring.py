"""The likelihood of given texts under a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from regard.data.batch import Batch
from regard.decoding.batching import evaluation_mode
from regard.models.autoregressive import AutoregressiveModel


@torch.no_grad()
def negative_log_likelihood(model: AutoregressiveModel, batches: Iterable[Batch]) -> tuple[float, int]:
    """Return −Σ log p of the target tokens in nats, and their number.

    The decoder state is passed on between batches that continue each other.
    """
    device = next(model.parameters()).device
    nll = torch.zeros((), dtype=torch.float64, device=device)
    tokens = torch.zeros((), dtype=torch.long, device=device)
    state = None
    with evaluation_mode(model):
        for batch in batches:
            loss = model.loss(batch.to(device), 0.0, state if batch.continues else None)
            nll, tokens, state = nll + loss.nll, tokens + loss.tokens, loss.state
    return float(nll), int(tokens)
