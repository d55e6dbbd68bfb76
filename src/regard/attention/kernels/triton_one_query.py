"""Triton kernels for additive (Bahdanau) attention of one query per sequence, as in a recurrent decoder.

A program has one query n (batch b, head h) and reads its keys and values once, BK at a time. Both passes
compute tanh for every element; with one query there is nothing to share between elements. Energies are in
base 2. Names are those of triton_additive.py; DP and DVP are D and DV rounded up to powers of 2.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
RUNTIME = ["H", "groups", "Tk"]  # not compiled in: one kernel serves all values


@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))


@triton.jit
def _seen(START, STOP, MASK, b, h, j, srb, smb, smh, Tk, RANGES: tl.constexpr, DENSE: tl.constexpr):
    """Keys that exist and that the mask allows."""
    seen = j < Tk
    if RANGES:
        seen = seen & (j >= tl.load(START + b * srb)) & (j < tl.load(STOP + b * srb))
    if DENSE:
        seen = seen & (tl.load(MASK + b * smb + h * smh + j, mask=seen, other=0) != 0)
    return seen


@triton.jit
def _load_rows(X, j, stride, seen, d, D: tl.constexpr):
    """Rows j of X; 0 for keys that are not seen, which may be NaN."""
    at = X + j.to(tl.int64)[:, None] * stride + d[None, :]
    return tl.load(at, mask=seen[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=RUNTIME)
def forward(
    A, B, W, V, OUT, L, SEED, START, STOP, MASK,
    sab, sah, sbb, sbh, sbt, sw, svb, svh, svt, srb, smb, smh, H, groups, Tk, dropout,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    RANGES: tl.constexpr, DENSE: tl.constexpr, DROPOUT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """OUT (n, DV) = softmax(energies) V by online softmax, and L = log2 Σ exp2, +∞ without keys."""
    n = tl.program_id(0).to(tl.int64)
    b, h = n // H, n % H
    d, e = tl.arange(0, DP), tl.arange(0, DVP)
    a = tl.load(A + b * sab + h * sah + d, mask=d < D, other=0.0).to(tl.float32)
    w = tl.load(W + h * sw + d, mask=d < D, other=0.0)
    keys, values = B + b * sbb + h // groups * sbh, V + b * svb + h // groups * svh
    acc = tl.zeros([DVP], tl.float32)
    total, top = 0.0, float("-inf")
    for m in range(0, Tk, BK):
        j = m + tl.arange(0, BK)
        seen = _seen(START, STOP, MASK, b, h, j, srb, smb, smh, Tk, RANGES, DENSE)
        t = _tanh(a[None, :] + _load_rows(keys, j, sbt, seen, d, D))
        s = tl.where(seen, tl.sum(w[None, :] * t, 1) * LOG2E, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 0))
        level = tl.where(new_top == float("-inf"), 0.0, new_top)  # no key seen yet
        p, rescale = tl.exp2(s - level), tl.exp2(top - level)
        total = total * rescale + tl.sum(p, 0)
        if DROPOUT:
            p = tl.where(tl.rand(tl.load(SEED) + n, j) >= dropout, p, 0.0)
        v = _load_rows(values, j, svt, seen, e, DV)
        acc = acc * rescale + tl.sum(p[:, None] * v, 0)
        top = new_top
    empty = total == 0.0
    share = tl.where(empty, 1.0, total)
    if DROPOUT:
        share = share * (1.0 - dropout)
    tl.store(OUT + n * DV + e, (acc / share).to(OUT.dtype.element_ty), mask=e < DV)
    tl.store(L + n, tl.where(empty, float("inf"), top + tl.log2(total)))


@triton.jit(do_not_specialize=RUNTIME)
def backward(
    A, B, W, V, OUT, G, L, DA, DB, DW, DVALUES, SEED, START, STOP, MASK,
    sab, sah, sbb, sbh, sbt, sw, svb, svh, svt, sgb, sgh, srb, smb, smh, H, groups, Tk, dropout,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    RANGES: tl.constexpr, DENSE: tl.constexpr, DROPOUT: tl.constexpr, VALUES: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """DA (n, D), DB (n, Tk, D), DW (n, D) and, with VALUES, DVALUES (n, Tk, DV)."""
    n = tl.program_id(0).to(tl.int64)
    b, h = n // H, n % H
    d, e = tl.arange(0, DP), tl.arange(0, DVP)
    logs = tl.load(L + n)
    stop_d, stop_e = tl.where(logs == float("inf"), 0, D), tl.where(logs == float("inf"), 0, DV)
    # Without keys, query and gradient may be NaN.
    a = tl.load(A + b * sab + h * sah + d, mask=d < stop_d, other=0.0).to(tl.float32)
    w = tl.load(W + h * sw + d, mask=d < D, other=0.0)
    g = tl.load(G + b * sgb + h * sgh + e, mask=e < stop_e, other=0.0).to(tl.float32)
    out = tl.load(OUT + n * DV + e, mask=e < DV, other=0.0).to(tl.float32)
    product = tl.sum(out * g, 0)  # the softmax's backward pass subtracts it
    keys, values = B + b * sbb + h // groups * sbh, V + b * svb + h // groups * svh
    da, dw = tl.zeros([DP], tl.float32), tl.zeros([DP], tl.float32)
    for m in range(0, Tk, BK):
        j = m + tl.arange(0, BK)
        seen = _seen(START, STOP, MASK, b, h, j, srb, smb, smh, Tk, RANGES, DENSE)
        t = _tanh(a[None, :] + _load_rows(keys, j, sbt, seen, d, D))
        s = tl.sum(w[None, :] * t, 1) * LOG2E
        p = tl.where(seen, tl.exp2(s - logs), 0.0)
        dp = tl.sum(g[None, :] * _load_rows(values, j, svt, seen, e, DV), 1)
        dropped = p
        if DROPOUT:
            keep = tl.rand(tl.load(SEED) + n, j) >= dropout
            dp = tl.where(keep, dp / (1.0 - dropout), 0.0)
            dropped = tl.where(keep, p / (1.0 - dropout), 0.0)
        ds = tl.where(seen, p * (dp - product), 0.0)
        db = ds[:, None] * w[None, :] * (1.0 - t * t)
        rows = (n * Tk + j)[:, None]
        tl.store(DB + rows * D + d[None, :], db, mask=(j < Tk)[:, None] & (d < D)[None, :])
        if VALUES:
            dv = dropped[:, None] * g[None, :]
            tl.store(DVALUES + rows * DV + e[None, :], dv, mask=(j < Tk)[:, None] & (e < DV)[None, :])
        da += tl.sum(db, 0)
        dw += tl.sum(ds[:, None] * t, 0)
    tl.store(DA + n * D + d, da, mask=d < D)
    tl.store(DW + n * D + d, dw, mask=d < D)
