"""The one public verb, and the two questions one asks of it: which kernel runs, and what the weights are."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from regard.attention import trace
from regard.attention.call import (
    SCALED_DOT,
    SOFTMAX,
    BiasLike,
    EnergyLike,
    GateLike,
    MaskLike,
    NormalizerLike,
    Options,
    make_call,
)
from regard.attention.kernels import reference
from regard.attention.plan import Plan, make_plan, run


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
    call = make_call(
        query, key, value,
        energy=energy, mask=mask, bias=bias, normalize=normalize, gate=gate, softcap=softcap, dropout=dropout,
    )  # fmt: skip
    if trace.watching():
        trace.record(call)
    return run(call, kernel)


def explain(query: Tensor, key: Tensor, value: Tensor, *, kernel: str | None = None, **options: Unpack[Options]) -> Plan:
    """Which kernel `attend` would run with the same arguments, why, why none that is faster, and the memory it needs."""
    return make_plan(make_call(query, key, value, **options), kernel)


def weights(query: Tensor, key: Tensor, *, stage: str = "gated", **options: Unpack[Options]) -> Tensor:
    """The attention matrix itself, (..., heads, Tq, Tk), by the reference: for small cases and for looking.

    Takes `attend`'s options. `stage` is "energy", "biased" (with soft cap), "masked", "normalised" or "gated" (the default).
    """
    call = make_call(query, key, key, **options)
    found = reference.weigh(call, reference.whole(call), reference.check_stage(stage))[0]
    found = found.expand(*call.leading, call.heads, call.Tq, call.Tk)
    return found.squeeze(-3) if call.flat else found
