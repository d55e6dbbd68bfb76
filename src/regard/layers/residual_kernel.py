"""Triton kernels: residual sum, dropout and layer normalisation in one pass, forward and backward.

    sum = x + dropout(f),  y = (sum − mean) · rstd · W + B

A program handles tiles of ROWS rows × all features, in float32; `cols` are padded to a power of two. Dropout
decides by 16 random bits per element, which depend on the seed, the row and the column alone, so the backward
pass draws the same mask again instead of reading it.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl


@triton.jit
def _kept(seed, rows, threshold, COLS: tl.constexpr):
    """True where an element is kept, (rows, COLS): eight elements for each call of Philox with 7 rounds.

    Philox4x32-7 passes BigCrush (Salmon et al. 2011, table 2).
    """
    GROUPS: tl.constexpr = COLS // 8
    offset = rows[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]  # (rows, GROUPS)
    a, b, c, d = tl.randint4x(seed, offset, n_rounds=7)
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d)).to(tl.uint32, bitcast=True)
    low, high = words & 0xFFFF, words >> 16
    return tl.interleave(low, high).to(tl.int32) >= threshold


@triton.jit(do_not_specialize=["rows", "threshold"])
def forward(
    X, F, W, B, Y, SUM, MEAN, RSTD, SEED, rows, eps, threshold, scale,
    D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLS)
    here = (i < rows)[:, None] & (d < D)[None, :]
    at = i.to(tl.int64)[:, None] * D + d[None, :]
    f = tl.load(F + at, mask=here, other=0.0).to(tl.float32)
    if DROPOUT:
        f = tl.where(_kept(tl.load(SEED), i, threshold, COLS), f * scale, 0.0)
    s = tl.load(X + at, mask=here, other=0.0).to(tl.float32) + f
    # Statistics of the rounded sum: it is what the backward pass reads.
    s = s.to(SUM.dtype.element_ty)
    if SAVE:
        tl.store(SUM + at, s, mask=here)
    s = s.to(tl.float32)
    mean = tl.sum(s, 1) / D
    centered = tl.where(here, s - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / D + eps)
    w = tl.load(W + d, mask=d < D, other=0.0).to(tl.float32)
    b = tl.load(B + d, mask=d < D, other=0.0).to(tl.float32)
    y = centered * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(Y + at, y.to(Y.dtype.element_ty), mask=here)
    if SAVE:
        tl.store(MEAN + i, mean, mask=i < rows)
        tl.store(RSTD + i, rstd, mask=i < rows)


@triton.jit(do_not_specialize=["rows", "threshold", "tiles"])
def backward(
    GY, GY2, GSUM, SUM, MEAN, RSTD, W, SEED, DX, DF, DW, DB, rows, tiles, threshold, scale,
    D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr,
    HAS_GY2: tl.constexpr, HAS_GSUM: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Gradients of x, f and, per program, of W and B. GY2 is added to GY, GSUM to the gradient of the sum.

    SPLIT: x and f get different tensors, because of dropout or their dtypes.
    """
    d = tl.arange(0, COLS)
    w = tl.load(W + d, mask=d < D, other=0.0).to(tl.float32)
    dw = tl.zeros([ROWS, COLS], tl.float32)
    db = tl.zeros([ROWS, COLS], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        i = tile * ROWS + tl.arange(0, ROWS)
        here = (i < rows)[:, None] & (d < D)[None, :]
        at = i.to(tl.int64)[:, None] * D + d[None, :]
        g = tl.load(GY + at, mask=here, other=0.0).to(tl.float32)
        if HAS_GY2:
            g += tl.load(GY2 + at, mask=here, other=0.0).to(tl.float32)
        s = tl.load(SUM + at, mask=here, other=0.0).to(tl.float32)
        mean = tl.load(MEAN + i, mask=i < rows, other=0.0)
        rstd = tl.load(RSTD + i, mask=i < rows, other=0.0)
        normed = tl.where(here, (s - mean[:, None]) * rstd[:, None], 0.0)
        dw += g * normed
        db += g
        g = g * w[None, :]
        along = tl.sum(g * normed, 1) / D
        level = tl.sum(g, 1) / D
        ds = (g - level[:, None] - normed * along[:, None]) * rstd[:, None]
        if HAS_GSUM:
            ds += tl.load(GSUM + at, mask=here, other=0.0).to(tl.float32)
        tl.store(DX + at, ds.to(DX.dtype.element_ty), mask=here)
        if SPLIT:
            if DROPOUT:
                ds = tl.where(_kept(tl.load(SEED), i, threshold, COLS), ds * scale, 0.0)
            tl.store(DF + at, ds.to(DF.dtype.element_ty), mask=here)
    partial = tl.program_id(0).to(tl.int64) * D + d
    tl.store(DW + partial, tl.sum(dw, 0), mask=d < D)
    tl.store(DB + partial, tl.sum(db, 0), mask=d < D)
