"""torch's FlexAttention: one compiled kernel for any mask and bias of positions.

It needs torch.compile (a C++ compiler on a CPU, Triton on a GPU), so it is optional. On a CPU it has no
backward pass. Batch size, lengths and the integers of masks are symbols of the compiled code, so a kind
(classes of mask and bias, heads, widths, dtype, with or without gradients) is compiled once; batches of one
sequence and, on a GPU, lengths divisible by 128 have their own code. torch caches it on disk.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.attention import kernel_inputs
from regard.attention.bias import Bias, DenseBias, OffsetBias
from regard.attention.call import LONG, Call
from regard.attention.energy import DotForm, ScaledDot
from regard.attention.grid import SinglePair
from regard.attention.kernels import sdpa
from regard.attention.kernels.kernel import Kernel, Shortcut, grad_of_plain, plain_attention
from regard.attention.machine import Machine
from regard.attention.mask import FULL, PARTIAL, And, Mask, Not, OffsetMask, Or

BLOCK = 128
# Kinds to compile per process, and inputs to cache; torch's default limit is 8.
MAX_COMPILED = 1024


class Flex(Kernel):
    name = "flex"
    compiles = True

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if machine.kind not in ("cpu", "cuda"):
            return f"Flex runs on CPUs and CUDA, not on {machine.kind}"
        if machine.tracer is not None or machine.transform is not None:
            return machine.transform or machine.tracer
        if machine.capturing:
            return "a CUDA graph is being captured, and Flex reads the mask on the CPU"
        if (reason := sdpa.why_not_softmax(call, "Flex")) is not None:
            return reason
        if call.energy.form != "dot":
            return f"{type(call.energy).__name__} is not a dot product"
        if call.gate is not None or call.dropout:
            return "Flex has neither gate nor dropout"
        if call.dtype == torch.float64:
            return "Flex does not compute in float64"
        if call.bias_requires_grad or (call.bias is not None and call.bias.uses_query):
            return "the bias may require a gradient or depends on the query"
        if machine.kind == "cpu" and call.requires_grad:
            return "on a CPU Flex has no backward pass"
        if machine.kind == "cuda" and min(call.query.shape[-1], call.key.shape[-1], call.Dv) < 16:
            return "on a GPU Flex needs vectors of at least 16 components"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        if machine.kind == "cpu":
            return "on a CPU it is slower than the tiled kernel"
        if min(call.Tq, call.Tk) < LONG:
            return f"under {LONG} positions there are few blocks to skip, too few to pay for compiling"
        if call.pairs < 1 << 22:
            return f"{call.pairs} pairs are too few to gain from it"
        plain = call.bias is None and (call.mask is None or sdpa.is_torch_causal(call))
        if plain and sdpa.Sdpa().refuses(call, machine) is None:
            return "SDPA has fused kernels for plain and causal attention, which are faster"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        return "Flex compiles this mask and bias into one kernel"

    def memory(self, call: Call, machine: Machine) -> int:
        return call.sequences * call.heads * call.Tq * 4

    def run(self, call: Call, machine: Machine) -> Tensor:
        call = _with_dense_options(call)
        q, k, v, scale = kernel_inputs.dot_inputs(call)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            return call.split_batch(_Differentiable.apply(q, k, v, scale, call))  # type: ignore[arg-type]
        return call.split_batch(_flex(q, k, v, scale, call))

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """Outside training, if mask and bias hold no tensors: call the compiled kernel directly."""
        if _reads_tensors(call) or call.requires_grad:
            return None
        key, inputs = _cached_inputs(call)
        if (
            key is None
            or inputs.rows is not None
            or type(call.energy) is not ScaledDot
            or len(call.leading) != 1
        ):
            return None
        if call.groups != 1 or not call.query.shape[:2] == call.key.shape[:2] == call.value.shape[:2]:
            return None
        scale = call.energy.as_dot(call.query, call.key).scale / call.temperature
        shapes, options = _shapes(key, call.query, call.key, call.value), _options(inputs, scale, call.query)
        flex: Callable[..., Tensor] | None = None

        def run(q: Tensor, k: Tensor, v: Tensor, mask: object) -> Tensor | None:
            nonlocal flex
            # The first call compiles, by the full path.
            flex = flex or _ready.get(shapes)
            if flex is None or not (k.is_contiguous() and v.is_contiguous()):
                return None
            try:
                return flex(q, k, v, **options)
            except _compile_errors():  # after torch._dynamo.reset(): compile again, by the full path
                flex = None
                _ready.pop(shapes, None)
                return None

        return run


def _with_dense_options(call: Call) -> Call:
    """Replace functions and user-defined classes by dense tensors: Flex would call them for single pairs."""
    call = kernel_inputs.with_dense_mask(call)
    if call.bias is None or call.bias.tensors() is not None:
        return call
    values = call.bias.values(call.grid(), call.query).detach()
    return replace(call, bias=DenseBias(values.expand(*values.shape[:-2], call.Tq, call.Tk)))


class _Differentiable(torch.autograd.Function):
    """Flex with second derivatives, which torch.compile lacks; they are those of the plain formula."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, scale: float, call: Call) -> Tensor:
        a, b, c = inner = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            out = _flex(a, b, c, scale, call)
        ctx.save_for_backward(q, k, v)
        ctx.inner, ctx.out, ctx.scale, ctx.call = inner, out, scale, call
        ctx.unchanged = kernel_inputs.VersionCheck(call)
        return out.detach()

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        q, k, v = ctx.saved_tensors
        ctx.unchanged.check()
        if torch.is_grad_enabled():
            call = ctx.call
            with torch.no_grad():
                added = kernel_inputs.dense_bias(call)
            cap = 0.0 if call.softcap is None else call.softcap / call.temperature
            plain = lambda q, k, v: plain_attention(DotForm(q, k, ctx.scale), v, added, softcap=cap)  # noqa: E731
            return *grad_of_plain(plain, (q, k, v), grad), None, None
        # The first pass frees the buffers of the compiled code; a second one computes them again.
        out, ctx.out = ctx.out if ctx.out is not None else _repeat(ctx), None
        try:
            grads = torch.autograd.grad(out, ctx.inner, grad)
        except _compile_errors():  # the backward pass is compiled when it first runs
            with torch.enable_grad():
                _use_static_sizes(_kind(ctx.call, *ctx.inner), ctx.call)
            _ready.clear()
            grads = torch.autograd.grad(_repeat(ctx), ctx.inner, grad)
        return *grads, None, None


