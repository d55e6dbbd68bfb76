"""Triton kernels: softmax attention over short sequences, forward and backward.

A program holds the whole attention matrix of one sequence and head in registers: one tile of BLOCK × BLOCK,
no loop. Kernels for long sequences use tiles of 64 queries or more, most of which a sentence of ten tokens
leaves empty. The backward pass is one kernel and needs no statistics of the forward pass.

Names are those of triton_band.py: low ≤ key − query ≤ high is the band that the mask allows, and scores are
in base 2.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl

RUNTIME = ["H", "Tq", "Tk", "low", "high"]  # not compiled in: one kernel serves all values


@triton.jit
def _load(base, rows, seen, stride, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of a (time, dim) matrix as (rows, BLOCK_D); zeros where `seen` is false."""
    d = tl.arange(0, BLOCK_D)
    mask = seen[:, None] if D == BLOCK_D else seen[:, None] & (d < D)[None, :]
    return tl.load(base + rows[:, None] * stride + d[None, :], mask=mask, other=0.0)


@triton.jit
def _store(base, x, rows, exists, stride, D: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    mask = exists[:, None] if D == BLOCK_D else exists[:, None] & (d < D)[None, :]
    tl.store(base + rows[:, None] * stride + d[None, :], x.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _seen_keys(j, lengths, b, Tq, Tk, low, high, PADDED: tl.constexpr):
    """Keys that any query sees; the others may hold NaN and are not read."""
    last = Tk
    if PADDED:
        last = tl.minimum(tl.load(lengths + b), Tk).to(tl.int32)
    return (j < last) & (j >= low) & (j < Tq + high)


@triton.jit
def _scores(q, k, i, j, seen, low, high, scale, BAND: tl.constexpr):
    """Scores in base 2, −∞ where the mask hides the key."""
    s = tl.dot(q, tl.trans(k)) * scale
    allowed = seen[None, :]
    if BAND:
        distance = j[None, :] - i[:, None]
        allowed = allowed & (distance >= low) & (distance <= high)
    return tl.where(allowed, s, float("-inf"))


@triton.jit
def _exponentials(s):
    """exp2(s − maximum), its sum per row, and which rows see a key; 1 instead of an empty row's sum."""
    top = tl.max(s, 1)
    has_keys = top != float("-inf")
    e = tl.exp2(s - tl.where(has_keys, top, 0.0)[:, None])
    return e, tl.where(has_keys, tl.sum(e, 1), 1.0), has_keys


@triton.jit(do_not_specialize=RUNTIME)
def short_forward(
    Q, K, V, OUT, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, sob, soh, sot,
    H, Tq, Tk, low, high, scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PADDED: tl.constexpr, BAND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(0)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    i, j = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    seen = _seen_keys(j, lengths, b, Tq, Tk, low, high, PADDED)
    q = _load(Q + b * sqb + h * sqh, i, i < Tq, sqt, D, BLOCK_D)
    k = _load(K + b * skb + h * skh, j, seen, skt, D, BLOCK_D)
    v = _load(V + b * svb + h * svh, j, seen, svt, DV, BLOCK_DV)
    e, total, _ = _exponentials(_scores(q, k, i, j, seen, low, high, scale, BAND))
    out = tl.dot(e.to(v.dtype), v) / total[:, None]
    _store(OUT + b * sob + h * soh, out, i, i < Tq, sot, DV, BLOCK_DV)


@triton.jit(do_not_specialize=RUNTIME)
def short_backward(
    Q, K, V, G, DQ, DK, DV_, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, sgb, sgh, sgt,
    soqb, soqh, soqt, sokb, sokh, sokt, sovb, sovh, sovt,
    H, Tq, Tk, low, high, scale, energy_scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PADDED: tl.constexpr, BAND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values; G is the gradient of the output."""
    bh = tl.program_id(0)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    i, j = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    seen = _seen_keys(j, lengths, b, Tq, Tk, low, high, PADDED)
    q = _load(Q + b * sqb + h * sqh, i, i < Tq, sqt, D, BLOCK_D)
    k = _load(K + b * skb + h * skh, j, seen, skt, D, BLOCK_D)
    e, total, has_keys = _exponentials(_scores(q, k, i, j, seen, low, high, scale, BAND))
    g = _load(G + b * sgb + h * sgh, i, (i < Tq) & has_keys, sgt, DV, BLOCK_DV)
    p = tl.where((i < Tq)[:, None], e / total[:, None], 0.0)
    dv = tl.dot(tl.trans(p.to(g.dtype)), g)
    _store(DV_ + b * sovb + h * sovh, dv, j, j < Tk, sovt, DV, BLOCK_DV)
    v = _load(V + b * svb + h * svh, j, seen, svt, DV, BLOCK_DV)
    dp = tl.dot(g, tl.trans(v))
    ds = p * (dp - tl.sum(p * dp, 1)[:, None])
    ds = tl.where(p == 0.0, 0.0, ds).to(k.dtype)
    dq = tl.dot(ds, k) * energy_scale
    _store(DQ + b * soqb + h * soqh, dq, i, i < Tq, soqt, D, BLOCK_D)
    q = tl.where(has_keys[:, None], q, 0.0)  # a query that sees no key may hold NaN
    dk = tl.dot(tl.trans(ds), q) * energy_scale
    _store(DK + b * sokb + h * sokh, dk, j, j < Tk, sokt, D, BLOCK_D)
