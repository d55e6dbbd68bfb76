"""torch's scaled_dot_product_attention, with the backend chosen on a GPU and the conventions kept.

Takes every energy that is a dot product, softmax (its temperature goes into the scale), any mask and any bias that does not
learn. A row with nothing to see is opened for SDPA and its output set to zero, so that no NaN arises in either pass.
Second derivatives, which torch's fused kernels lack, are those of the plain formula.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import kernel_inputs
from regard.attention.bias import DenseBias
from regard.attention.call import LONG, Call
from regard.attention.energy import DotForm, ScaledDot
from regard.attention.kernels.kernel import Kernel, Shortcut, grad_of_plain, plain_attention
from regard.attention.machine import Machine
from regard.attention.normalize import Softmax
from regard.attention.position_masks import Causal, Padding
from regard.attention.precision import HALF
from regard.attention.tracing import statically_true
from regard.errors import KernelError

TEMPERATURES = (1e-4, 1e4)  # beyond, energies times scale could leave the range of the dtype
FUSED = {
    "ScaledDotProductFlashAttentionForCpuBackward0",
    "ScaledDotProductFlashAttentionBackward0",
    "ScaledDotProductEfficientAttentionBackward0",
    "ScaledDotProductCudnnAttentionBackward0",
}


# cuDNN, flash, efficient, math, as torch._C._SDPBackend numbers them
CUDNN_FIRST = [
    int(getattr(torch._C._SDPBackend, n))
    for n in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
]


class Sdpa(Kernel):
    name = "sdpa"

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if machine.transform is not None:
            return f"{machine.transform}, which SDPA's fused kernels do not follow to every order"
        if (reason := why_not_softmax(call, "SDPA")) is not None:
            return reason
        if call.energy.form != "dot":
            return f"{type(call.energy).__name__} is not a dot product"
        if call.softcap is not None:
            return "SDPA has no soft cap"
        if call.gate is not None:
            return "SDPA has no gate after the softmax"
        if call.dropout and machine.kind == "cpu":
            return "on a CPU, SDPA with dropout runs its unfused path"
        if call.bias_requires_grad:
            return "the bias may learn, and SDPA's fused kernels give it no gradient"
        if call.bias is not None and call.bias.uses_query and call.requires_grad:
            return "the bias depends on the query, and SDPA's fused kernels give it no gradient"
        if machine.kind == "cuda" and call.bias is not None and call.dtype in HALF and not _is_half(call):
            return f"on a GPU, SDPA would round the bias to {call.dtype}"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        if machine.kind != "cpu" or machine.tracer is not None:
            return None
        pairs = call.pairs
        if call.dtype in HALF and call.requires_grad and pairs < 1 << 18:
            return f"its backward pass in {str(call.dtype).removeprefix('torch.')} is slow on a CPU"
        if call.mask is not None and pairs >= 1 << 18 and why_not_tiles(call, machine) is None:
            short = call.Tq <= 1024 if is_torch_causal(call) and call.bias is None else True
            if short and call.Tq >= 128 and call.mask.density(call.Tq, call.Tk) < 0.75:
                return "the mask leaves out much of the matrix, and tiles skip it"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        names = backends(call, machine)
        what = f"{type(call.energy).__name__} with softmax is torch's fused attention"
        return what + (f", backend {names[0]}" if names else "")

    def memory(self, call: Call, machine: Machine) -> int:
        rows = call.sequences * call.heads * call.Tq * 4
        if call.bias is None and (call.mask is None or is_torch_causal(call)):
            return rows
        return rows + call.Tq * call.Tk * (
            call.query.element_size() * call.heads if call.bias is not None else 1
        )

    def run(self, call: Call, machine: Machine) -> Tensor:
        q, k, v, scale = kernel_inputs.dot_inputs(call, grouped=True)
        groups = k.shape[1] not in (1, call.heads)
        if not groups and k.shape[1] != call.heads:
            k, v = (x.expand(-1, call.heads, -1, -1) for x in (k, v))
        causal = call.bias is None and is_torch_causal(call)
        mask, rows = (
            (None, None) if causal or (call.mask is None and call.bias is None) else _mask(call, machine)
        )
        out = _sdpa(call, machine, q, k, v, mask, causal, groups, scale)
        return call.split_batch(out if rows is None else out.masked_fill(~rows, 0.0))

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """Plain and causal attention and padded batches: nothing stands between `attend` and torch."""
        if machine.kind not in ("cpu", "cuda") or call.bias is not None or type(call.energy) is not ScaledDot:
            return None
        if len(call.leading) != 1 or not call.query.shape[:2] == call.key.shape[:2] == call.value.shape[:2]:
            return None
        scale, causal = (
            call.energy.as_dot(call.query, call.key).scale / call.temperature,
            is_torch_causal(call),
        )
        torchs = (
            _with_cudnn_first
            if backends(call, machine)[:1] == ["CUDNN_ATTENTION"]
            else scaled_dot_product_attention
        )
        dropout = call.dropout
        if call.mask is None or causal:
            if (direct := _backend(call, machine, causal, scale)) is not None:
                return direct
            if not call.requires_grad:
                return lambda q, k, v, mask: torchs(q, k, v, None, dropout, causal, scale=scale)
            return lambda q, k, v, mask: _second_derivatives(
                torchs(q, k, v, None, dropout, causal, scale=scale)
            )
        if (
            type(call.mask) is not Padding
            or not isinstance(call.mask.lengths, Tensor)
            or call.mask.lengths.shape != call.leading
        ):
            return None
        if machine.kind == "cuda" and not call.mask.finite:
            return None  # whether NaN stands behind a sequence would have to be asked of the GPU
        position, finite = torch.arange(call.Tk, device=call.query.device), call.mask.finite
        if (direct := _padded_backend(call, machine, position, scale)) is not None:
            return direct

        def padded(q: Tensor, k: Tensor, v: Tensor, mask: Padding) -> Tensor | None:
            lengths: Tensor = mask.lengths  # type: ignore[assignment]
            if not finite and not (
                int(lengths.min()) > 0 and math.isfinite(k.detach().sum().item() + v.detach().sum().item())
            ):
                return None  # a row may see nothing, or NaN may stand behind the end of a sequence
            return _second_derivatives(torchs(q, k, v, mask.cached(position), dropout, scale=scale))

        return padded


def _backend(call: Call, machine: Machine, causal: bool, scale: float) -> Shortcut | None:
    """The GPU backend that torch would choose after asking all of them, called directly."""
    if machine.kind != "cuda":
        return None
    name, learns, dropout = backends(call, machine)[0], call.requires_grad, call.dropout
    asked = torch.backends.cuda.SDPAParams(call.query, call.key, call.value, None, dropout, causal, False)
    if name == "CUDNN_ATTENTION" and torch.backends.cuda.can_use_cudnn_attention(asked):
        options: tuple[Any, ...] = (None, learns, dropout, causal, False)
        run: Any = torch._scaled_dot_product_cudnn_attention  # type: ignore[attr-defined]
    elif name == "FLASH_ATTENTION" and torch.backends.cuda.can_use_flash_attention(asked):
        run, options = torch._scaled_dot_product_flash_attention, (dropout, causal, False)  # type: ignore[attr-defined]
    else:
        return None

    def direct(q: Tensor, k: Tensor, v: Tensor, mask: object) -> Tensor | None:
        if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
            return None
        out = run(q, k, v, *options, scale=scale)[0]
        if learns:
            out.grad_fn.register_hook(_second_order)
        return out

    return direct


def _padded_backend(call: Call, machine: Machine, position: Tensor, scale: float) -> Shortcut | None:
    """The memory-efficient GPU backend with a ready bias: SDPA would make one of the boolean mask at every call."""
    if machine.kind != "cuda" or backends(call, machine)[0] != "EFFICIENT_ATTENTION":
        return None
    (B, H, Tq, _), Tk, dtype, learns, dropout = (
        call.query.shape,
        call.Tk,
        call.dtype,
        call.requires_grad,
        call.dropout,
    )

    def bias(real: Tensor) -> Tensor:
        added = torch.zeros(
            B, 1, 1, -(-Tk // 16) * 16, dtype=dtype, device=real.device
        )  # the kernel wants aligned rows
        return added[..., :Tk].masked_fill_(~real, -math.inf).expand(B, H, Tq, Tk)

    asked = (
        call.query,
        call.key,
        call.value,
        bias(torch.ones_like(position, dtype=torch.bool)),
        dropout,
        False,
        False,
    )
    if not torch.backends.cuda.can_use_efficient_attention(torch.backends.cuda.SDPAParams(*asked)):
        return None
    run: Any = torch._scaled_dot_product_efficient_attention  # type: ignore[attr-defined]

    def direct(q: Tensor, k: Tensor, v: Tensor, mask: Padding) -> Tensor | None:
        if q.stride(-1) != 1 or k.stride(-1) != 1 or v.stride(-1) != 1:
            return None
        out = run(q, k, v, mask.cached(position, bias), learns, dropout, False, scale=scale)[0]
        return _second_derivatives(out) if learns else out

    return direct


def why_not_softmax(call: Call, name: str) -> str | None:
    """What every kernel that computes a softmax cannot do."""
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
    """Which SDPA backends to try on a GPU, best first. cuDNN leads where it can, 1.75 × flash on Hopper; but it makes a plan for
    each new shape, half a second by public reports, and batches of sentences have a new one at nearly every step.
    """
    if machine.kind != "cuda":
        return []
    head_dim = max(call.query.shape[-1], call.key.shape[-1], call.Dv)
    plain = call.bias is None and (call.mask is None or is_torch_causal(call))
    found = []
    if call.dtype in HALF and machine.capability >= (8, 0) and head_dim <= 128 and head_dim % 8 == 0:
        if machine.capability >= (9, 0) and min(call.Tq, call.Tk) >= LONG:
            found.append("CUDNN_ATTENTION")
        if plain:
            found.append("FLASH_ATTENTION")
    return [*found, "EFFICIENT_ATTENTION", "MATH"]


def is_torch_causal(call: Call) -> bool:
    """Whether the mask is exactly torch's is_causal, which lines up the first query with the first key."""
    if type(call.mask) is not Causal:
        return False
    offset = call.mask.offset
    return (
        statically_true(call.Tq == call.Tk)
        if offset is None
        else isinstance(offset, int) and offset == 0 and statically_true(call.Tq <= call.Tk)
    )


