"""Sequences of different lengths as one padded array."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenizer import EOS, PAD


def pad_sources(
    rows: Sequence[Sequence[Any]], longest: int | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Token ids x1 … xn EOS as an array (rows, S), or frames as (rows, S, channels), and the lengths.

    A row is truncated to `longest` positions, EOS included; frames have no EOS.
    """
    first = next((row[0] for row in rows if len(row)), 0)
    if np.ndim(first):
        return pad_frames([row[:longest] for row in rows])
    if longest is not None:
        rows = [row[: longest - 1] for row in rows]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))  # without EOS
    ids = np.full((len(rows), int(lengths.max()) + 1), PAD)
    real = np.arange(ids.shape[1]) < lengths[:, None]  # (rows, S)
    ids[real] = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    ids[np.arange(len(rows)), lengths] = EOS
    return ids, lengths + 1


def pad_frames(rows: Sequence[Sequence[Any]]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Frames (T, channels) of several sequences as an array (rows, longest, channels), padded with 0."""
    arrays = [np.asarray(row, np.float32) for row in rows]
    lengths = np.array([len(array) for array in arrays])
    padded = np.zeros((len(arrays), int(lengths.max()), arrays[0].shape[1]), np.float32)
    for place, array in enumerate(arrays):
        padded[place, : len(array)] = array
    return padded, lengths
