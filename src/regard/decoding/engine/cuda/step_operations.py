"""Operations of a decoder step, one query per row: attention and the best next tokens.

`TorchOperations` define the results; `FusedOperations` compute the same with one kernel each on a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from regard.decoding.engine.cuda.buffers import Buffers
from regard.decoding.engine.cuda.packed_weights import CHUNK, score_dtype


class StepOperations(ABC):
    """The operations of a decoder step between its linear layers. Rows are sentences × hypotheses."""

    @abstractmethod
    def start(self, buffers: Buffers, length: int) -> Tensor | None:
        """Prepare a step that sees at most `length` tokens; return the mask of self-attention, if needed."""

    @abstractmethod
    def self_attention(
        self, qkv: Tensor, cache: Tensor, buffers: Buffers, length: int, mask: Tensor | None
    ) -> Tensor:
        """Write new keys and values to the cache and attend to it: (rows, 3 · dim) → (rows, dim).

        `cache` has one layer: (2, sentences, heads, capacity, hypotheses, head dim).
        """

    @abstractmethod
    def cross_attention(self, q: Tensor, memory: Tensor, buffers: Buffers) -> Tensor:
        """Attend to the source: (rows, dim) → (rows, dim); `memory` is (2, sentences, heads, S, head dim)."""

    @abstractmethod
    def best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Log p and ids of the k best tokens of scores (rows, vocabulary), best first: (rows, k) each."""


class TorchOperations(StepOperations):
    """By torch operations, on any device.

    Plain matmuls: torch's fused kernels split queries into tiles of 64, of which one row would be used.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        # As tensors: a step captured as a CUDA graph would copy Python numbers from the host.
        self.visible, self.masked = (torch.full((), x, dtype=dtype, device=device) for x in (0.0, -torch.inf))

    def start(self, buffers: Buffers, length: int) -> Tensor:
        """The mask, 0 or −inf, (sentences or 1, 1, hypotheses, length · hypotheses)."""
        visible = buffers.steps[:length] <= buffers.position
        if buffers.size.width > 1:
            buffers.note_writers()
            own = buffers.past[:, :, :length, None] == buffers.slots  # (sentences, width, length, width)
            visible = (own & visible[:, None]).flatten(2)[:, None]
        else:
            visible = visible[None, None, None]
        return torch.where(visible, self.visible, self.masked)

    def self_attention(
        self, qkv: Tensor, cache: Tensor, buffers: Buffers, length: int, mask: Tensor | None
    ) -> Tensor:
        _, sentences, heads, _, width, head_dim = cache.shape
        assert mask is not None
        qkv = qkv.view(sentences, width, 3, heads, head_dim)
        qkv = qkv.permute(2, 0, 3, 1, 4)  # (3, sentences, heads, width, head dim)
        cache.index_copy_(3, buffers.position, qkv[1:, :, :, None])
        k, v = cache[:, :, :, :length].flatten(3, 4)
        return _attend(qkv[0], k, v, mask)

    def cross_attention(self, q: Tensor, memory: Tensor, buffers: Buffers) -> Tensor:
        _, sentences, heads, _, head_dim = memory.shape
        q = q.view(sentences, -1, heads, head_dim).transpose(1, 2)
        return _attend(q, memory[0], memory[1], buffers.source_mask)

    def best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(scores, -1)
        return log_p.max(-1, keepdim=True) if k == 1 else top(log_p, k)


class FusedOperations(StepOperations):
    """By the Triton kernels of `step_kernels`, in float32 or half precision."""

    DTYPES = (torch.float32, torch.bfloat16, torch.float16)

    def start(self, buffers: Buffers, length: int) -> None:
        if buffers.size.width > 1:
            buffers.note_writers()

    def self_attention(
        self, qkv: Tensor, cache: Tensor, buffers: Buffers, length: int, mask: Tensor | None
    ) -> Tensor:
        from regard.decoding.engine.cuda import step_kernels

        _, sentences, heads, capacity, width, head_dim = cache.shape
        out = qkv.new_empty(sentences * width, heads * head_dim)
        step_kernels.self_attention[(sentences * width, heads)](
            qkv, cache[0], cache[1], buffers.past, buffers.position, out, heads, capacity,
            **_attention_blocks(width, head_dim, length),
        )  # fmt: skip
        return out

    def cross_attention(self, q: Tensor, memory: Tensor, buffers: Buffers) -> Tensor:
        from regard.decoding.engine.cuda import step_kernels

        _, sentences, heads, source, head_dim = memory.shape
        out = torch.empty_like(q)
        step_kernels.cross_attention[(len(q), heads)](
            q, memory[0], memory[1], buffers.source_mask, out, heads, source,
            **_attention_blocks(len(q) // sentences, head_dim, source),
        )  # fmt: skip
        return out

    def best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        from regard.decoding.engine.cuda import step_kernels

        rows, vocabulary = scores.shape
        if k == 1:
            log_p, token = scores.new_empty(rows, 1), scores.new_empty(rows, 1, dtype=torch.long)
            block: dict[str, Any] = {"BLOCK": 4096, "num_warps": 8}
            step_kernels.best_token[(rows,)](scores, log_p, token, vocabulary, **block)
            return log_p, token
        columns = vocabulary // CHUNK
        maxima, lse = scores.new_empty(rows, columns), scores.new_empty(rows, 1)
        lines: dict[str, Any] = {"LINES": CHUNK, "BLOCK": 64, "num_warps": 8}
        step_kernels.column_maxima[(rows,)](scores, maxima, lse, columns, **lines)
        best, token = top(scores, k, maxima)
        return best - lse, token


def _attention_blocks(width: int, head_dim: int, keys: int) -> dict[str, Any]:
    """Constants of the attention kernels: a warp reads a block of up to 32 keys."""
    block = max(16, min(32, 1 << (max(keys, 1) - 1).bit_length()))
    padded = max(16, 1 << (head_dim - 1).bit_length())
    warps = 1 if padded <= 64 else 2
    return {"WIDTH": width, "D": head_dim, "BLOCK_D": padded, "BLOCK_T": block, "num_warps": warps}


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q kᵀ + mask) v, for queries that are scaled already.

    q (sentences, heads, rows, D), k and v (sentences, heads, keys, D) → (sentences · rows, heads · D).
    """
    if q.is_cuda and q.dtype == torch.bfloat16:
        energies = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT, out_dtype=torch.float32)
        energies = energies.unflatten(0, q.shape[:2])
    else:
        energies = torch.matmul(q, k.mT).to(score_dtype(q.dtype))
    out = torch.matmul(torch.softmax(energies.add_(mask), -1).to(v.dtype), v)
    return out.transpose(1, 2).flatten(2).flatten(0, 1)


def top(scores: Tensor, k: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the k best of each row, best first.

    A row is viewed as a matrix, (CHUNK, columns). Its k best entries are in the k columns with the largest
    maxima, so only these columns are sorted.
    """
    matrix = scores.unflatten(-1, (CHUNK, -1))  # (rows, CHUNK, columns)
    columns = matrix.shape[2]
    if k >= columns:
        return scores.topk(k, -1)
    maxima = matrix.amax(1) if maxima is None else maxima
    best_columns = maxima.topk(k, -1).indices  # (rows, k)
    best, index = matrix.gather(2, best_columns[:, None].expand(-1, CHUNK, -1)).flatten(1).topk(k, -1)
    return best, index // k * columns + best_columns.gather(1, index % k)
