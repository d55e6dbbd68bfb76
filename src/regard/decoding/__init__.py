"""Decoding: one search loop for every autoregressive model: greedy, beam, sampling, constraints, ensembles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.decoding.attention import attention_maps
    from regard.decoding.engine import fast, why_not
    from regard.decoding.ensemble import Ensemble
    from regard.decoding.sampling import Sample
    from regard.decoding.search import Beam
    from regard.decoding.strategy import Hypothesis

__all__ = ["Beam", "Ensemble", "Hypothesis", "Sample", "attention_maps", "fast", "why_not"]
__getattr__ = exported(
    __name__,
    {
        "Beam": "search",
        "Sample": "sampling",
        "Ensemble": "ensemble",
        "Hypothesis": "strategy",
        "attention_maps": "attention",
        "fast": "engine",
        "why_not": "engine",
    },
)
