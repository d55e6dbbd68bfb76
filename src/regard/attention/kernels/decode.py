"""The `triton-cache` kernel for NVIDIA GPUs: one to four queries per sequence against a cache of keys.

Such a call takes as long as reading the keys and values. Query heads that share a key head are computed
together, so that these are read once, and the keys of a sequence are split between programs if there are few
sequences (triton_decode.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.attention import kernel_inputs
from regard.attention.call import Call
from regard.attention.kernels.kernel import Kernel, Shortcut
from regard.attention.kernels.triton import Band, band_of, lengths_of, why_not_plain_softmax
from regard.attention.kernels.triton_launch import (
    LOG2E,
    PreparedLaunch,
    can_launch,
    lengths_per_sequence,
    padded_dim,
    strides_of,
)
from regard.attention.machine import Machine
from regard.attention.mask import Mask

MAX_QUERIES = 4  # per sequence and head
MAX_ROWS = 64  # queries that share a key head: they are one tile
PROGRAMS_PER_SM = 4  # keys are split until there are so many programs
MIN_KEYS = 256  # of a split
MAX_SPLITS = 128
MIN_KEYS_READ = 1 << 16  # over all sequences and key heads; below, host time decides, and SDPA takes less


class TritonCache(Kernel):
    name = "triton-cache"
    reads_unseen = False

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if (reason := why_not_plain_softmax(call, machine)) is not None:
            return reason
        if call.Tq > MAX_QUERIES:
            return f"it is for at most {MAX_QUERIES} queries per sequence"
        if call.requires_grad:
            return "it has no gradient"
        if call.bias is not None:
            return "it has no bias"
        if call.heads // _key_heads(call) * call.Tq > MAX_ROWS:
            return f"it takes at most {MAX_ROWS} queries for each key head"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        if call.mask is None and call.sequences * _key_heads(call) * call.Tk < MIN_KEYS_READ:
            return f"for fewer than {MIN_KEYS_READ} keys in all, SDPA takes less host time"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        return "few queries per sequence: our Triton kernel reads each key and value once"

    def memory(self, call: Call, machine: Machine) -> int:
        band, Hk = band_of(call.mask, call), _key_heads(call)
        assert band is not None
        splits = _splits(call.sequences * Hk, call.Tq, call.Tk, band, call.query.get_device())
        return 0 if splits == 1 else call.sequences * call.heads * call.Tq * splits * (call.Dv + 1) * 4

    def run(self, call: Call, machine: Machine) -> Tensor:
        q, k, v, scale = kernel_inputs.dot_inputs(call, grouped=True)
        band = band_of(call.mask, call)
        assert band is not None
        return call.split_batch(attend_cache(q, k, v, scale, band))

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """Launch with precomputed arguments; the lengths are those of the current mask."""
        band = band_of(call.mask, call)
        scale = kernel_inputs.plain_scale(call)
        if band is None or scale is None or len(call.leading) != 1:
            return None
        q, k, v = call.query, call.key, call.value
        if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
            return None
        if band.lengths is not None and band.lengths.shape != call.leading:
            return None
        launch, is_padded = PreparedCache(q, k, v, scale, band), band.lengths is not None

        def run(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor | None:
            lengths = lengths_of(mask) if is_padded else None
            return launch(q, k, v, lengths) if launch.accepts(q, k, v, lengths) else None

        return run


def _key_heads(call: Call) -> int:
    """Heads of keys after `dot_inputs`: those of the call if keys and values have as many."""
    heads = call.key.shape[-3]
    return heads if heads == call.value.shape[-3] and not call.per_head_energy else call.heads


def attend_cache(q: Tensor, k: Tensor, v: Tensor, scale: float, band: Band) -> Tensor:
    """Output (batch, heads, Tq, Dv) of (batch, heads, T, ·) inputs; key heads may be grouped."""
    q, k, v = (kernel_inputs.readable(x) for x in (q, k, v))
    return PreparedCache(q, k, v, scale, band)(q, k, v, lengths_per_sequence(band, q.shape[0]))


class PreparedCache:
    """The kernels for tensors of one signature and one set of strides, with all arguments except tensors."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, scale: float, band: Band) -> None:
        (B, H, Tq, D), (Hk, Tk), Dv = q.shape, k.shape[1:3], v.shape[3]
        rows, self.device = H // Hk * Tq, q.get_device()
        splits = _splits(B * Hk, Tq, Tk, band, self.device)
        self.shape, self.strides = (B, H, Tq, Dv), (q.stride(), k.stride(), v.stride())
        constants = {
            "D": D, "DV": Dv, "BLOCK_D": padded_dim(D), "BLOCK_DV": padded_dim(Dv), "ROWS": padded_dim(rows),
            "PADDED": band.lengths is not None,
            "BAND": Tq > 1 and (band.low > 1 - Tq or band.high < Tk - 1),  # one query sees a range of keys
            "SPLIT": splits > 1,
        }  # fmt: skip
        scalars = (Hk, rows, Tq, Tk, band.low, band.high, splits, scale * LOG2E)
        block = _block(constants)
        self.launch = PreparedLaunch(
            "cache_forward", (B * Hk, splits, 1), strides_of((q, k, v)), scalars, constants, block
        )
        self.merge, self.parts = None, B * H * Tq * splits * (Dv + 1)  # the outputs of all parts, and logs
        if splits > 1:
            constants = {n: constants[n] for n in ("DV", "BLOCK_DV")}
            block = {"BN": 16, "num_warps": 2, "num_stages": 1}
            self.merge = PreparedLaunch(
                "cache_merge", (B * H * Tq, 1, 1), (), (rows, splits), constants, block
            )

    def accepts(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> bool:
        """True if the tensors have the strides of the first ones, are aligned and on the current device."""
        if (q.stride(), k.stride(), v.stride()) != self.strides or q.is_neg() or k.is_neg() or v.is_neg():
            return False
        if lengths is not None and (lengths.data_ptr() % 16 or not lengths.is_contiguous()):
            return False
        return can_launch(q, k, v, self.device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        out = q.new_empty(self.shape)
        if self.merge is None:
            self.launch(q, k, v, out, lengths)
            return out
        parts = q.new_empty(self.parts, dtype=torch.float32)
        self.launch(q, k, v, parts, lengths)
        self.merge(out, parts)
        return out


def _splits(programs: int, Tq: int, Tk: int, band: Band, device: int) -> int:
    """Parts of the keys of a sequence: enough to fill the GPU, not too short."""
    keys = min(Tk, Tq + band.high) - max(band.low, 0)
    wanted = -(-PROGRAMS_PER_SM * _multiprocessors(device) // max(programs, 1))
    return max(1, min(wanted, keys // MIN_KEYS, MAX_SPLITS))


@lru_cache(maxsize=64)
def _multiprocessors(device: int) -> int:
    """Streaming multiprocessors of a GPU; for CPU tensors (tests, plans for another machine) an H200's."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device >= 0 else 132


def _block(constants: dict[str, Any]) -> dict[str, int]:
    """Keys per step and stages: 32 KiB of keys and values a step; all fits into the 99 KiB of small GPUs."""
    dim = max(constants["BLOCK_D"], constants["BLOCK_DV"])
    keys = 128 if dim <= 64 else 64 if dim <= 128 else 32
    keys = min(keys, 64) if constants["ROWS"] > 16 else keys
    return {"BN": keys, "num_warps": 4, "num_stages": 2 if constants["ROWS"] > 32 else 3}
