"""The coverage penalty: a lower score for hypotheses that ignore source tokens (Wu et al. 2016, eq. 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.decoding.search import torch_model
from regard.decoding.strategy import SearchTask

if TYPE_CHECKING:
    from regard.decoding.beam import Beam


def add_coverage_penalty(model: Any, tasks: list[SearchTask], beam: Beam) -> None:
    """Add β Σ_s log min(1, Σ_t a_ts) to the score of each hypothesis and sort them again.

    a is the mean over all cross-attention heads and layers. It is recomputed after the search, in one forward
    pass over the hypotheses, because that works for every decoder and engine. The end-of-sentence token of
    the source does not count.
    """
    from regard.decoding.attention_weights import attention_of_tokens

    pairs = [(task, hypothesis) for task in tasks for hypothesis in task.hypotheses]
    sources, targets = [task.input_ids for task, _ in pairs], [h.all_tokens for _, h in pairs]

    def cancelled(i: int) -> bool:
        task = pairs[i][0]
        return task.cancelled is not None and task.cancelled()

    for i, attention in attention_of_tokens(
        sources, targets, torch_model(model), kinds=("cross",), skip=cancelled
    ):
        task, hypothesis = pairs[i]
        covered = attention.cross().double().sum(0)[: len(task.input_ids)]  # (source tokens,)
        hypothesis.score += beam.coverage_penalty * float(covered.clamp(1e-9, 1).log().sum())
    for task in tasks:
        task.hypotheses = beam.sort(task.hypotheses)
