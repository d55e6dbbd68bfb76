"""The coverage penalty: texts that leave source words unread rank lower (Wu et al. 2016, eq. 14)."""

from __future__ import annotations

from typing import Any

from regard.decoding.beam import Beam
from regard.decoding.strategy import SearchTask


def rescore(model: Any, tasks: list[SearchTask], beam: Beam) -> None:
    """Add β Σ_s log min(1, Σ_t a_ts) to the score of each text and order them again.

    a is the mean of all heads and layers of cross-attention, recomputed by one pass over each text that was found, which is the
    simplest way that is the same for every decoder and engine; the texts themselves are searched for without it. The end
    mark of the source is no word to be covered.
    """
    from regard.decoding.attention import attention_of_tokens

    pairs = [(task, hypothesis) for task in tasks for hypothesis in task.found]
    sources, targets = [task.given for task, _ in pairs], [h.whole for _, h in pairs]

    def cancelled(i: int) -> bool:
        task = pairs[i][0]
        return task.cancelled is not None and task.cancelled()

    for i, attention in attention_of_tokens(
        sources, targets, torch_model(model), kinds=("cross",), skip=cancelled
    ):
        task, hypothesis = pairs[i]
        covered = attention.cross().double().sum(0)[: len(task.given)]
        hypothesis.score += beam.coverage_penalty * float(covered.clamp(1e-9, 1).log().sum())
    for task in tasks:
        task.found = beam.order(task.found)


def torch_model(writer: Any) -> Any:
    """The torch model behind an engine, which keeps it as `.model`; a torch model itself."""
    return getattr(writer, "model", writer)
