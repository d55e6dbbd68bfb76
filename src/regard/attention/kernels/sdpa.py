"""torch's scaled_dot_product_attention under our conventions, with the backend chosen on a GPU.

It takes dot-product energies, softmax (the temperature goes into the scale), any mask, and any bias without a
gradient. A row that sees no key is unmasked for SDPA and its output set to zero, so that no NaN arises in
either pass. Second derivatives, which torch's fused kernels lack, are those of the plain formula, except for
long plain and causal calls on a GPU, where torch raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import kernel_inputs
from regard.attention.bias import DenseBias
from regard.attention.call import LONG, Call
from regard.attention.energy import DotForm
from regard.attention.kernels.backend_times import (
    Times,
    backend_function,
    backend_times,
    describe_times,
    fastest_first,
)
from regard.attention.kernels.kernel import Kernel, Shortcut, grad_of_plain, plain_attention
from regard.attention.machine import Machine
from regard.attention.normalize import Softmax
from regard.attention.position_masks import Causal, Padding
from regard.attention.precision import HALF
from regard.attention.tracing import broadcasts, statically_true
from regard.errors import KernelError

FEW_KEYS = 16  # torch's kernel for CPUs gives zeros instead of NaN with fewer
TEMPERATURES = (1e-4, 1e4)  # outside of this range scaled energies could overflow the dtype
FUSED = {
    "ScaledDotProductFlashAttentionForCpuBackward0",
    "ScaledDotProductFlashAttentionBackward0",
    "ScaledDotProductEfficientAttentionBackward0",
    "ScaledDotProductCudnnAttentionBackward0",
}


def _order(*names: str) -> list[int]:
    """The numbers that torch gives to these backends."""
    return [int(getattr(torch._C._SDPBackend, name)) for name in names]


CUDNN_FIRST = _order("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
CUDNN_LAST = _order("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION")


class Sdpa(Kernel):
    name = "sdpa"

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if machine.transform is not None:
            return f"{machine.transform}, and SDPA's fused kernels lack derivatives of every order"
        if (reason := why_not_softmax(call, "SDPA")) is not None:
            return reason
        if call.energy.form != "dot":
            return f"{type(call.energy).__name__} is not a dot product"
        if call.softcap is not None:
            return "SDPA has no soft cap"
        if call.gate is not None:
            return "SDPA has no gate after the softmax"
        if call.dropout and machine.kind == "cpu":
            return "on a CPU, SDPA with dropout uses its unfused path"
        if call.bias_requires_grad:
            return "the bias may require a gradient, which SDPA's fused kernels do not compute"
        if call.bias is not None and call.bias.uses_query and call.requires_grad:
            return "the bias depends on the query, and SDPA's fused kernels compute no gradient for it"
        if (
            machine.kind == "cuda"
            and call.bias is not None
            and call.dtype in HALF
            and not _is_half_bias(call)
        ):
            return f"on a GPU, SDPA would round the bias to {call.dtype}"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        if machine.kind != "cpu" or machine.tracer is not None:
            return None
        pairs = call.pairs
        if call.dtype in HALF and call.requires_grad and pairs < 1 << 18:
            return f"its backward pass in {str(call.dtype).removeprefix('torch.')} is slow on a CPU"
        if call.mask is not None and pairs >= 1 << 18 and why_not_tiles(call, machine) is None:
            is_long_causal = call.Tq > 1024 and is_torch_causal(call) and call.bias is None
            if not is_long_causal and call.Tq >= 128 and call.mask.density(call.Tq, call.Tk) < 0.75:
                return "the mask excludes much of the matrix, which tiles skip"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        what = f"{type(call.energy).__name__} with softmax is torch's fused attention"
        if not (names := backends(call, machine)):
            return what
        times = _measured_times(call, machine)
        return f"{what}, backend {names[0]}" + (f" ({describe_times(call, times)})" if times else "")

    def memory(self, call: Call, machine: Machine) -> int:
        rows = call.sequences * call.heads * call.Tq * 4
        if call.bias is None and (call.mask is None or is_torch_causal(call)):
            return rows
        size = call.query.element_size()
        if call.bias is None:
            size += 1  # torch converts a boolean mask to the dtype of the queries
        elif call.mask is not None or call.bias_may_mask:
            size *= 2  # the bias, and the bias masked or minus its row maximum
        return rows + size * math.prod(kernel_inputs.dense_shape(call))

    def run(self, call: Call, machine: Machine) -> Tensor:
        q, k, v, scale = kernel_inputs.dot_inputs(call, grouped=True)
        grouped = not broadcasts(k.shape[1], call.heads)
        if not grouped and k.shape[1] != call.heads:
            k, v = (x.expand(-1, call.heads, -1, -1) for x in (k, v))
        causal = call.bias is None and is_torch_causal(call)
        if causal or (call.mask is None and call.bias is None):
            mask, rows = None, None
        else:
            mask, rows = _mask(call, machine)
        out = _sdpa(call, machine, q, k, v, mask=mask, causal=causal, grouped=grouped, scale=scale)
        return call.split_batch(out if rows is None else out.masked_fill(~rows, 0.0))

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """Plain attention, causal attention and padded batches call torch directly."""
        scale = kernel_inputs.plain_scale(call)
        if machine.kind not in ("cpu", "cuda") or call.bias is not None or scale is None:
            return None
        if len(call.leading) != 1 or not call.query.shape[0] == call.key.shape[0] == call.value.shape[0]:
            return None
        if not call.key.shape[1] == call.value.shape[1] == call.heads // call.groups:
            return None
        if call.mask is None or is_torch_causal(call):
            return _plain_shortcut(call, machine, scale)
        return _padded_shortcut(call, machine, scale) if call.groups == 1 else None


def _sdpa_function(call: Call, machine: Machine) -> Callable[..., Tensor]:
    """torch's SDPA; on a GPU in our order of backends: on Hopper, torch always tries cuDNN first."""
    if machine.kind != "cuda":
        return _sdpa_cpu
    cudnn_first = backends(call, machine)[:1] == ["CUDNN_ATTENTION"]
    return _sdpa_cudnn_first if cudnn_first else _sdpa_cudnn_last