def _repeat(ctx: Any) -> Tensor:
    """The output of `_Differentiable`, computed again with its graph."""
    q, k, v = ctx.inner
    with torch.enable_grad():
        return _flex(q, k, v, ctx.scale, ctx.call)


@lru_cache(maxsize=2)
def _compiled(dynamic: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=dynamic, fullgraph=True)


@lru_cache(maxsize=1)
def _compile_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
    from torch._inductor.exc import InductorError, LoweringException

    return TorchDynamoException, FailOnRecompileLimitHit, InductorError, LoweringException


@dataclass(frozen=True)
class FlexInputs:
    """Flex's arguments for a mask and bias: block mask, score function, and the rows that see any key."""

    block_mask: Any
    score_mod: Callable[..., Tensor] | None
    rows: Tensor | None  # (batch or 1, heads or 1, Tq, 1); None: all see a key
    # Both lengths are multiples of 128, so the GPU code needs no bounds; torch sees it only in static sizes.
    divisible: bool = False


# Inputs by signature, only of masks and biases without tensors: the signature describes them completely.
_inputs: dict[Hashable, FlexInputs] = {}
_ready: dict[Hashable, Callable[..., Tensor]] = {}  # the compiled function of shapes that ran once
_announced: set[Hashable] = set()
_static_kinds: set[Hashable] = set()  # kinds that torch cannot compile with symbolic sizes


def _flex(q: Tensor, k: Tensor, v: Tensor, scale: float, call: Call) -> Tensor:
    """(batch, heads, Tq, Dv). The scale includes the temperature."""
    k, v = k.contiguous(), v.contiguous()
    key, inputs = _cached_inputs(call)
    shapes = _shapes(key, q, k, v)
    flex = _ready.get(shapes) if key is not None else None
    if flex is not None:
        try:
            out = flex(q, k, v, **_options(inputs, scale, q))
        except _compile_errors():  # after torch._dynamo.reset()
            out, flex = _compile(q, k, v, scale, call, inputs)
    else:
        out, flex = _compile(q, k, v, scale, call, inputs)
    if key is not None:
        if len(_ready) >= MAX_COMPILED:
            _ready.clear()
        _ready[shapes] = flex
    return out if inputs.rows is None else out.masked_fill(~inputs.rows, 0.0)


