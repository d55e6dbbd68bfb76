"""Decoding: one search loop for every autoregressive model: greedy, beam, sampling, constraints, ensembles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.decoding.engine import why_not

__all__ = ["why_not"]
__getattr__ = exported(__name__, {"why_not": "engine"})