def _plain_shortcut(call: Call, machine: Machine, scale: float) -> Shortcut:
    causal, sdpa = is_torch_causal(call), _sdpa_function(call, machine)
    if (direct := _direct_backend(call, machine, causal, scale)) is not None:
        return direct
    options: dict[str, Any] = {"dropout_p": call.dropout, "is_causal": causal, "scale": scale}
    if call.groups > 1:
        options["enable_gqa"] = True
    if not call.requires_grad or not _has_second_derivatives(call, machine):
        return lambda q, k, v, mask: sdpa(q, k, v, **options)
    return lambda q, k, v, mask: _second_derivatives(sdpa(q, k, v, **options))


def _padded_shortcut(call: Call, machine: Machine, scale: float) -> Shortcut | None:
    if type(call.mask) is not Padding or not isinstance(call.mask.lengths, Tensor):
        return None
    if call.mask.lengths.shape != call.leading:
        return None
    if machine.kind == "cuda" and not call.mask.finite:
        return None  # a search for NaN in the padding would synchronize with the GPU
    position, finite = torch.arange(call.Tk, device=call.query.device), call.mask.finite
    if (direct := _direct_padded_backend(call, machine, position, scale)) is not None:
        return direct
    dropout, sdpa = call.dropout, _sdpa_function(call, machine)

    def padded(q: Tensor, k: Tensor, v: Tensor, mask: Padding) -> Tensor | None:
        lengths: Tensor = mask.lengths  # type: ignore[assignment]
        if not finite and not (
            int(lengths.min()) > 0 and math.isfinite(k.detach().sum().item() + v.detach().sum().item())
        ):
            return None  # a row may see no key, or padding may hold NaN
        return _second_derivatives(sdpa(q, k, v, mask.cached(position), dropout, scale=scale))

    return padded


def _direct_backend(call: Call, machine: Machine, causal: bool, scale: float) -> Shortcut | None:
    """A call of the GPU backend that torch would select, without torch's selection at each call."""
    if machine.kind != "cuda":
        return None
    name, needs_grad, dropout = backends(call, machine)[0], call.requires_grad, call.dropout
    params = torch.backends.cuda.SDPAParams(
        call.query, call.key, call.value, None, dropout, causal, call.groups > 1
    )
    can_use = {
        "CUDNN_ATTENTION": torch.backends.cuda.can_use_cudnn_attention,
        "FLASH_ATTENTION": torch.backends.cuda.can_use_flash_attention,
    }
    if name not in can_use or not can_use[name](params):
        return None
    run = backend_function(name, causal=causal, training=needs_grad, dropout=dropout, scale=scale)
    second_derivatives = needs_grad and _has_second_derivatives(call, machine)

    def direct(q: Tensor, k: Tensor, v: Tensor, mask: object) -> Tensor | None:
        try:
            out = run(q, k, v)
        except RuntimeError:  # features that are not contiguous: the general path copies them
            return None
        if second_derivatives:
            out.grad_fn.register_hook(_second_order)  # type: ignore[union-attr]
        return out

    return direct


