"""Layers over sequences, (..., T, dim) → (..., T, dim): multi-head attention, convolution, recurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.layers.convolution import Convolution
    from regard.layers.feedforward import FeedForward
    from regard.layers.kv_cache import Cache, StaticCache
    from regard.layers.multihead import MultiHead, SlicedMultiHead
    from regard.layers.recurrent import Recurrence
    from regard.layers.residual import LayerNorm, Residual

_HOMES = {
    "Cache": "kv_cache",
    "Convolution": "convolution",
    "FeedForward": "feedforward",
    "LayerNorm": "residual",
    "MultiHead": "multihead",
    "Recurrence": "recurrent",
    "Residual": "residual",
    "SlicedMultiHead": "multihead",
    "StaticCache": "kv_cache",
}
__all__ = [
    "Cache",
    "Convolution",
    "FeedForward",
    "LayerNorm",
    "MultiHead",
    "Recurrence",
    "Residual",
    "SlicedMultiHead",
    "StaticCache",
]
__getattr__ = exported(__name__, _HOMES)