def _compile(
    q: Tensor, k: Tensor, v: Tensor, scale: float, call: Call, inputs: FlexInputs
) -> tuple[Tensor, Callable[..., Tensor]]:
    """Flex's result and the function that computed it, compiled if this is the first call of its kind."""
    kind = _kind(call, q, k, v)
    if q.is_cuda and kind not in _announced:
        _announced.add(kind)
        print(f"regard: compiling Flex for {_describe(call)}, once (some seconds)", file=sys.stderr)
    from torch.fx.experimental import _config as symbols

    with ExitStack() as settings:
        limits = {"recompile_limit": MAX_COMPILED, "accumulated_recompile_limit": MAX_COMPILED}
        # Flex cannot read symbolic floats (soft cap, slopes). Sizes that are equal by chance are two symbols.
        settings.enter_context(torch._dynamo.config.patch({**limits, "specialize_float": True}))
        settings.enter_context(symbols.patch(use_duck_shape=False))  # type: ignore[attr-defined]
        if kind not in _static_kinds and _takes_symbols(call):
            try:
                out = _compiled(True)(*map(_with_static_width, (q, k, v)), **_options(inputs, scale, q))
            except _compile_errors():
                _use_static_sizes(kind, call)
            else:
                return out, _compiled(True)
        return _compiled(False)(q, k, v, **_options(inputs, scale, q)), _compiled(False)


def _use_static_sizes(kind: Hashable, call: Call) -> None:
    """From now on compile this kind for each shape; say so if "once" was announced."""
    if kind in _announced and kind not in _static_kinds:
        what = f"torch cannot compile Flex for {_describe(call)} with symbolic sizes"
        print(f"regard: {what}, so each new length is compiled (some seconds)", file=sys.stderr)
    _static_kinds.add(kind)


def _takes_symbols(call: Call) -> bool:
    """Whether torch compiles this call with symbolic sizes: on a CPU only plain attention and bands.

    For other masks and biases torch 2.13 writes wrong C++ if there are many symbols: it also replaces the
    symbol ks3 inside ks37, so that the compiler fails or the process crashes.
    """
    if call.query.device.type != "cpu":
        return True
    is_band = call.mask is None or call.mask.static_band(call.Tq, call.Tk) is not None
    return is_band and call.bias is None and call.softcap is None


def _with_static_width(x: Tensor) -> Tensor:
    """x, (batch, heads, T, dim), with heads and dim fixed in the compiled code; batch and T vary."""
    x = x if x.requires_grad else x.detach()  # the caller's tensors are not marked
    torch._dynamo.mark_static(x, 1)
    torch._dynamo.mark_static(x, 3)
    return x