def _direct_padded_backend(call: Call, machine: Machine, position: Tensor, scale: float) -> Shortcut | None:
    """The memory-efficient GPU backend with a cached bias; SDPA would convert the mask at each call."""
    if machine.kind != "cuda" or backends(call, machine)[0] != "EFFICIENT_ATTENTION":
        return None
    B, H, Tq, _ = call.query.shape
    Tk, dtype, needs_grad, dropout = call.Tk, call.dtype, call.requires_grad, call.dropout

    def bias(allowed: Tensor) -> Tensor:
        padded_Tk = -(-Tk // 16) * 16  # the kernel needs aligned rows
        added = torch.zeros(B, 1, 1, padded_Tk, dtype=dtype, device=allowed.device)
        return added[..., :Tk].masked_fill_(~allowed, -math.inf).expand(B, H, Tq, Tk)

    example = bias(torch.ones_like(position, dtype=torch.bool))
    params = torch.backends.cuda.SDPAParams(call.query, call.key, call.value, example, dropout, False, False)
    if not torch.backends.cuda.can_use_efficient_attention(params):
        return None
    run: Any = torch._scaled_dot_product_efficient_attention  # type: ignore[attr-defined]

    def direct(q: Tensor, k: Tensor, v: Tensor, mask: Padding) -> Tensor | None:
        if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
            return None
        out = run(q, k, v, mask.cached(position, bias), needs_grad, dropout, False, scale=scale)[0]
        return _second_derivatives(out) if needs_grad else out

    return direct


def why_not_softmax(call: Call, name: str) -> str | None:
    """Why a kernel that computes a plain softmax cannot run the call, or None."""
    if not call.is_softmax:
        if isinstance(call.normalize, Softmax) and call.normalize.sinks is not None:
            return f"{name} has no sinks in its softmax"
        return f"{name} normalises by softmax only, not by {type(call.normalize).__name__}"
    if not TEMPERATURES[0] <= call.temperature <= TEMPERATURES[1]:
        return f"a temperature of {call.temperature:g} may overflow there"
    return "there is nothing to compute" if call.is_empty else None


def why_not_tiles(call: Call, machine: Machine) -> str | None:
    """Why the call cannot run as tiles of fused SDPA (tiled.py), or None."""
    if machine.kind != "cpu":
        return "fused tiles are for the CPU"
    return machine.tracer


def backends(call: Call, machine: Machine) -> list[str]:
    """The SDPA backends to try on a GPU, best first.

    cuDNN makes a plan for each new shape (25 to 35 ms for each pass, by public reports), and batches of
    sentences have a new shape at almost every step: it is used for long sequences only. There, the faster of
    cuDNN and flash is measured once (backend_times.py); if that is impossible, it is cuDNN on Hopper.
    """
    if machine.kind != "cuda":
        return []
    last = ["EFFICIENT_ATTENTION", "MATH"]
    if not _fits_cudnn_and_flash(call, machine):
        return last
    if times := _measured_times(call, machine):
        return [*fastest_first(times), *last]
    is_long = min(call.Tq, call.Tk) >= LONG
    cudnn = ["CUDNN_ATTENTION"] if is_long and machine.capability >= (9, 0) else []
    return [*cudnn, *(["FLASH_ATTENTION"] if _is_plain(call) else []), *last]


def _fits_cudnn_and_flash(call: Call, machine: Machine) -> bool:
    head_dim = max(call.query.shape[-1], call.key.shape[-1], call.Dv)
    return call.dtype in HALF and machine.capability >= (8, 0) and head_dim <= 128 and head_dim % 8 == 0


def _is_plain(call: Call) -> bool:
    return call.bias is None and (call.mask is None or is_torch_causal(call))


def _measured_times(call: Call, machine: Machine) -> Times | None:
    """Milliseconds of cuDNN and flash for long plain and causal calls."""
    if not _is_plain(call) or not _fits_cudnn_and_flash(call, machine) or min(call.Tq, call.Tk) < LONG:
        return None
    return backend_times(call, machine)


def is_torch_causal(call: Call) -> bool:
    """Whether the mask equals torch's is_causal, which aligns the first query with the first key."""
    if type(call.mask) is not Causal:
        return False
    offset = call.mask.offset
    if offset is None:
        return statically_true(call.Tq == call.Tk)
    return isinstance(offset, int) and offset == 0 and statically_true(call.Tq <= call.Tk)


def _is_half_bias(call: Call) -> bool:
    """Whether the bias already has the half-precision dtype of the call, so that nothing is rounded."""
    return type(call.bias) is DenseBias and call.bias.tensor.dtype == call.dtype and call.temperature == 1.0


def _mask(call: Call, machine: Machine) -> tuple[Tensor | None, Tensor | None]:
    """The mask for SDPA, boolean or a bias with −∞, and the rows that see any key (None: all do)."""
    if call.bias is None:
        assert call.mask is not None
        allowed = call.mask.allowed(call.grid())
        if call.mask.covers(call.Tq, call.Tk):
            return call.merge_pairs(allowed), None
        allowed = call.merge_pairs(allowed)
        rows = allowed.any(-1, keepdim=True)
        return allowed | ~rows, rows
    bias = kernel_inputs.dense_bias(call)
    assert bias is not None
    if call.dtype not in HALF or machine.kind == "cuda":
        bias = bias.to(call.dtype)
    if not call.bias_may_mask and (call.mask is None or call.mask.covers(call.Tq, call.Tk)):
        return bias, None
    rows = (bias != -math.inf).any(-1, keepdim=True)
    return bias.masked_fill(~rows, 0.0), rows


def _sdpa(
    call: Call,
    machine: Machine,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    causal: bool,
    grouped: bool,
    scale: float,
) -> Tensor:
    if machine.tracer is not None:
        return scaled_dot_product_attention(
            kernel_inputs.separate_rows(q), k, v, mask, call.dropout, causal, scale=scale, enable_gqa=grouped
        )
    sdpa = _sdpa_function(call, machine)
    out = sdpa(q, k, v, mask, call.dropout, causal, scale=scale, enable_gqa=grouped)
    return _second_derivatives(out) if _has_second_derivatives(call, machine) else out


def _sdpa_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's SDPA without two faults of its fused kernel for CPUs.

    It reads overlapping queries beyond their end, and with few keys a row of NaN scores gives zeros.
    """
    q = kernel_inputs.separate_rows(q)
    out = scaled_dot_product_attention(
        q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    has_zeros = k.shape[-2] < FEW_KEYS and int(out.count_nonzero()) < out.numel()
    if has_zeros and not (kernel_inputs.is_finite(q) and kernel_inputs.is_finite(k)):
        return plain_attention(DotForm(q, k, scale), v, mask, causal=is_causal)
    return out


def _sdpa_in_order(order: list[int]) -> Callable[..., Tensor]:
    """SDPA that tries backends in this order; torch.nn.attention.sdpa_kernel takes ten times as long."""

    def sdpa(*args: Any, **options: Any) -> Tensor:
        before = torch._C._get_sdp_priority_order()
        torch._C._set_sdp_priority_order(order)
        try:
            return scaled_dot_product_attention(*args, **options)
        finally:
            torch._C._set_sdp_priority_order(before)

    return sdpa


_sdpa_cudnn_first, _sdpa_cudnn_last = _sdpa_in_order(CUDNN_FIRST), _sdpa_in_order(CUDNN_LAST)


def _has_second_derivatives(call: Call, machine: Machine) -> bool:
    """False for long plain and causal calls in half precision on a GPU.

    The hook for second derivatives makes the autograd thread take Python's lock: 30 µs of a backward pass
    that takes 150 at 512 positions. Without it, torch raises an error for second derivatives.
    """
    is_long = min(call.Tq, call.Tk) >= LONG
    return not (machine.kind == "cuda" and call.dtype in HALF and is_long and _is_plain(call))


def _second_derivatives(out: Tensor) -> Tensor:
    """Add second derivatives to a fused kernel, which has none: those of the plain formula."""
    node = out.grad_fn
    if node is not None:
        if node.name() not in FUSED and node.next_functions:  # a slice of padded features lies in between
            node = node.next_functions[0][0]
        if node is not None and node.name() in FUSED:
            node.register_hook(_second_order)
    return out


def _second_order(
    grads: tuple[Tensor | None, ...], outputs: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    """Hook after a fused kernel's backward pass: under create_graph, return differentiable gradients."""
    if not torch.is_grad_enabled() or outputs[0] is None:
        return None
    node: Any = torch._C._current_autograd_node()
    if getattr(node, "_saved_dropout_p", 0.0):
        raise KernelError("second derivatives of attention with dropout need kernel='reference'")
    q, k, v = node._saved_query, node._saved_key, node._saved_value
    mask = next(
        (getattr(node, n) for n in ("_saved_attn_mask", "_saved_attn_bias") if hasattr(node, n)), None
    )
    scale = node._saved_scale if node._saved_scale is not None else 1 / math.sqrt(q.shape[-1])
    causal = node._saved_is_causal
    plain = lambda q, k, v: plain_attention(DotForm(q, k, scale), v, mask, causal=causal)  # noqa: E731
    return (*grad_of_plain(plain, (q, k, v), outputs[0], [g is not None for g in grads[:3]]), *grads[3:])
