"""Triton kernels: residual sum, dropout and layer normalisation in one pass, forward and backward.

    sum = x + dropout(f),  y = (sum − mean) · rstd · W + B

A program handles tiles of ROWS rows × all features, in float32; the D features are padded to COLS, a power of
two. 16 random bits decide whether an element is dropped. They depend only on the seed, the row and the
column, so the backward pass draws the same mask again instead of reading it.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl


@triton.jit
def _keep_mask(seed, rows, threshold, COLS: tl.constexpr):
    """True where an element is kept, (rows, COLS); one call of Philox serves eight elements.

    Philox4x32 with 7 rounds passes BigCrush (Salmon et al. 2011, table 2).
    """
    GROUPS: tl.constexpr = COLS // 8
    offset = rows[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]  # (rows, GROUPS)
    a, b, c, d = tl.randint4x(seed, offset, n_rounds=7)
    bits = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))  # (rows, COLS // 2), 32 bits each
    bits = bits.to(tl.uint32, bitcast=True)
    low, high = bits & 0xFFFF, bits >> 16
    return tl.interleave(low, high).to(tl.int32) >= threshold


@triton.jit(do_not_specialize=["rows", "threshold"])
def forward(
    X, F, W, B, Y, SUM, MEAN, RSTD, SEED, rows, eps, threshold, scale,
    D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLS)
    inside = (i < rows)[:, None] & (d < D)[None, :]
    offsets = i.to(tl.int64)[:, None] * D + d[None, :]
    f = tl.load(F + offsets, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        f = tl.where(_keep_mask(tl.load(SEED), i, threshold, COLS), f * scale, 0.0)
    s = tl.load(X + offsets, mask=inside, other=0.0).to(tl.float32) + f
    # Statistics of the rounded sum: it is what the backward pass reads.
    s = s.to(SUM.dtype.element_ty)
    if SAVE:
        tl.store(SUM + offsets, s, mask=inside)
    s = s.to(tl.float32)
    mean = tl.sum(s, 1) / D
    centered = tl.where(inside, s - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / D + eps)
    w = tl.load(W + d, mask=d < D, other=0.0).to(tl.float32)
    b = tl.load(B + d, mask=d < D, other=0.0).to(tl.float32)
    y = centered * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(Y + offsets, y.to(Y.dtype.element_ty), mask=inside)
    if SAVE:
        tl.store(MEAN + i, mean, mask=i < rows)
        tl.store(RSTD + i, rstd, mask=i < rows)


@triton.jit(do_not_specialize=["rows", "threshold", "tiles"])
def backward(
    GY, GY2, GSUM, SUM, MEAN, RSTD, W, SEED, DX, DF, DW, DB, rows, tiles, threshold, scale,
    D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, DROPOUT: tl.constexpr,
    HAS_GY2: tl.constexpr, HAS_GSUM: tl.constexpr, SEPARATE: tl.constexpr,
):  # fmt: skip
    """Gradients of x and f, and each program's share of those of W and B.

    GY2 is added to GY, the gradient of y; GSUM to the gradient of the sum. SEPARATE: x and f have different
    gradients, because of dropout or their dtypes.
    """
    d = tl.arange(0, COLS)
    w = tl.load(W + d, mask=d < D, other=0.0).to(tl.float32)
    dw = tl.zeros([ROWS, COLS], tl.float32)
    db = tl.zeros([ROWS, COLS], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        i = tile * ROWS + tl.arange(0, ROWS)
        inside = (i < rows)[:, None] & (d < D)[None, :]
        offsets = i.to(tl.int64)[:, None] * D + d[None, :]
        g = tl.load(GY + offsets, mask=inside, other=0.0).to(tl.float32)
        if HAS_GY2:
            g += tl.load(GY2 + offsets, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(SUM + offsets, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(MEAN + i, mask=i < rows, other=0.0)
        rstd = tl.load(RSTD + i, mask=i < rows, other=0.0)
        normed = tl.where(inside, (s - mean[:, None]) * rstd[:, None], 0.0)
        dw += g * normed
        db += g
        g = g * w[None, :]
        mean_g = tl.sum(g, 1) / D
        mean_g_normed = tl.sum(g * normed, 1) / D
        ds = (g - mean_g[:, None] - normed * mean_g_normed[:, None]) * rstd[:, None]
        if HAS_GSUM:
            ds += tl.load(GSUM + offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(DX + offsets, ds.to(DX.dtype.element_ty), mask=inside)
        if SEPARATE:
            if DROPOUT:
                ds = tl.where(_keep_mask(tl.load(SEED), i, threshold, COLS), ds * scale, 0.0)
            tl.store(DF + offsets, ds.to(DF.dtype.element_ty), mask=inside)
    partial = tl.program_id(0).to(tl.int64) * D + d
    tl.store(DW + partial, tl.sum(dw, 0), mask=d < D)
    tl.store(DB + partial, tl.sum(db, 0), mask=d < D)
