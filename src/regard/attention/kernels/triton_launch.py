"""Launch the kernels of triton_band.py, triton_short.py and triton_decode.py: grids, strides, block sizes.

`banded`, `banded_backward` and `banded_column_sums` launch them for any tensors. `PreparedForward` and
`PreparedColumnSums` compute all arguments except the tensors once: for short inputs that takes longer than
the kernels.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention import kernel_inputs

LOG2E = math.log2(math.e)
MAX_HANDLES = 4096  # compiled kernels to cache


@dataclass(frozen=True)
class Band:
    """A mask low ≤ key − query ≤ high, and the number of keys of each sequence (None: all)."""

    low: int
    high: int
    lengths: Tensor | None = None


@dataclass(frozen=True)
class Slopes:
    """ALiBi slopes per head, in base 2, divided by the temperature; `shift`: the key position of query 0."""

    tensor: Tensor | None = None
    shift: int = 0


def banded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    band: Band,
    slopes: Slopes,
    sinks: Tensor | None = None,
    *,
    logs: bool = True,
    sigmoid: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Output (batch, heads, Tq, Dv) and, with `logs`, log2 Σ exp2 of each row; key heads may be grouped.

    With `sigmoid`, rows have no sum and no logs.
    """
    logs = logs and not sigmoid
    q, k, v = (kernel_inputs.readable(x) for x in (q, k, v))
    B, H, Tq, _ = q.shape
    out = q.new_empty((B, H, Tq, v.shape[3]))
    row_logs = q.new_empty((B, H, Tq), dtype=torch.float32) if logs else None
    block = _forward_block(q, v, band)
    grid = (-(-Tq // block["BM"]), B * H, 1)
    tensors = (q, k, v, out, row_logs, slopes.tensor, sinks, lengths_per_sequence(band, B))
    constants = _forward_constants(q, v, band, slopes, sinks, logs=logs, sigmoid=sigmoid)
    launch(
        "forward", grid, tensors, strides_of((q, k, v)), _scalars(q, k, scale, band, slopes), constants, block
    )
    return out, row_logs


def banded_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    logs: Tensor | None,
    grad: Tensor,
    scale: float,
    band: Band,
    slopes: Slopes,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, and output · gradient of each row.

    Without `out` and `logs`, those of sigmoid attention, which needs none of the three.
    """
    q, k, v, grad = (kernel_inputs.readable(x) for x in (q, k, v, grad))
    B, H, Tq, _ = q.shape
    Hk, Tk = k.shape[1:3]
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    constants = _constants(q, v, band, slopes, sigmoid=logs is None)
    optional = (slopes.tensor, lengths_per_sequence(band, B))
    scalars, strides = (*_scalars(q, k, scale, band, slopes), scale), strides_of((q, k, v, grad))
    value_constants = {n: constants[n] for n in ("DV", "BLOCK_DV")}
    if logs is None:
        logs = products = q.new_zeros((B, H, Tq), dtype=torch.float32)
    else:
        products = torch.empty_like(logs)
        block, grid = {"BM": 64, "num_warps": 4}, (-(-Tq // 64), B * H, 1)
        tensors = (out, grad, products)
        launch("row_products", grid, tensors, strides_of((grad,)), (H, Tq), value_constants, block)
    block = _keys_block(q, v, band)
    grid = (-(-Tk // block["BN"]), B * Hk, 1)
    tensors = (q, k, v, grad, logs, products, dk, dv, *optional)
    launch("backward_keys", grid, tensors, strides, scalars, constants, block)
    block = _queries_block(q, v, band)
    grid = (-(-Tq // block["BM"]), B * H, 1)
    tensors = (q, k, v, grad, logs, products, dq, *optional)
    launch("backward_queries", grid, tensors, strides, scalars, constants, block)
    return dq, dk, dv, products


def banded_column_sums(q: Tensor, k: Tensor, scale: float, band: Band, slopes: Slopes) -> Tensor:
    """Total weight of each key over all queries, (batch, heads, Tk) in float32; no Tq × Tk matrix."""
    q, k = kernel_inputs.readable(q), kernel_inputs.readable(k)
    return PreparedColumnSums(q, k, scale, band, slopes)(q, k, lengths_per_sequence(band, q.shape[0]))


def _scalars(q: Tensor, k: Tensor, scale: float, band: Band, slopes: Slopes) -> tuple:
    """H, groups, Tq, Tk, low, high, shift and scale of the kernels."""
    H = q.shape[1]
    return H, H // k.shape[1], q.shape[2], k.shape[2], band.low, band.high, slopes.shift, scale * LOG2E


def can_launch(q: Tensor, k: Tensor, v: Tensor, device: int) -> bool:
    """True if the tensors are aligned, as the kernel was compiled for, and on the current device."""
    return not (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16 and torch._C._cuda_getDevice() == device


class PreparedForward:
    """The forward kernel for contiguous tensors of one signature, with all arguments except the tensors."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        band: Band,
        slopes: Slopes,
        *,
        sigmoid: bool = False,
    ) -> None:
        block, (B, H, Tq, _) = _forward_block(q, v, band), q.shape
        self.shape, self.slopes, self.device = (B, H, Tq, v.shape[3]), slopes.tensor, q.get_device()
        strides = tuple(n for x in (q, k, v) for n in _contiguous_strides(x))
        constants = _forward_constants(q, v, band, slopes, None, logs=False, sigmoid=sigmoid)
        grid = (-(-Tq // block["BM"]), B * H, 1)
        scalars = _scalars(q, k, scale, band, slopes)
        self.launch = PreparedLaunch("forward", grid, strides, scalars, constants, block)

    def accepts(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """True if the tensors are contiguous, aligned and on the current device."""
        if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
            return False
        return can_launch(q, k, v, self.device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        out = q.new_empty(self.shape)
        self.launch(q, k, v, out, None, self.slopes, None, lengths)
        return out


class PreparedColumnSums:
    """The kernels of column sums for one signature, with all arguments except the tensors.

    The forward kernel computes log2 Σ exp2 of each row, a second kernel the total weight of each key. Neither
    stores the matrix.
    """

    def __init__(self, q: Tensor, k: Tensor, scale: float, band: Band, slopes: Slopes) -> None:
        dummy_values = k[..., : min(16, k.shape[-1])]  # of the forward kernel only the logs are used
        (B, H, Tq, _), Tk, self.slopes = q.shape, k.shape[2], slopes.tensor
        self.out_shape, self.logs_shape = (B, H, Tq, dummy_values.shape[3]), (B, H, Tq)
        self.sums_shape = (B, H, Tk)
        scalars = _scalars(q, k, scale, band, slopes)
        block = _forward_block(q, dummy_values, band)
        self.forward = PreparedLaunch(
            "forward", (-(-Tq // block["BM"]), B * H, 1), strides_of((q, k, k)), scalars,
            _forward_constants(q, dummy_values, band, slopes, None, logs=True, sigmoid=False), block,
        )  # fmt: skip
        constants = _constants(q, k, band, slopes)
        constants = {n: constants[n] for n in ("D", "BLOCK_D", "BIAS", "PADDED")}
        block = {"BM": 64, "BN": 128, "num_warps": 8, "num_stages": 3}
        self.sum_columns = PreparedLaunch(
            "column_sums", (-(-Tk // 128), B * H, 1), strides_of((q, k)), scalars, constants, block
        )

    def __call__(self, q: Tensor, k: Tensor, lengths: Tensor | None) -> Tensor:
        """Total weight of each key over all queries, (batch, heads, Tk) in float32."""
        logs = q.new_empty(self.logs_shape, dtype=torch.float32)
        self.forward(q, k, k, q.new_empty(self.out_shape), logs, self.slopes, None, lengths)
        sums = q.new_empty(self.sums_shape, dtype=torch.float32)
        self.sum_columns(q, k, logs, sums, self.slopes, lengths)
        return sums


class PreparedLaunch:
    """Repeated launches of one kernel with other tensors of the same shapes, strides and alignment."""

    def __init__(
        self,
        name: str,
        grid: tuple[int, int, int],
        strides: tuple[int, ...],
        scalars: tuple,
        constants: dict,
        block: dict,
    ) -> None:
        self.name, self.grid, self.options = name, grid, (strides, scalars, constants, block)
        sizes = (block[n] for n in ("BM", "BN") if n in block)
        self.arguments = (*strides, *scalars, *constants.values(), *sizes)
        self.handle: Any = None  # the compiled kernel on its grid, after the first call on a GPU

    def __call__(self, *tensors: Tensor | None) -> None:
        if self.handle is not None:
            self.handle(*tensors, *self.arguments)
            return
        handle = launch(self.name, self.grid, tensors, *self.options)
        self.handle = None if handle is None else handle[self.grid]


def _contiguous_strides(x: Tensor) -> tuple[int, int, int]:
    _, heads, T, dim = x.shape
    return heads * T * dim, T * dim, dim


_handles: dict[tuple, Any] = {}  # compiled kernels, by everything that Triton specializes on


def _handle_key(name: str, tensors: tuple, strides: tuple[int, ...], constants: dict, block: dict) -> tuple:
    aligned = tuple(x is None or x.data_ptr() % 16 == 0 for x in tensors)
    device, dtype = tensors[0].get_device(), tensors[0].dtype
    return name, device, dtype, strides, aligned, *constants.values(), *block.values()


def strides_of(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(n for x in tensors for n in x.stride()[:3])


def launch(
    name: str,
    grid: tuple[int, int, int],
    tensors: tuple,
    strides: tuple[int, ...],
    scalars: tuple,
    constants: dict,
    block: dict,
) -> Any:
    """Launch a kernel with (tensors, strides, scalars, constants, block sizes).

    Returns the compiled kernel, None on the CPU. It is cached here; Triton's own lookup takes 25 µs more per
    call.
    """
    key = _handle_key(name, tensors, strides, constants, block)
    handle, on_gpu = _handles.get(key), tensors[0].is_cuda
    other_device = on_gpu and torch._C._cuda_getDevice() != tensors[0].get_device()
    with torch.cuda.device(tensors[0].device) if other_device else nullcontext():
        if handle is not None:
            sizes = (block[n] for n in ("BM", "BN") if n in block)
            handle[grid](*tensors, *strides, *scalars, *constants.values(), *sizes)
            return handle
        from regard.attention.kernels import triton_band, triton_decode, triton_short

        module = next(m for m in (triton_short, triton_decode, triton_band) if hasattr(m, name))
        handle = getattr(module, name)[grid](*tensors, *strides, *scalars, **constants, **block)
    if not on_gpu:
        return None
    if len(_handles) >= MAX_HANDLES:
        _handles.clear()
    _handles[key] = handle
    return handle


def lengths_per_sequence(band: Band, batch: int) -> Tensor | None:
    return None if band.lengths is None else band.lengths.expand(batch).contiguous()


def _constants(q: Tensor, v: Tensor, band: Band, slopes: Slopes, *, sigmoid: bool = False) -> dict[str, Any]:
    """The compile-time arguments, in the order of the kernels' parameters."""
    D, Dv = q.shape[-1], v.shape[-1]
    bias = 0 if slopes.tensor is None else 1 if band.high <= slopes.shift else 2
    return {
        "D": D, "DV": Dv, "BLOCK_D": padded_dim(D), "BLOCK_DV": padded_dim(Dv), "BIAS": bias,
        "SIGMOID": sigmoid, "PADDED": band.lengths is not None,
    }  # fmt: skip


def _forward_constants(
    q: Tensor, v: Tensor, band: Band, slopes: Slopes, sinks: Tensor | None, *, logs: bool, sigmoid: bool
) -> dict[str, Any]:
    constants = _constants(q, v, band, slopes, sigmoid=sigmoid)
    padded = constants.pop("PADDED")
    return {**constants, "SINKS": sinks is not None, "PADDED": padded, "LOGS": logs}


def padded_dim(n: int) -> int:
    """The power of two to which n features are padded; tl.dot needs at least 16."""
    return max(16, 1 << (n - 1).bit_length())


# Block sizes were chosen by `python -m benchmarks.gpu.band --tune` on an H200.


def _forward_block(q: Tensor, v: Tensor, band: Band) -> dict[str, int]:
    if _max_dim(q, v) >= 256:
        return {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}
    return {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2 if _is_short(q, band) else 3}


def _keys_block(q: Tensor, v: Tensor, band: Band) -> dict[str, int]:
    if _max_dim(q, v) >= 256:
        return {"BM": 32, "BN": 64, "num_warps": 8, "num_stages": 1}
    if _is_short(q, band):
        return {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 1}
    return {"BM": 32, "BN": 64, "num_warps": 4, "num_stages": 3}


def _queries_block(q: Tensor, v: Tensor, band: Band) -> dict[str, int]:
    if _max_dim(q, v) >= 256:
        return {"BM": 64, "BN": 32, "num_warps": 8, "num_stages": 1}
    if _is_short(q, band):
        return {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}
    return {"BM": 128, "BN": 64, "num_warps": 8, "num_stages": 3}


def _max_dim(q: Tensor, v: Tensor) -> int:
    return padded_dim(max(q.shape[-1], v.shape[-1]))


def _is_short(q: Tensor, band: Band) -> bool:
    """True if a program loops over few blocks, so that there is little work to overlap its loads with."""
    return band.high - band.low < 1024 or q.shape[2] < 1024