def _kind(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Hashable:
    """What is compiled separately, apart from batches of one sequence and lengths divisible by 128."""
    short = q.shape[2] < 128  # torch has other code for few queries
    sizes = q.shape[1], k.shape[1], q.shape[3], v.shape[3], short
    return _describe(call), *sizes, q.dtype, q.device.type, torch.is_grad_enabled() and q.requires_grad


def _describe(call: Call) -> str:
    """The mask, bias and soft cap of a call in words, such as "Window and ALiBi"."""
    words = [_name(x) for x in (call.mask, call.bias) if x is not None]
    return " and ".join(words + ["soft cap"] * (call.softcap is not None)) or "plain attention"


def _name(x: Mask | Bias) -> str:
    """The classes of a mask or bias, such as "Causal & ~Diagonal"."""
    if isinstance(x, And | Or):
        sign = "&" if isinstance(x, And) else "|"
        parts = [f"({_name(part)})" if isinstance(part, And | Or) else _name(part) for part in (x.a, x.b)]
        return f" {sign} ".join(parts)
    if isinstance(x, Not):
        return f"~({_name(x.a)})" if isinstance(x.a, And | Or) else f"~{_name(x.a)}"
    return _name(x.a) if isinstance(x, OffsetMask | OffsetBias) else type(x).__name__


def _options(inputs: FlexInputs, scale: float, q: Tensor) -> dict[str, Any]:
    """Only what differs from Flex's defaults: torch.compile checks every argument at each call."""
    options: dict[str, Any] = {"block_mask": inputs.block_mask} if inputs.block_mask is not None else {}
    if inputs.score_mod is not None:
        options["score_mod"] = inputs.score_mod
    if scale != 1 / math.sqrt(q.shape[-1]):
        options["scale"] = scale
    if inputs.divisible:
        options["kernel_options"] = {"IS_DIVISIBLE": True}
    return options


def _shapes(key: Hashable, q: Tensor, k: Tensor, v: Tensor) -> Hashable:
    return key, q.shape, k.shape, v.shape, q.dtype, torch.is_grad_enabled() and q.requires_grad


def _cached_inputs(call: Call) -> tuple[Hashable | None, FlexInputs]:
    """A key of the call's options and lengths (None: unknown options) and Flex's arguments for it."""
    signatures = [x.signature() for x in (call.mask, call.bias) if x is not None]
    if any(x is None for x in signatures):
        return None, _make_inputs(call)
    key = (*signatures, call.Tq, call.Tk, call.leading, call.softcap, call.temperature, call.query.device)
    if _reads_tensors(call):
        return key, _make_inputs(call)
    if key not in _inputs:
        if len(_inputs) >= MAX_COMPILED:
            _inputs.clear()
        _inputs[key] = _make_inputs(call)
    return key, _inputs[key]


def _reads_tensors(call: Call) -> bool:
    return any(x is not None and x.tensors() != () for x in (call.mask, call.bias))


def _make_inputs(call: Call) -> FlexInputs:
    from torch.nn.attention.flex_attention import BlockMask

    mask, Tq, Tk, leading, device = call.mask, call.Tq, call.Tk, call.leading, call.query.device
    divisible = device.type == "cuda" and Tq % 128 == Tk % 128 == 0
    if mask is None:
        return FlexInputs(None, _score_mod(call), None, divisible)
    block_kinds = call.merge_pairs(mask.blocks(Tq, Tk, BLOCK, device))
    indices = [x for kind in (PARTIAL, FULL) for x in _block_indices(block_kinds == kind)]
    mask_mod = _mask_mod(mask, Tq, Tk, leading)
    blocks = BlockMask.from_kv_blocks(*indices, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=(Tq, Tk))
    if mask.covers(Tq, Tk):
        return FlexInputs(blocks, _score_mod(call), None, divisible)
    rows, _ = kernel_inputs.rows_and_keys_seen(mask, Tq, Tk, device)
    rows = None if bool(rows.all()) else call.merge_pairs(rows[..., None])
    return FlexInputs(blocks, _score_mod(call), rows, divisible)


def _mask_mod(mask: Mask, Tq: int, Tk: int, leading: tuple[int, ...]) -> Callable[..., Tensor]:
    """The mask as Flex's mask_mod, a function of one (query, key) pair."""
    band = mask.static_band(Tq, Tk)
    if band is not None:  # torch.compile's guards check numbers in a closure faster than objects
        low, high = band
        return lambda b, h, i, j: (j - i >= low) & (j - i <= high)
    return lambda b, h, i, j: mask.allowed(SinglePair(b, h, i, j, Tq, Tk, leading))


def _score_mod(call: Call) -> Callable[..., Tensor] | None:
    """Bias and soft cap as Flex's score_mod, applied to each scaled dot product."""
    if call.bias is None and call.softcap is None:
        return None
    bias, Tq, Tk, leading, temperature = call.bias, call.Tq, call.Tk, call.leading, call.temperature
    cap = None if call.softcap is None else call.softcap / temperature

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if bias is not None:
            s = s + bias.values(SinglePair(b, h, i, j, Tq, Tk, leading), s) / temperature
        return s if cap is None else cap * torch.tanh(s / cap)

    return score


def _block_indices(selected: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of blocks the number of selected ones, and all indices with the selected ones first."""
    order = selected.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return selected.sum(-1, dtype=torch.int32), order.to(torch.int32)
