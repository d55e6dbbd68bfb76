"""Decoding: one search loop for every autoregressive model, with beams, sampling, constraints, ensembles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.decoding.attention_weights import attention_maps
    from regard.decoding.beam import Beam
    from regard.decoding.constraints import Constraints
    from regard.decoding.engine import fast, why_not
    from regard.decoding.ensemble import Ensemble
    from regard.decoding.limits import Limits
    from regard.decoding.sampling import Sample
    from regard.decoding.search_trace import SearchTrace, TracedBeam
    from regard.decoding.strategy import Hypothesis, Strategy

__all__ = [
    "Beam",
    "Constraints",
    "Ensemble",
    "Hypothesis",
    "Limits",
    "Sample",
    "SearchTrace",
    "Strategy",
    "TracedBeam",
    "attention_maps",
    "fast",
    "why_not",
]
__getattr__ = exported(
    __name__,
    {
        "Beam": "beam",
        "Constraints": "constraints",
        "Ensemble": "ensemble",
        "Hypothesis": "strategy",
        "Limits": "limits",
        "Sample": "sampling",
        "SearchTrace": "search_trace",
        "Strategy": "strategy",
        "TracedBeam": "search_trace",
        "attention_maps": "attention_weights",
        "fast": "engine",
        "why_not": "engine",
    },
)
