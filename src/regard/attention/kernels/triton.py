"""Triton kernels for NVIDIA GPUs: half-precision softmax attention over a band of keys.

They support windows, causal masks with any offset, padded batches and ALiBi (slopes in float32), also
combined. They are compiled once per head size and kind of bias, not per shape or window.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from regard.attention import kernel_inputs
from regard.attention.bias import ALiBi
from regard.attention.call import Call
from regard.attention.energy import DotForm, ScaledDot
from regard.attention.kernels import sdpa
from regard.attention.kernels.kernel import Kernel, Shortcut, grad_of_plain, plain_attention
from regard.attention.machine import Machine
from regard.attention.mask import And, Mask
from regard.attention.normalize import Softmax
from regard.attention.position_masks import Padding
from regard.attention.precision import HALF

MAX_DIM = 256  # of a query, key or value
LOG2E = math.log2(math.e)
MAX_HANDLES = 4096  # compiled kernels to remember


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


class Triton(Kernel):
    name = "triton"
    reads_unseen = False

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if machine.kind != "cuda" or machine.capability < (8, 0):
            return "our Triton kernels are for NVIDIA GPUs from compute capability 8.0"
        if machine.tracer is not None or machine.transform is not None:
            return machine.transform or machine.tracer
        if not is_installed():
            return "Triton is not installed"
        if not call.is_empty and has_sinks(call):
            if not sdpa.TEMPERATURES[0] <= call.temperature <= sdpa.TEMPERATURES[1]:
                return f"a temperature of {call.temperature:g} may overflow there"
        elif (reason := sdpa.why_not_softmax(call, "our Triton kernel")) is not None:
            return reason
        if call.energy.form != "dot":
            return f"{type(call.energy).__name__} is not a dot product"
        if call.dtype not in HALF:
            return f"it computes in bfloat16 and float16, not in {str(call.dtype).removeprefix('torch.')}"
        if call.softcap is not None or call.gate is not None or call.dropout:
            return "it has no soft cap, gate or dropout"
        if max(call.query.shape[-1], call.key.shape[-1], call.Dv) > MAX_DIM:
            return f"it takes vectors of at most {MAX_DIM} components"
        is_alibi = type(call.bias) is ALiBi and not isinstance(call.bias.offset, Tensor)
        if call.bias is not None and not is_alibi:
            return "the only bias it supports is ALiBi"
        if band_of(call.mask, call) is None:
            return "the only masks it supports are a band of keys and padding (Causal, Window, Padding)"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        if has_sinks(call):
            return None
        if call.bias is None and (call.mask is None or sdpa.is_torch_causal(call)):
            return "SDPA has fused kernels for plain and causal attention, which are faster"
        if call.bias is None and type(call.mask) is Padding and call.requires_grad and not machine.capturing:
            return "SDPA's backward pass, which is not in Python, takes less host time"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        return "our Triton kernel reads only the keys that the mask allows"

    def memory(self, call: Call, machine: Machine) -> int:
        return call.sequences * call.heads * call.Tq * 4

    def run(self, call: Call, machine: Machine) -> Tensor:
        q, k, v, scale = kernel_inputs.dot_inputs(call, grouped=True)
        if scale <= 0:  # the kernel scales a row's maximum, so the scale must be positive
            q, scale = (-q, -scale) if scale else (q * 0.0, 1.0)
        if k.shape[1] == 1 < call.heads:
            k, v = (x.expand(-1, call.heads, -1, -1) for x in (k, v))
        band, slopes = band_of(call.mask, call), slopes_of(call)
        assert band is not None
        sinks = sinks_of(call)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, sinks)):
            out = _Attention.apply(q, k, v, sinks, scale, band, slopes, call, call.mask)
            return call.split_batch(out)  # type: ignore[arg-type]
        return call.split_batch(banded(q, k, v, scale, band, slopes, sinks, logs=False)[0])

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """Launch with precomputed arguments; without gradients, for contiguous tensors only."""
        band = band_of(call.mask, call)
        if band is None or type(call.energy) is not ScaledDot or len(call.leading) != 1 or has_sinks(call):
            return None
        q, k, v = call.query, call.key, call.value
        if not q.shape[0] == k.shape[0] == v.shape[0]:
            return None
        if not k.shape[1] == v.shape[1] == call.heads // call.groups:
            return None
        if band.lengths is not None and band.lengths.shape != call.leading:
            return None
        scale = call.energy.as_dot(q, k).scale / call.temperature
        if call.requires_grad:
            return _training_shortcut(call, scale, band)
        launch = PreparedForward(q, k, v, scale, band, slopes_of(call))

        def run(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor | None:
            lengths = None if band.lengths is None else _lengths_of(mask)
            return launch(q, k, v, lengths) if launch.accepts(q, k, v) else None

        return run


def _training_shortcut(call: Call, scale: float, band: Band) -> Shortcut:
    slopes = slopes_of(call)
    # The shortcut outlives the call: keep its options, not its tensors.
    options = replace(call, query=call.query[:0], key=call.key[:0], value=call.value[:0])

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
        current = band if band.lengths is None else replace(band, lengths=_lengths_of(mask))
        return _Attention.apply(q, k, v, None, scale, current, slopes, options, mask)  # type: ignore[return-value]

    return run


class PreparedForward:
    """The forward kernel for contiguous tensors of one signature, with all arguments except the tensors."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, scale: float, band: Band, slopes: Slopes) -> None:
        block, (B, H, Tq, _) = _forward_block(q, v, band), q.shape
        self.shape, self.slopes, self.device = (B, H, Tq, v.shape[3]), slopes.tensor, q.get_device()
        strides = tuple(n for x in (q, k, v) for n in _contiguous_strides(x))
        constants = _forward_constants(q, v, band, slopes, None, logs=False)
        grid = (-(-Tq // block["BM"]), B * H, 1)
        scalars = _scalars(q, k, scale, band, slopes)
        self.launch = PreparedLaunch("forward", grid, strides, scalars, constants, block)

    def accepts(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
            return False
        return (
            not (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16
            and torch._C._cuda_getDevice() == self.device
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        out = q.new_empty(self.shape)
        self.launch(q, k, v, out, None, self.slopes, None, lengths)
        return out


class PreparedColumnSums:
    """The kernels of column sums for one signature, with all arguments except the tensors.

    The forward kernel gives log2 Σ exp2 of each row, a second kernel the total weight of each key. Neither
    stores the matrix.
    """

    def __init__(self, q: Tensor, k: Tensor, scale: float, band: Band, slopes: Slopes) -> None:
        dummy_values = k[..., : min(16, k.shape[-1])]  # only the logs are needed
        (B, H, Tq, _), Tk, self.slopes = q.shape, k.shape[2], slopes.tensor
        self.out, self.logs, self.sums = (B, H, Tq, dummy_values.shape[3]), (B, H, Tq), (B, H, Tk)
        scalars = _scalars(q, k, scale, band, slopes)
        block = _forward_block(q, dummy_values, band)
        self.forward = PreparedLaunch(
            "forward", (-(-Tq // block["BM"]), B * H, 1), _strides((q, k, k)), scalars,
            _forward_constants(q, dummy_values, band, slopes, None, logs=True), block,
        )  # fmt: skip
        constants = _constants(q, k, band, slopes)
        constants = {n: constants[n] for n in ("D", "BLOCK_D", "BIAS", "PADDED")}
        block = {"BM": 64, "BN": 128, "num_warps": 8, "num_stages": 3}
        self.sum_columns = PreparedLaunch(
            "column_sums", (-(-Tk // 128), B * H, 1), _strides((q, k)), scalars, constants, block
        )

    def __call__(self, q: Tensor, k: Tensor, lengths: Tensor | None) -> Tensor:
        """Total weight of each key over all queries, (batch, heads, Tk) in float32."""
        logs = q.new_empty(self.logs, dtype=torch.float32)
        self.forward(q, k, k, q.new_empty(self.out), logs, self.slopes, None, lengths)
        sums = q.new_empty(self.sums, dtype=torch.float32)
        self.sum_columns(q, k, logs, sums, self.slopes, lengths)
        return sums


class PreparedLaunch:
    """A launch of one kernel in which only the tensors change, not their strides or alignment."""

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
        self.handle = None  # the compiled kernel, after the first call on a GPU

    def __call__(self, *tensors: Tensor | None) -> None:
        if self.handle is not None:
            self.handle(*tensors, *self.arguments)
            return
        handle = _launch(self.name, self.grid, tensors, *self.options)
        self.handle = None if handle is None else handle[self.grid]


def _lengths_of(mask: Mask | None) -> Tensor | None:
    """The lengths of the Padding in a mask that `band_of` accepts."""
    if type(mask) is Padding:
        return mask.lengths if isinstance(mask.lengths, Tensor) else None
    if type(mask) is And:
        lengths = _lengths_of(mask.a)
        return _lengths_of(mask.b) if lengths is None else lengths
    return None


def _contiguous_strides(x: Tensor) -> tuple[int, int, int]:
    _, heads, T, dim = x.shape
    return heads * T * dim, T * dim, dim


@lru_cache(maxsize=1)
def is_installed() -> bool:
    return find_spec("triton") is not None


def band_of(mask: Mask | None, call: Call) -> Band | None:
    """The mask as a band and a number of keys per sequence; None if it cannot be expressed so."""
    Tq, Tk = call.Tq, call.Tk
    if mask is None:
        return Band(-Tq, Tk)
    if type(mask) is And:
        a, b = band_of(mask.a, call), band_of(mask.b, call)
        if a is None or b is None or (a.lengths is not None and b.lengths is not None):
            return None
        return Band(max(a.low, b.low), min(a.high, b.high), b.lengths if a.lengths is None else a.lengths)
    if type(mask) is Padding and isinstance(mask.lengths, Tensor):
        return Band(-Tq, Tk, mask.lengths)
    limits = mask.static_band(Tq, Tk)
    return None if limits is None else Band(*limits)


def slopes_of(call: Call) -> Slopes:
    if call.bias is None:
        return Slopes()
    assert type(call.bias) is ALiBi
    shift = call.Tk - call.Tq if call.bias.offset is None else call.bias.offset
    assert not isinstance(shift, Tensor)
    return Slopes(_slopes(call.bias.heads, call.heads, call.temperature, call.query.device), shift)


def has_sinks(call: Call) -> bool:
    return type(call.normalize) is Softmax and call.normalize.sinks is not None


def sinks_of(call: Call) -> Tensor | None:
    """The softmax's sinks, one per head, in base 2 and divided by the temperature."""
    if not has_sinks(call):
        return None
    sinks: Tensor = call.normalize.sinks  # type: ignore[attr-defined]
    return (sinks.float() * (LOG2E / call.temperature)).expand(call.heads).contiguous()


@lru_cache(maxsize=64)
def _slopes(alibi_heads: int, heads: int, temperature: float, device: torch.device) -> Tensor:
    slopes = torch.tensor(ALiBi(alibi_heads).slopes, dtype=torch.float64, device="cpu") * LOG2E / temperature
    return slopes.expand(heads).to(device, torch.float32).contiguous()


class _Attention(torch.autograd.Function):
    """The Triton kernels with gradients; second derivatives are those of the plain formula."""

    @staticmethod
    def forward(
        ctx, q, k, v, sinks, scale: float, band: Band, slopes: Slopes, call: Call, mask: Mask | None
    ) -> Tensor:
        out, logs = banded(q, k, v, scale, band, slopes, sinks)
        ctx.save_for_backward(q, k, v, sinks, out, logs, band.lengths)
        ctx.options = scale, band, slopes, call, mask
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        q, k, v, sinks, out, logs, _ = ctx.saved_tensors
        scale, band, slopes, call, mask = ctx.options
        no_grads = (None,) * 5
        if torch.is_grad_enabled():
            with torch.no_grad():
                added = kernel_inputs.dense_bias(replace(call, query=q, key=k, value=v, mask=mask))
            plain = lambda q, k, v, s: _plain(q, k, v, s, scale, added)  # noqa: E731
            return *grad_of_plain(plain, (q, k, v, sinks), grad), *no_grads
        dq, dk, dv, rows = banded_backward(q, k, v, out, logs, grad, scale, band, slopes)
        dsinks = None
        if (
            sinks is not None
        ):  # a sink's weight is exp2(sink − logs), its value is zero; ln 2 because of base 2
            dsinks = -(torch.exp2(sinks[:, None] - logs) * rows).sum((0, 2)) * math.log(2.0)
        return dq, dk, dv, dsinks, *no_grads


def _plain(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scale: float, added: Tensor | None
) -> Tensor:
    """The same in plain torch. A sink is one more key with the sink as its energy and value zero."""
    if sinks is not None:
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        sinks = (sinks * math.log(2.0))[:, None, None].expand(1, -1, q.shape[2], 1)
        if added is None:
            added = q.new_zeros((1, q.shape[1], q.shape[2], k.shape[2] - 1), dtype=torch.float32)
        added = added.expand(-1, q.shape[1], -1, -1)
        added = torch.cat([added, sinks.expand(len(added), -1, -1, -1)], -1)
    return plain_attention(DotForm(q, k, scale), v, added)


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
) -> tuple[Tensor, Tensor | None]:
    """Output (batch, heads, Tq, Dv) and, with `logs`, log2 Σ exp2 of each row; key heads may be grouped."""
    q, k, v = (kernel_inputs.readable(x) for x in (q, k, v))
    B, H, Tq, _ = q.shape
    out = q.new_empty((B, H, Tq, v.shape[3]))
    sums = q.new_empty((B, H, Tq), dtype=torch.float32) if logs else None
    block = _forward_block(q, v, band)
    grid = (-(-Tq // block["BM"]), B * H, 1)
    tensors = (q, k, v, out, sums, slopes.tensor, sinks, _lengths(band, B))
    constants = _forward_constants(q, v, band, slopes, sinks, logs=logs)
    _launch(
        "forward", grid, tensors, _strides((q, k, v)), _scalars(q, k, scale, band, slopes), constants, block
    )
    return out, sums


def banded_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logs: Tensor,
    grad: Tensor,
    scale: float,
    band: Band,
    slopes: Slopes,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, and output · gradient of each row."""
    q, k, v, grad = (kernel_inputs.readable(x) for x in (q, k, v, grad))
    B, H, Tq, _ = q.shape
    Hk, Tk = k.shape[1:3]
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    rows = torch.empty_like(logs)
    constants, optional = _constants(q, v, band, slopes), (slopes.tensor, _lengths(band, B))
    scalars, strides = (*_scalars(q, k, scale, band, slopes), scale), _strides((q, k, v, grad))
    value_constants = {n: constants[n] for n in ("DV", "BLOCK_DV")}
    block, grid = {"BM": 64, "num_warps": 4}, (-(-Tq // 64), B * H, 1)
    _launch("row_products", grid, (out, grad, rows), _strides((grad,)), (H, Tq), value_constants, block)
    block = _keys_block(q, v, band)
    grid = (-(-Tk // block["BN"]), B * Hk, 1)
    tensors = (q, k, v, grad, logs, rows, dk, dv, *optional)
    _launch("backward_keys", grid, tensors, strides, scalars, constants, block)
    block = _queries_block(q, v, band)
    grid = (-(-Tq // block["BM"]), B * H, 1)
    tensors = (q, k, v, grad, logs, rows, dq, *optional)
    _launch("backward_queries", grid, tensors, strides, scalars, constants, block)
    return dq, dk, dv, rows


def banded_column_sums(q: Tensor, k: Tensor, scale: float, band: Band, slopes: Slopes) -> Tensor:
    """Total weight of each key over all queries, (batch, heads, Tk) in float32; no Tq × Tk matrix."""
    q, k = kernel_inputs.readable(q), kernel_inputs.readable(k)
    return PreparedColumnSums(q, k, scale, band, slopes)(q, k, _lengths(band, q.shape[0]))


def _scalars(q: Tensor, k: Tensor, scale: float, band: Band, slopes: Slopes) -> tuple:
    H = q.shape[1]
    return H, H // k.shape[1], q.shape[2], k.shape[2], band.low, band.high, slopes.shift, scale * LOG2E


_handles: dict[tuple, Any] = {}  # compiled kernels, by everything that Triton specializes on


def _key(name: str, tensors: tuple, strides: tuple[int, ...], constants: dict, block: dict) -> tuple:
    aligned = tuple(x is None or x.data_ptr() % 16 == 0 for x in tensors)
    device, dtype = tensors[0].get_device(), tensors[0].dtype
    return name, device, dtype, strides, aligned, *constants.values(), *block.values()


def _strides(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(n for x in tensors for n in x.stride()[:3])


def _launch(
    name: str,
    grid: tuple[int, int, int],
    tensors: tuple,
    strides: tuple[int, ...],
    scalars: tuple,
    constants: dict,
    block: dict,
) -> Any:
    """Launch a kernel of triton_band.py with (tensors, strides, scalars, constants, block sizes).

    Returns the compiled kernel, None on the CPU. It is cached here; Triton's own lookup takes 25 µs more per
    call.
    """
    key = _key(name, tensors, strides, constants, block)
    handle, on_gpu = _handles.get(key), tensors[0].is_cuda
    other_device = on_gpu and torch._C._cuda_getDevice() != tensors[0].get_device()
    with torch.cuda.device(tensors[0].device) if other_device else nullcontext():
        if handle is not None:
            sizes = (block[n] for n in ("BM", "BN") if n in block)
            handle[grid](*tensors, *strides, *scalars, *constants.values(), *sizes)
            return handle
        from regard.attention.kernels import triton_band

        handle = getattr(triton_band, name)[grid](*tensors, *strides, *scalars, **constants, **block)
    if not on_gpu:
        return None
    if len(_handles) >= MAX_HANDLES:
        _handles.clear()
    _handles[key] = handle
    return handle


def _lengths(band: Band, batch: int) -> Tensor | None:
    return None if band.lengths is None else band.lengths.expand(batch).contiguous()


def _constants(q: Tensor, v: Tensor, band: Band, slopes: Slopes) -> dict[str, Any]:
    """The compile-time arguments, in the order of the kernels' parameters."""
    D, Dv = q.shape[-1], v.shape[-1]
    bias = 0 if slopes.tensor is None else 1 if band.high <= slopes.shift else 2
    return {
        "D": D, "DV": Dv, "BLOCK_D": _block_dim(D), "BLOCK_DV": _block_dim(Dv), "BIAS": bias,
        "PADDED": band.lengths is not None,
    }  # fmt: skip


def _forward_constants(
    q: Tensor, v: Tensor, band: Band, slopes: Slopes, sinks: Tensor | None, *, logs: bool
) -> dict[str, Any]:
    constants = _constants(q, v, band, slopes)
    padded = constants.pop("PADDED")
    return {**constants, "SINKS": sinks is not None, "PADDED": padded, "LOGS": logs}


def _block_dim(n: int) -> int:
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
    return _block_dim(max(q.shape[-1], v.shape[-1]))


def _is_short(q: Tensor, band: Band) -> bool:
    """Whether a program loops over few blocks, so that its loads overlap with little work."""
    return band.high - band.low < 1024 or q.shape[2] < 1024
