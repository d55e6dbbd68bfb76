"""The one public verb, and the two questions one asks of it: which kernel runs, and what the weights are."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

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
    fit,
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
from regard.attention.plan import Plan, choose, make_plan, requested, run
from regard.attention.torch_modes import is_plain


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
    """Attention: for each query, the values weighted by how well their keys fit.

    query (..., heads, Tq, Dq), key (..., heads, Tk, Dk), value (..., heads, Tk, Dv) → (..., heads, Tq, Dv). Batch and heads
    broadcast; keys and values may have fewer heads, each then serving a group of neighbouring query heads.

    The order is fixed: energy → + bias → soft cap → mask → normaliser → gate → dropout → × values. A mask is True where
    attention is allowed. A row with nothing to attend to gives zeros. `kernel` names the path to take instead of the
    fastest, and is an error when it cannot be taken; `regard.explain` takes the same arguments and says what would run.
    """
    known = prepared = None
    if is_plain(query, key, value):
        known = signature(query, key, value, energy, mask, bias, normalize, gate, softcap, dropout, kernel)
        try:
            prepared = _prepared.get(known)
        except TypeError:  # an option that cannot be hashed is none that is known; checks say so
            known = None
    watched = watching.watching()
    if prepared is not None:
        if prepared.shortcut is not None and not watched:
            out = prepared.shortcut(query, key, value, mask)
            if out is not None:
                return out
        call = prepared.call(query, key, value, (energy, mask, bias, normalize, gate))
    else:
        call = make_call(
            query, key, value,
            energy=energy, mask=mask, bias=bias, normalize=normalize, gate=gate, softcap=softcap, dropout=dropout,
        )  # fmt: skip
        prepared = _Prepared.of(call, kernel, (query, key, value))
        if known is not None:
            if len(_prepared) >= SIGNATURES:
                _prepared.clear()
            _prepared[known] = prepared
    if watched:
        with watching.record(call, compiles=prepared.kernel.compiles):
            return run(call, prepared.kernel, prepared.machine, prepared.clear)
    return run(call, prepared.kernel, prepared.machine, prepared.clear)


@dataclass(slots=True)
class _Prepared:
    """What checks and planning found for one signature: all that is left to do is to run."""

    kernel: Kernel
    machine: Machine
    clear: bool  # something may be hidden from everybody
    masked: bool  # the mask hides something
    as_given: bool  # queries, keys and values need no cast, no heads axis and no broadcasting
    rest: tuple  # the fields of a Call after its options
    shortcut: Shortcut | None

    @classmethod
    def of(cls, call: Call, kernel: str | None, given: tuple[Tensor, Tensor, Tensor]) -> _Prepared:
        machine = Machine.of(call.query, call.key, call.value)
        chosen = choose(call, machine) if kernel is None else requested(call, kernel, machine)
        as_given = all(a is b for a, b in zip(given, (call.query, call.key, call.value), strict=True))
        rest = (call.softcap, call.dropout, call.leading, call.heads, call.groups, call.flat, call.autocast)
        shortcut = chosen.shortcut(call, machine) if as_given and machine.tracer is None else None
        clear = chosen.reads_unseen and needs_clearing(call)
        return cls(chosen, machine, clear, call.mask is not None, as_given, rest, shortcut)

    def call(self, query: Tensor, key: Tensor, value: Tensor, options: tuple) -> Call:
        energy, mask, bias, normalize, gate = options
        if not self.as_given:
            query, key, value = fit(query, key, value, self.rest[2], self.rest[3], self.rest[6])
        mask = wrap_mask(mask) if self.masked else None
        bias, gate = None if bias is None else wrap_bias(bias), None if gate is None else wrap_gate(gate)
        return Call(query, key, value, energy, mask, bias, normalize, gate, *self.rest)


SIGNATURES = 4096
_prepared: dict[Hashable, _Prepared] = {}


def explain(
    query: Tensor, key: Tensor, value: Tensor, *, kernel: str | None = None, **options: Unpack[Options]
) -> Plan:
    """Which kernel `attend` would run with the same arguments, why, why none that is faster, and the memory it needs."""
    return make_plan(make_call(query, key, value, **options), kernel)


def weights(query: Tensor, key: Tensor, *, stage: str = "gated", **options: Unpack[Options]) -> Tensor:
    """The attention matrix itself, (..., heads, Tq, Tk), by the reference: for small cases and for looking.

    Takes `attend`'s options. `stage` is "energy", "biased" (with soft cap), "masked", "normalised" or "gated" (the default).
    """
    call = make_call(query, key, key, **options)
    found = reference.weigh(call, reference.all_of(call), reference.check_stage(stage))[0]
    found = found.expand(*call.leading, call.heads, call.Tq, call.Tk).to(call.dtype)
    return found.squeeze(-3) if call.flat else found
