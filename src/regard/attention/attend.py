"""`attend` computes attention, `explain` says by which kernel, `weights` returns the attention matrix."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Unpack

from torch import Tensor
from torch.overrides import _get_current_function_mode as is_intercepted

from regard.attention import watching
from regard.attention.call import (
    SCALED_DOT,
    SOFTMAX,
    BiasLike,
    Call,
    EnergyLike,
    GateLike,
    MaskLike,
    NormalizerLike,
    Options,
    cast_and_expand,
    make_call,
    signature,
    wrap_bias,
    wrap_gate,
    wrap_mask,
)
from regard.attention.kernel_inputs import needs_clearing
from regard.attention.kernels import reference
from regard.attention.kernels.kernel import Kernel, Shortcut
from regard.attention.machine import Machine
from regard.attention.plan import KERNELS, PREPARED, Plan, choose_kernel, make_plan, requested_kernel, run

MAX_SIGNATURES = 4096  # size of the cache of prepared calls; a full cache is emptied


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    energy: EnergyLike = SCALED_DOT,
    mask: MaskLike | None = None,
    bias: BiasLike | None = None,
    normalize: NormalizerLike = SOFTMAX,
    gate: GateLike | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    kernel: str | None = None,
) -> Tensor:
    """Attention: for each query, a weighted sum of the values; the weights are the normalised energies.

    >>> q, k, v = torch.randn(2, 8, 5, 64), torch.randn(2, 8, 7, 64), torch.randn(2, 8, 7, 32)
    >>> regard.attend(q, k, v).shape  # softmax(QKᵀ/√d) V
    torch.Size([2, 8, 5, 32])
    >>> out = regard.attend(q, k, v, mask=regard.Causal() & regard.Window(3), bias=regard.ALiBi(heads=8))
    >>> out = regard.attend(q, k, v, energy=regard.Additive(64), normalize=regard.Sparsemax())

    The order is fixed: energy → + bias → soft cap → mask → normaliser → gate → dropout → × values. A row with
    no allowed key gives zeros. `regard.explain` takes the same arguments and says which kernel runs.

    Args:
        query: (..., heads, Tq, Dq).
        key: (..., heads, Tk, Dk). Batch axes and heads broadcast. Keys and values may have fewer heads than
            queries; each then serves a group of neighbouring query heads.
        value: (..., heads, Tk, Dv); the output is (..., heads, Tq, Dv).
        energy: the score of a query and a key: an `Energy` or a function.
        mask: where attention is allowed: a `Mask`, or a boolean tensor (True is allowed).
        bias: added to the energies: a `Bias`, a tensor or a function of two positions.
        normalize: turns a row of scores into weights: a `Normalizer` or a function.
        gate: multiplies the weights after the normaliser; a mask, a bias or a tensor.
        softcap: c of c·tanh(score / c), applied before the mask.
        dropout: probability of dropping a weight.
        kernel: run this kernel instead of the fastest one; an error if it cannot run the call.
    """
    cache_key = signature(query, key, value, energy, mask, bias, normalize, gate, softcap, dropout, kernel)
    try:
        prepared = None if cache_key is None else PREPARED.get(cache_key)
    except TypeError:  # an option is unhashable and of a wrong type; the checks below raise
        prepared = None
    observers = watching.targets() if watching.is_watching() else None  # None: no `watch`, no `intervene`
    if prepared is not None:
        if prepared.shortcut is not None and (
            observers is None or (not observers and prepared.shortcut_allowed_in_watch())
        ):
            out = prepared.shortcut(query, key, value, mask)
            if out is not None:
                return out
        call = prepared.call(query, key, value, (energy, mask, bias, normalize, gate))
    else:
        call = make_call(query, key, value, energy=energy, mask=mask, bias=bias, normalize=normalize,
                         gate=gate, softcap=softcap, dropout=dropout)  # fmt: skip
        prepared = _prepare(call, kernel, (query, key, value), cache_key)
    if observers is not None:
        return _run_observed(call, prepared, observers)
    return run(call, prepared.kernel, prepared.machine, prepared.clear)


def _prepare(
    call: Call, kernel: str | None, inputs: tuple[Tensor, Tensor, Tensor], cache_key: Hashable
) -> _Prepared:
    """Plan a call, and cache the result unless `cache_key` is None."""
    prepared = _Prepared.of(call, kernel, inputs)
    if cache_key is not None:
        if len(PREPARED) >= MAX_SIGNATURES:
            PREPARED.clear()
        PREPARED[cache_key] = prepared
    return prepared


def _run_observed(call: Call, prepared: _Prepared, observers: watching.Targets) -> Tensor:
    """Record the call and run it; with weights edited by `intervene`, on the reference kernel."""
    call = watching.edited(call, observers)
    watching.record(call, observers)
    kernel, clear = prepared.kernel, prepared.clear
    if call.edited is not None:
        kernel, clear = KERNELS["reference"], False
    elif prepared.shortcut is not None and prepared.shortcut_allowed_in_watch():
        out = prepared.shortcut(call.query, call.key, call.value, call.mask)
        if out is not None:
            return out
    with watching.running_kernel(compiles=kernel.compiles):
        return run(call, kernel, prepared.machine, clear)


@dataclass(slots=True)
class _Prepared:
    """Result of checks and planning for one signature, cached so that later calls only run the kernel."""

    kernel: Kernel
    machine: Machine
    clear: bool  # queries that see no key, and keys that no query sees, must be zeroed first
    has_mask: bool  # False also for a mask that allows everything
    inputs_unchanged: bool  # queries, keys and values need no cast, no heads axis and no broadcasting
    other_fields: tuple  # the fields of `Call` from `softcap` on
    shortcut: Shortcut | None  # a faster function for this signature; it may return None

    @classmethod
    def of(cls, call: Call, kernel: str | None, inputs: tuple[Tensor, Tensor, Tensor]) -> _Prepared:
        machine = Machine.of(call.query, call.key, call.value)
        chosen = choose_kernel(call, machine) if kernel is None else requested_kernel(call, kernel, machine)
        unchanged = all(a is b for a, b in zip(inputs, (call.query, call.key, call.value), strict=True))
        other_fields = (
            call.softcap, call.dropout, call.leading, call.heads, call.groups, call.squeeze_heads,
            call.autocast,
        )  # fmt: skip
        shortcut = chosen.shortcut(call, machine) if unchanged and machine.tracer is None else None
        clear = chosen.reads_unseen and needs_clearing(call)
        return cls(chosen, machine, clear, call.mask is not None, unchanged, other_fields, shortcut)

    def shortcut_allowed_in_watch(self) -> bool:
        """True if the shortcut may run inside `watch`: it is not compiled, and nothing intercepts torch."""
        return not self.kernel.compiles and is_intercepted() is None

    def call(self, query: Tensor, key: Tensor, value: Tensor, options: tuple) -> Call:
        """Return the `Call` for new inputs with this signature; nothing is checked again."""
        energy, mask, bias, normalize, gate = options
        if not self.inputs_unchanged:
            _, _, leading, heads, _, _, autocast = self.other_fields
            query, key, value = cast_and_expand(query, key, value, leading, heads, autocast)
        mask = wrap_mask(mask) if self.has_mask else None
        bias, gate = None if bias is None else wrap_bias(bias), None if gate is None else wrap_gate(gate)
        return Call(query, key, value, energy, mask, bias, normalize, gate, *self.other_fields)


def explain(
    query: Tensor, key: Tensor, value: Tensor, *, kernel: str | None = None, **options: Unpack[Options]
) -> Plan:
    """Return which kernel `attend` runs with these arguments, why, why not a faster one, and its memory.

    >>> x = torch.randn(2, 8, 512, 64)
    >>> plan = regard.explain(x, x, x, normalize=regard.Sparsemax())
    >>> plan.kernel, plan.not_used["sdpa"]
    ('tiled', 'SDPA normalises by softmax only, not by Sparsemax')
    """
    return make_plan(make_call(query, key, value, **options), kernel)


def weights(query: Tensor, key: Tensor, *, stage: str = "gated", **options: Unpack[Options]) -> Tensor:
    """Return the attention matrix, (..., heads, Tq, Tk), computed by the reference kernel; for small inputs.

    >>> x = torch.randn(4, 8)
    >>> regard.weights(x, x, mask=regard.Causal())[0]  # the first query sees only the first key
    tensor([1., 0., 0., 0.])

    Args:
        query: (..., heads, Tq, Dq).
        key: (..., heads, Tk, Dk).
        stage: "energy", "biased" (with soft cap), "masked", "normalised" or "gated" (the default).
        **options: the options of `attend`.
    """
    call = make_call(query, key, key, **options)
    matrix = reference.weigh(call, reference.all_inputs(call), reference.check_stage(stage))[0]
    matrix = matrix.expand(*call.leading, call.heads, call.Tq, call.Tk).to(call.dtype)
    return matrix.squeeze(-3) if call.squeeze_heads else matrix
