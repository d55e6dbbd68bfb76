"""The `triton-short` kernel for NVIDIA GPUs: many short sequences at once, as in a batch of sentences.

Each program computes the whole attention matrix of one sequence and head (triton_short.py). Other kernels
spend most of their time on the unused part of tiles that are made for long sequences.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention import kernel_inputs
from regard.attention.call import Call
from regard.attention.energy import DotForm
from regard.attention.kernels.kernel import Kernel, Shortcut, grad_of_plain, plain_attention
from regard.attention.kernels.triton import Band, band_of, lengths_of, why_not_plain_softmax
from regard.attention.kernels.triton_launch import LOG2E, launch, lengths_per_sequence, padded_dim, strides_of
from regard.attention.machine import Machine
from regard.attention.mask import Mask

MAX_LENGTH = 64  # of queries and of keys: the matrix is held in registers
MAX_DIM = 128
FORWARD_WARPS, BACKWARD_WARPS = {16: 1, 32: 1, 64: 4}, {16: 1, 32: 2, 64: 4}  # by the size of the tile
MIN_PROGRAMS = 1024  # sequences × heads from which a GPU is busy, so that its time matters more than Python's


class TritonShort(Kernel):
    name = "triton-short"
    reads_unseen = False

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if (reason := why_not_plain_softmax(call, machine)) is not None:
            return reason
        if max(call.Tq, call.Tk) > MAX_LENGTH:
            return f"it is for at most {MAX_LENGTH} queries and keys"
        if call.bias is not None:
            return "it has no bias"
        if max(call.query.shape[-1], call.key.shape[-1], call.Dv) > MAX_DIM:
            return f"it takes vectors of at most {MAX_DIM} components"
        band = band_of(call.mask, call)
        if band is None or band.low > band.high:
            return "the mask is not a band of keys"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        if call.sequences * call.heads < MIN_PROGRAMS:
            return f"fewer than {MIN_PROGRAMS} sequences × heads do not fill a GPU"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        return "short sequences: our Triton kernel holds the whole matrix of a sequence and head in registers"

    def memory(self, call: Call, machine: Machine) -> int:
        return 0

    def run(self, call: Call, machine: Machine) -> Tensor:
        q, k, v, scale = kernel_inputs.dot_inputs(call)
        k, v = (x.expand(-1, call.heads, -1, -1) for x in (k, v))
        band = band_of(call.mask, call)
        assert band is not None
        out = _ShortAttention.apply(q, k, v, scale, band, call, call.mask)
        return call.split_batch(out)  # type: ignore[arg-type]

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """Call the autograd function directly; the band's lengths are those of the current mask."""
        band = band_of(call.mask, call)
        scale = kernel_inputs.plain_scale(call)
        if band is None or scale is None or len(call.leading) != 1:
            return None
        q, k, v = call.query, call.key, call.value
        if not q.shape[:2] == k.shape[:2] == v.shape[:2]:
            return None
        if band.lengths is not None and band.lengths.shape != call.leading:
            return None
        low, high, is_padded, needs_grad = band.low, band.high, band.lengths is not None, call.requires_grad
        # The shortcut outlives the call, so it must not hold its tensors; a slice of them would.
        empty = q.new_empty(0)
        options = replace(call, query=empty, key=empty, value=empty, mask=None)

        def run(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
            current = Band(low, high, lengths_of(mask) if is_padded else None)
            if not needs_grad:
                return attend_short(q, k, v, scale, current)
            return _ShortAttention.apply(q, k, v, scale, current, options, mask)  # type: ignore[return-value]

        return run


def attend_short(q: Tensor, k: Tensor, v: Tensor, scale: float, band: Band) -> Tensor:
    """Output (batch, heads, Tq, Dv) of (batch, heads, T, ·) inputs.

    Its memory is (batch, Tq, heads, Dv), so that concatenating the heads copies nothing.
    """
    q, k, v = (kernel_inputs.readable(x) for x in (q, k, v))
    B, H, Tq, _ = q.shape
    out = _like(q, v.shape[3])
    scalars = (H, Tq, k.shape[2], band.low, band.high, scale * LOG2E)
    constants = _constants(q, k, v, band)
    launch(
        "short_forward", (B * H, 1, 1), (q, k, v, out, lengths_per_sequence(band, B)),
        strides_of((q, k, v, out)), scalars, constants,
        {"num_warps": FORWARD_WARPS[constants["BLOCK"]], "num_stages": 1},
    )  # fmt: skip
    return out


def attend_short_backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scale: float, band: Band
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    q, k, v, grad = (kernel_inputs.readable(x) for x in (q, k, v, grad))
    B, H, Tq, _ = q.shape
    grads = dq, dk, dv = tuple(_like(x, x.shape[3]) for x in (q, k, v))
    scalars = (H, Tq, k.shape[2], band.low, band.high, scale * LOG2E, scale)
    constants = _constants(q, k, v, band)
    launch(
        "short_backward", (B * H, 1, 1), (q, k, v, grad, dq, dk, dv, lengths_per_sequence(band, B)),
        strides_of((q, k, v, grad, *grads)), scalars, constants,
        {"num_warps": BACKWARD_WARPS[constants["BLOCK"]], "num_stages": 1},
    )  # fmt: skip
    return dq, dk, dv


def _like(x: Tensor, dim: int) -> Tensor:
    """An empty (batch, heads, T, dim) whose memory is (batch, T, heads, dim)."""
    B, H, T, _ = x.shape
    return x.new_empty((B, T, H, dim)).transpose(1, 2)


def _constants(q: Tensor, k: Tensor, v: Tensor, band: Band) -> dict[str, Any]:
    """The compile-time arguments, in the order of the kernels' parameters."""
    D, Dv, Tq, Tk = q.shape[-1], v.shape[-1], q.shape[2], k.shape[2]
    return {
        "D": D, "DV": Dv, "BLOCK_D": padded_dim(D), "BLOCK_DV": padded_dim(Dv),
        "PADDED": band.lengths is not None,
        "BAND": band.low > 1 - Tq or band.high < Tk - 1,  # else every query sees every key
        "BLOCK": padded_dim(max(Tq, Tk)),
    }  # fmt: skip


class _ShortAttention(torch.autograd.Function):
    """The kernels with gradients; second derivatives are those of the plain formula."""

    @staticmethod
    def forward(ctx, q, k, v, scale: float, band: Band, call: Call, mask: Mask | None) -> Tensor:
        ctx.save_for_backward(q, k, v, band.lengths)
        ctx.options = scale, band, call, mask
        return attend_short(q, k, v, scale, band)

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        q, k, v, _ = ctx.saved_tensors
        scale, band, call, mask = ctx.options
        if torch.is_grad_enabled():
            with torch.no_grad():
                added = kernel_inputs.dense_bias(replace(call, query=q, key=k, value=v, mask=mask))
            plain = lambda q, k, v: plain_attention(DotForm(q, k, scale), v, added)  # noqa: E731
            return *grad_of_plain(plain, (q, k, v), grad), None, None, None, None
        return *attend_short_backward(q, k, v, grad, scale, band), None, None, None, None