def _is_half(call: Call) -> bool:
    """Whether the bias is given in the call's own half precision, so that nothing is rounded."""
    return type(call.bias) is DenseBias and call.bias.tensor.dtype == call.dtype and call.temperature == 1.0


def _mask(call: Call, machine: Machine) -> tuple[Tensor | None, Tensor | None]:
    """The mask SDPA gets, boolean or a bias with −∞, and the rows that see anything (None: all do)."""
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
    mask: Tensor | None,
    causal: bool,
    groups: bool,
    scale: float,
) -> Tensor:
    if machine.tracer is not None:
        return scaled_dot_product_attention(
            q, k, v, mask, call.dropout, causal, scale=scale, enable_gqa=groups
        )
    cudnn = backends(call, machine)[:1] == ["CUDNN_ATTENTION"]
    torchs = _with_cudnn_first if cudnn else scaled_dot_product_attention
    return _second_derivatives(torchs(q, k, v, mask, call.dropout, causal, scale=scale, enable_gqa=groups))


def _with_cudnn_first(*args: Any, **options: Any) -> Tensor:
    """torch tries its backends in an order; torch.nn.attention.sdpa_kernel sets it too and takes ten times as long."""
    before = torch._C._get_sdp_priority_order()
    torch._C._set_sdp_priority_order(CUDNN_FIRST)
    try:
        return scaled_dot_product_attention(*args, **options)
    finally:
        torch._C._set_sdp_priority_order(before)


def _second_derivatives(out: Tensor) -> Tensor:
    """torch's fused kernels have none: when autograd wants such, the plain formula is differentiated instead."""
    node = out.grad_fn
    if node is not None:
        if node.name() not in FUSED and node.next_functions:  # a cut of padded features lies in between
            node = node.next_functions[0][0]
        if node is not None and node.name() in FUSED:
            node.register_hook(_second_order)
    return out


def _second_order(
    grads: tuple[Tensor | None, ...], outputs: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    """Runs after the backward pass of a fused kernel: gradients that can be differentiated again, when autograd wants such."""
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
