"""Triton kernels for additive (Bahdanau) attention: energies, softmax × values, and all gradients.

tanh(a + b) = 1 − 2r with r = 1/(1 + e^{2a}·e^{2b}). The exponentials are computed once per position and
feature (`prepare`), and one reciprocal serves several elements: 1/p₁ = p₂·R, 1/p₂ = p₁·R, R = 1/(p₁p₂). A
softmax does not depend on Σ w, so energies are stored as −2 Σ w r, in base 2. dE/da = 4 w r (1 − r), and
dE/dw = −2r plus a constant that the softmax's gradient cancels.

Each block of TILE positions has a level: 0 if all |x| ≤ TINY (a product of four p cannot overflow), 1 if all
|x| ≤ SMALL (two p), 2 if all |x| ≤ LIMIT (two p, each cut at 1e15, where r is 0 in float32), 3 otherwise,
also for NaN: e^{2(a+b)} is computed for every element. No value is read by the host: each pass over elements
is launched twice, for the usual levels and (`far_energies`, `REST`) for the others, whose programs return if
they find none.
With all levels in one kernel, the rare ones would take registers from the usual ones.

Element loops load tiles of four neighbours, (positions, 4), and split them into four vectors. `num_stages` of
`tl.range` makes these loads asynchronous copies to shared memory, one iteration ahead.

Names: n is a pair of batch b and query head h; i, j are query and key positions; chunks of `rows` queries
starting at `row0` are processed at a time, so that stored energies take bounded memory. Positions are padded
to multiples of TILE (TQP, TKP), features to multiples of 8 (DP). sab, sah, sat are the batch, head and time
strides of A (sbb, … of B). L holds log2 Σ exp2 of each row, +∞ for a row without keys.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
import triton
import triton.language as tl

TILE = tl.constexpr(64)
TINY = tl.constexpr(5.25)  # (1 + e^{21})⁴ is finite in float32
SMALL = tl.constexpr(10.5)  # (1 + e^{42})² too
LIMIT = tl.constexpr(43.5)  # e^{±87} is finite and not denormal
CUT = tl.constexpr(1e15)
SCALE = tl.constexpr(-2 * 1.4426950408889634)  # of Σ w r, for energies in base 2
# Not compiled in: one kernel serves all values.
RUNTIME = [
    "H",
    "Hk",
    "groups",
    "query_blocks",
    "key_blocks",
    "programs",
    "tiles",
    "Tq",
    "Tk",
    "T",
    "row0",
    "rows",
    "x0",
    "y0",
    "TX",
    "TY",
]


@triton.jit
def _exp(x):
    """e^x to about 2 ulp: the argument of exp2 is split, because rounding x·log2 e costs |x| ulp."""
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    fraction = tl.fma(x, 1.4426950216293335, -n) + x * 1.925963033500e-8
    return tl.exp2(fraction) * tl.exp2(n)


@triton.jit
def _reciprocal(x, ASM: tl.constexpr):
    """1/x. Triton's own division adds instructions for denormal results, which cannot occur here."""
    if ASM:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def _prepare_block(
    X, OUT, LEVELS, sxb, sxh, sxt, H, T, blocks, pid,
    D: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    n = (pid // blocks).to(tl.int64)
    t = pid % blocks * TILE + tl.arange(0, TILE)
    X += n // H * sxb + n % H * sxh
    largest = tl.zeros([TILE, BD], tl.float32)
    for first in range(0, DP, BD):
        d = first + tl.arange(0, BD)
        inside = (t < T)[:, None] & (d < D)[None, :]
        x = tl.load(X + t.to(tl.int64)[:, None] * sxt + d[None, :], mask=inside, other=0.0).to(tl.float32)
        size = tl.abs(x)
        largest = tl.maximum(largest, tl.where(size <= LIMIT, size, float("inf")))  # NaN: ∞
        at = OUT + (n * blocks * TILE + t)[:, None] * DP + d[None, :]
        tl.store(at, tl.where(inside, _exp(2.0 * x), 0.0), mask=(d < DP)[None, :])
    top = tl.max(tl.max(largest, 1), 0)
    level = (top > TINY).to(tl.int32) + (top > SMALL).to(tl.int32) + (top > LIMIT).to(tl.int32)
    tl.store(LEVELS + pid, level)


@triton.jit(do_not_specialize=RUNTIME)
def prepare(
    A, B, EA, EB, LA, LB, sab, sah, sat, sbb, sbh, sbt, H, Hk, Tq, Tk, query_blocks, key_blocks, programs,
    D: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """EA (n, TQP, DP) = e^{2a}, 0 in the padding, and the level of each block; then the same for b.

    The first `programs` programs are those of a.
    """
    pid = tl.program_id(0)
    if pid < programs:
        _prepare_block(A, EA, LA, sab, sah, sat, H, Tq, query_blocks, pid, D, DP, BD)
    else:
        _prepare_block(B, EB, LB, sbb, sbh, sbt, Hk, Tk, key_blocks, pid - programs, D, DP, BD)


@triton.jit
def _allowed(START, STOP, MASK, b, h, i, j, srb, smb, smh, Tq, Tk, RANGES: tl.constexpr, DENSE: tl.constexpr):
    """Pairs (query, key) that exist and that the mask allows."""
    allowed = (i < Tq)[:, None] & (j < Tk)[None, :]
    if RANGES:
        start = tl.load(START + b * srb + i, mask=i < Tq, other=0)
        stop = tl.load(STOP + b * srb + i, mask=i < Tq, other=0)
        allowed = allowed & (j[None, :] >= start[:, None]) & (j[None, :] < stop[:, None])
    if DENSE:
        at = MASK + b * smb + h * smh + i.to(tl.int64)[:, None] * Tk + j[None, :]
        allowed = allowed & (tl.load(at, mask=allowed, other=0) != 0)
    return allowed


@triton.jit
def _has_pair(
    START, STOP, MASK, b, h, i0, j0, srb, smb, smh, Tq, Tk,
    RANGES: tl.constexpr, DENSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Whether the mask allows a pair of the tile (BM, BN) at (i0, j0).

    Without reducing a tile: after that, the compiler has too few registers for the energies and spills them.
    """
    found = True
    if RANGES:
        i = i0 + tl.arange(0, BM)
        start = tl.maximum(tl.load(START + b * srb + i, mask=i < Tq, other=0), j0)
        stop = tl.minimum(tl.load(STOP + b * srb + i, mask=i < Tq, other=0), j0 + BN)
        found = tl.max((start < stop).to(tl.int32), 0) != 0
    if DENSE:
        i, any_row = i0 + tl.arange(0, BM), tl.zeros([BM], tl.int32)
        rows = MASK + b * smb + h * smh + i.to(tl.int64) * Tk
        for j in range(j0, tl.minimum(j0 + BN, Tk)):
            any_row |= tl.load(rows + j, mask=i < Tq, other=0).to(tl.int32)
        found = tl.max(any_row, 0) != 0
    return found


@triton.jit
def _seen(allowed, j, Tk, MASKED: tl.constexpr):
    """Keys that any query of the tile sees. Without a mask that needs no reduction across threads."""
    if MASKED:
        return tl.max(allowed.to(tl.int32), 0) != 0
    return j < Tk


@triton.jit
def _any(x):
    return tl.max(tl.max(x.to(tl.int32), 1), 0) != 0


@triton.jit
def _split(x, N: tl.constexpr):
    """The four columns of x (N, 4)."""
    x02, x13 = tl.split(tl.reshape(x, [N, 2, 2]))
    x0, x2 = tl.split(x02)
    x1, x3 = tl.split(x13)
    return x0, x1, x2, x3


@triton.jit
def _sum_near(
    acc, EA, EB, W,
    DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, CLAMP: tl.constexpr,
    ASM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add Σ_d w_d / (1 + e^{2a}e^{2b}) to acc, with one reciprocal for GROUP (2 or 4) features.

    EA, EB and W point to the first four features, (BM, 4), (BN, 4) and (1, 4).
    """
    for d in tl.range(0, DP, 4, num_stages=STAGES):
        a0, a1, a2, a3 = _split(tl.load(EA + d), BM)
        b0, b1, b2, b3 = _split(tl.load(EB + d), BN)
        w0, w1, w2, w3 = _split(tl.load(W + d), 1)
        p0, p1 = a0[:, None] * b0[None, :] + 1.0, a1[:, None] * b1[None, :] + 1.0
        p2, p3 = a2[:, None] * b2[None, :] + 1.0, a3[:, None] * b3[None, :] + 1.0
        if CLAMP:
            p0, p1 = tl.minimum(p0, CUT), tl.minimum(p1, CUT)
            p2, p3 = tl.minimum(p2, CUT), tl.minimum(p3, CUT)
        n01, p01 = w0[:, None] * p1 + w1[:, None] * p0, p0 * p1
        n23, p23 = w2[:, None] * p3 + w3[:, None] * p2, p2 * p3
        if GROUP == 4:
            acc += (n01 * p23 + n23 * p01) * _reciprocal(p01 * p23, ASM)
        else:
            acc += n01 * _reciprocal(p01, ASM)
            acc += n23 * _reciprocal(p23, ASM)
    return acc


@triton.jit
def _sum_far(acc, A, B, W, i, j, sat, sbt, Tq, Tk, D: tl.constexpr):
    """The same for any a and b: one exponential per element."""
    for d in range(D):
        a = tl.load(A + i.to(tl.int64) * sat + d, mask=i < Tq, other=0.0).to(tl.float32)
        b = tl.load(B + j.to(tl.int64) * sbt + d, mask=j < Tk, other=0.0).to(tl.float32)
        acc += tl.load(W + d) / (1.0 + tl.exp(2.0 * (a[:, None] + b[None, :])))
    return acc


@triton.jit
def _store_tile(E, acc, n, first, m, rows, TKP, BM: tl.constexpr, BN: tl.constexpr):
    at = E + (n * rows + first) * TKP + m + tl.arange(0, BM)[:, None] * TKP + tl.arange(0, BN)[None, :]
    tl.store(at, acc * SCALE)


@triton.jit(do_not_specialize=RUNTIME)
def energies(
    EA, EB, W, LA, LB, E, START, STOP, MASK, srb, smb, smh, H, groups, Tq, Tk, row0, rows, TQP, TKP,
    DP: tl.constexpr, RANGES: tl.constexpr, DENSE: tl.constexpr, ASM: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """E (n, rows, TKP) of the chunk: tiles of level 0.

    Tiles without an allowed pair are not written.
    """
    pid, nj, ni = tl.program_id(0), TKP // BN, rows // BM
    n = (pid // (nj * ni)).to(tl.int64)
    b, h = n // H, n % H
    nk = b * (H // groups) + h // groups  # of the key's head
    first, m = pid // nj % ni * BM, pid % nj * BN  # BM and BN divide TILE
    la = tl.load(LA + n * (TQP // TILE) + (row0 + first) // TILE)
    if tl.maximum(la, tl.load(LB + nk * (TKP // TILE) + m // TILE)) > 0:
        return
    if not _has_pair(START, STOP, MASK, b, h, row0 + first, m, srb, smb, smh, Tq, Tk, RANGES, DENSE, BM, BN):
        return
    four = tl.arange(0, 4)[None, :]
    ea = EA + (n * TQP + row0 + first) * DP + tl.arange(0, BM)[:, None] * DP + four
    eb = EB + (nk * TKP + m) * DP + tl.arange(0, BN)[:, None] * DP + four
    acc = tl.zeros([BM, BN], tl.float32)
    acc = _sum_near(acc, ea, eb, W + h * DP + four, DP, BM, BN, 4, False, ASM, STAGES)
    _store_tile(E, acc, n, first, m, rows, TKP, BM, BN)


@triton.jit
def _far_tile(
    level, EA, EB, A, B, W, E, START, STOP, MASK, n, b, h, nk, first, m,
    sab, sah, sat, sbb, sbh, sbt, srb, smb, smh, groups, Tq, Tk, row0, rows, TQP, TKP,
    D: tl.constexpr, DP: tl.constexpr, RANGES: tl.constexpr, DENSE: tl.constexpr, ASM: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of level 1, 2 or 3."""
    i, j = row0 + first + tl.arange(0, BM), m + tl.arange(0, BN)
    if _has_pair(START, STOP, MASK, b, h, row0 + first, m, srb, smb, smh, Tq, Tk, RANGES, DENSE, BM, BN):
        four = tl.arange(0, 4)[None, :]
        ea = EA + (n * TQP + row0 + first) * DP + tl.arange(0, BM)[:, None] * DP + four
        eb = EB + (nk * TKP + m) * DP + tl.arange(0, BN)[:, None] * DP + four
        acc, w = tl.zeros([BM, BN], tl.float32), W + h * DP + four
        if level == 1:
            acc = _sum_near(acc, ea, eb, w, DP, BM, BN, 2, False, ASM, STAGES)
        elif level == 2:
            acc = _sum_near(acc, ea, eb, w, DP, BM, BN, 2, True, ASM, STAGES)
        else:
            a, k = A + b * sab + h * sah, B + b * sbb + h // groups * sbh
            acc = _sum_far(acc, a, k, W + h * DP, i, j, sat, sbt, Tq, Tk, D)
        _store_tile(E, acc, n, first, m, rows, TKP, BM, BN)


@triton.jit(do_not_specialize=RUNTIME)
def far_energies(
    EA, EB, A, B, W, LA, LB, E, START, STOP, MASK,
    sab, sah, sat, sbb, sbh, sbt, srb, smb, smh, H, groups, Tq, Tk, row0, rows, TQP, TKP, tiles,
    D: tl.constexpr, DP: tl.constexpr, RANGES: tl.constexpr, DENSE: tl.constexpr, ASM: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """E of the other tiles: few programs, since most calls have none of them.

    A program looks at 16 tiles at a time. Neighbouring tiles are left to different programs: one large
    feature moves all tiles of a row to another level.
    """
    pid, programs, nj, ni = tl.program_id(0), tl.num_programs(0), TKP // BN, rows // BM
    for base in range(pid, tiles, programs * 16):
        tile = base + programs * tl.arange(0, 16)
        n, first, m = (tile // (nj * ni)).to(tl.int64), tile // nj % ni * BM, tile % nj * BN
        nk = n // H * (H // groups) + n % H // groups
        la = tl.load(LA + n * (TQP // TILE) + (row0 + first) // TILE, mask=tile < tiles, other=0)
        lb = tl.load(LB + nk * (TKP // TILE) + m // TILE, mask=tile < tiles, other=0)
        if tl.max(tl.maximum(la, lb), 0) > 0:
            for one in range(base, tl.minimum(tiles, base + programs * 16), programs):
                n1 = (one // (nj * ni)).to(tl.int64)
                b, h = n1 // H, n1 % H
                nk1 = b * (H // groups) + h // groups
                first1, m1 = one // nj % ni * BM, one % nj * BN
                level = tl.load(LA + n1 * (TQP // TILE) + (row0 + first1) // TILE)
                level = tl.maximum(level, tl.load(LB + nk1 * (TKP // TILE) + m1 // TILE))
                if level > 0:
                    _far_tile(
                        level, EA, EB, A, B, W, E, START, STOP, MASK, n1, b, h, nk1, first1, m1,
                        sab, sah, sat, sbb, sbh, sbt, srb, smb, smh, groups, Tq, Tk, row0, rows, TQP, TKP,
                        D, DP, RANGES, DENSE, ASM, BM, BN, STAGES,
                    )  # fmt: skip


@triton.jit
def _keep(SEED, n, i, j, Tk, dropout):
    """Philox by position, so that the backward pass draws the same numbers."""
    seed = tl.load(SEED) + n
    return tl.rand(seed, i[:, None] * Tk + j[None, :]) >= dropout


@triton.jit
def _load_values(V, j, svt, seen, first, DV: tl.constexpr, BDV: tl.constexpr):
    """Values (keys, BDV) from component `first`; 0 for keys that no query of the tile sees (maybe NaN)."""
    e = first + tl.arange(0, BDV)
    at = V + j.to(tl.int64)[:, None] * svt + e[None, :]
    return tl.load(at, mask=seen[:, None] & (e < DV)[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=RUNTIME)
def combine(
    E, V, OUT, L, SEED, START, STOP, MASK,
    svb, svh, svt, srb, smb, smh, H, groups, Tq, Tk, row0, rows, TKP, dropout,
    DV: tl.constexpr, RANGES: tl.constexpr, DENSE: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """OUT = softmax(E) V for BM queries and BDV components of the values, by online softmax."""
    pid, ni, nv = tl.program_id(0), rows // BM, (DV + BDV - 1) // BDV
    n = (pid // (nv * ni)).to(tl.int64)
    b, h = n // H, n % H
    local, first = pid // nv % ni * BM + tl.arange(0, BM), pid % nv * BDV
    i = row0 + local
    V += b * svb + h // groups * svh
    E += n * rows * TKP + local[:, None] * TKP
    lo, hi = 0, Tk
    if RANGES:
        start = tl.load(START + b * srb + i, mask=i < Tq, other=0)
        stop = tl.load(STOP + b * srb + i, mask=i < Tq, other=0)
        lo = tl.min(tl.where(start < stop, start, Tk), 0) // BN * BN
        hi = tl.max(tl.where(start < stop, stop, 0), 0)
    acc = tl.zeros([BM, BDV], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    for m in range(lo, hi, BN):
        j = m + tl.arange(0, BN)
        allowed = _allowed(START, STOP, MASK, b, h, i, j, srb, smb, smh, Tq, Tk, RANGES, DENSE)
        s = tl.where(allowed, tl.load(E + j[None, :]), float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        level = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen no key yet
        p, rescale = tl.exp2(s - level[:, None]), tl.exp2(top - level)
        total = total * rescale + tl.sum(p, 1)
        if DROPOUT:
            p = tl.where(_keep(SEED, n, i, j, Tk, dropout), p, 0.0)
        v = _load_values(V, j, svt, _seen(allowed, j, Tk, RANGES or DENSE), first, DV, BDV)
        acc = tl.dot(p, v, acc * rescale[:, None], input_precision=PRECISION)
        top = new_top
    empty = total == 0.0
    share = tl.where(empty, 1.0, total)
    if DROPOUT:
        share = share * (1.0 - dropout)
    e = first + tl.arange(0, BDV)
    at = OUT + (n * Tq + i)[:, None] * DV + e[None, :]
    out = (acc / share[:, None]).to(OUT.dtype.element_ty)
    tl.store(at, out, mask=(i < Tq)[:, None] & (e < DV)[None, :])
    if first == 0:
        logs = tl.where(empty, float("inf"), top + tl.log2(total))
        tl.store(L + n * Tq + i, logs, mask=i < Tq)


@triton.jit
def _load_gradients(G, i, sgt, full, first, DV: tl.constexpr, BDV: tl.constexpr):
    """The output's gradient (queries, BDV); 0 for rows without keys, whose gradient may be NaN."""
    e = first + tl.arange(0, BDV)
    at = G + i.to(tl.int64)[:, None] * sgt + e[None, :]
    return tl.load(at, mask=full[:, None] & (e < DV)[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=RUNTIME)
def score_gradients(
    E, V, G, L, PRODUCTS, DS, ACTIVE, SEED, START, STOP, MASK,
    svb, svh, svt, sgb, sgh, sgt, srb, smb, smh, H, groups, Tq, Tk, row0, rows, TKP, dropout,
    DV: tl.constexpr, RANGES: tl.constexpr, DENSE: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """Gradients of the energies, DS (n, rows, TKP), and which tiles are not all 0.

    PRODUCTS is output · gradient of each row, the term that the softmax's backward pass subtracts.
    """
    pid, nj, ni = tl.program_id(0), TKP // TILE, rows // TILE
    n = (pid // (nj * ni)).to(tl.int64)
    b, h = n // H, n % H
    local, j = pid // nj % ni * TILE + tl.arange(0, TILE), pid % nj * TILE + tl.arange(0, TILE)
    i = row0 + local
    allowed = _allowed(START, STOP, MASK, b, h, i, j, srb, smb, smh, Tq, Tk, RANGES, DENSE)
    active = _any(allowed)
    ds = tl.zeros([TILE, TILE], tl.float32)
    if active:
        logs = tl.load(L + n * Tq + i, mask=i < Tq, other=float("inf"))
        full, seen = logs != float("inf"), _seen(allowed, j, Tk, RANGES or DENSE)
        values, grads = V + b * svb + h // groups * svh, G + b * sgb + h * sgh
        dp = tl.zeros([TILE, TILE], tl.float32)
        for first in range(0, DV, BDV):
            g = _load_gradients(grads, i, sgt, full, first, DV, BDV)
            v = _load_values(values, j, svt, seen, first, DV, BDV)
            dp = tl.dot(g, tl.trans(v), dp, input_precision=PRECISION)
        if DROPOUT:
            dp = tl.where(_keep(SEED, n, i, j, Tk, dropout), dp / (1.0 - dropout), 0.0)
        e = tl.load(E + n * rows * TKP + local[:, None] * TKP + j[None, :])
        products = tl.load(PRODUCTS + n * Tq + i, mask=full, other=0.0)
        ds = tl.where(allowed, tl.exp2(e - logs[:, None]) * (dp - products[:, None]), 0.0)
    tl.store(ACTIVE + pid, active.to(tl.int32))
    tl.store(DS + n * rows * TKP + local[:, None] * TKP + j[None, :], ds)


@triton.jit(do_not_specialize=RUNTIME)
def value_gradients(
    E, G, L, ACTIVE, DVALUES, SEED, START, STOP, MASK,
    sgb, sgh, sgt, srb, smb, smh, H, Tq, Tk, row0, rows, TKP, dropout,
    DV: tl.constexpr, RANGES: tl.constexpr, DENSE: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, ADD: tl.constexpr, BDV: tl.constexpr,
):  # fmt: skip
    """DVALUES (n, Tk, DV) = weightsᵀ G over the queries of the chunk; with ADD, added to what is there."""
    pid, nj, nv = tl.program_id(0), TKP // TILE, (DV + BDV - 1) // BDV
    n = (pid // (nj * nv)).to(tl.int64)
    b, h, block, first = n // H, n % H, pid // nv % nj, pid % nv * BDV
    j, e = block * TILE + tl.arange(0, TILE), first + tl.arange(0, BDV)
    G += b * sgb + h * sgh
    acc = tl.zeros([TILE, BDV], tl.float32)
    for m in range(0, rows, TILE):
        if tl.load(ACTIVE + (n * (rows // TILE) + m // TILE) * nj + block) != 0:
            local = m + tl.arange(0, TILE)
            i = row0 + local
            logs = tl.load(L + n * Tq + i, mask=i < Tq, other=float("inf"))
            allowed = _allowed(START, STOP, MASK, b, h, i, j, srb, smb, smh, Tq, Tk, RANGES, DENSE)
            s = tl.load(E + n * rows * TKP + local[:, None] * TKP + j[None, :])
            p = tl.where(allowed, tl.exp2(s - logs[:, None]), 0.0)
            if DROPOUT:
                p = tl.where(_keep(SEED, n, i, j, Tk, dropout), p / (1.0 - dropout), 0.0)
            g = _load_gradients(G, i, sgt, logs != float("inf"), first, DV, BDV)
            acc = tl.dot(tl.trans(p), g, acc, input_precision=PRECISION)
    at = DVALUES + (n * Tk + j)[:, None] * DV + e[None, :]
    inside = (j < Tk)[:, None] & (e < DV)[None, :]
    if ADD:
        acc += tl.load(at, mask=inside, other=0.0)
    tl.store(at, acc, mask=inside)


@triton.jit
def _pair_gradients(
    acc, accw, ex, e1, e2, s1, s2, WEIGHTS: tl.constexpr, CLAMP: tl.constexpr, ASM: tl.constexpr
):
    """Add s r (1 − r) to acc and s r to accw for two positions y, with one reciprocal."""
    p1, p2 = ex * e1[None, :] + 1.0, ex * e2[None, :] + 1.0
    if CLAMP:
        p1, p2 = tl.minimum(p1, CUT), tl.minimum(p2, CUT)
    r = _reciprocal(p1 * p2, ASM)
    r1, r2 = p2 * r, p1 * r
    acc += s1[:, None] * (r1 - r1 * r1)
    acc += s2[:, None] * (r2 - r2 * r2)
    if WEIGHTS:
        accw += s1[:, None] * r1
        accw += s2[:, None] * r2
    return acc, accw


@triton.jit
def _near_gradients(
    acc, accw, ex, EY, S, d, ssy,
    DP: tl.constexpr, BX: tl.constexpr, WEIGHTS: tl.constexpr, CLAMP: tl.constexpr, ASM: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Add Σ_y s r (1 − r) to acc and Σ_y s r to accw over TILE positions y. S points to the first four."""
    for y in tl.range(0, TILE, 4, num_stages=STAGES):
        s0, s1, s2, s3 = _split(tl.load(S + y * ssy), BX)
        e0 = tl.load(EY + y * DP + d, mask=d < DP, other=0.0)
        e1 = tl.load(EY + (y + 1) * DP + d, mask=d < DP, other=0.0)
        acc, accw = _pair_gradients(acc, accw, ex, e0, e1, s0, s1, WEIGHTS, CLAMP, ASM)
        e2 = tl.load(EY + (y + 2) * DP + d, mask=d < DP, other=0.0)
        e3 = tl.load(EY + (y + 3) * DP + d, mask=d < DP, other=0.0)
        acc, accw = _pair_gradients(acc, accw, ex, e2, e3, s2, s3, WEIGHTS, CLAMP, ASM)
    return acc, accw


@triton.jit
def _far_gradients(acc, accw, x, Y, S, d, first, TY, syt, ssy, D: tl.constexpr, WEIGHTS: tl.constexpr):
    """The same for any x and y. Where s is 0, x or y may be NaN: nobody may see them."""
    for y in range(TILE):
        row = first + y + tl.zeros_like(d)
        at = Y + row.to(tl.int64) * syt + d
        other = tl.load(at, mask=(d < D) & (row < TY), other=0.0).to(tl.float32)
        s = tl.load(S + y * ssy)[:, None]
        r = 1.0 / (1.0 + tl.exp(2.0 * (x + other[None, :])))
        acc += tl.where(s == 0.0, 0.0, s * (r - r * r))
        if WEIGHTS:
            accw += tl.where(s == 0.0, 0.0, s * r)
    return acc, accw


@triton.jit(do_not_specialize=RUNTIME)
def feature_gradients(
    EX, EY, X, Y, W, LX, LY, S, ACTIVE, DX, DW,
    sxb, sxh, sxt, syb, syh, syt, ssx, ssy, sax, say, H, gx, gy, x0, y0, TX, TY, XP, YP, TXP, TYP,
    D: tl.constexpr, DP: tl.constexpr, WEIGHTS: tl.constexpr, ADD: tl.constexpr, ASM: tl.constexpr,
    REST: tl.constexpr, BX: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DX (n, TX, D) = 4 w Σ_y s r (1 − r), for queries x and keys y or the reverse; DW: −2 Σ s r per block.

    Tiles of levels 0 and 1 or, with REST, the others, added to what is there. The launch covers XP positions
    x from x0 and YP positions y from y0; S has strides (XP · YP, ssx, ssy). gx and gy are the query heads per
    head of X and Y. No sum crosses threads: each holds its own positions and features.
    """
    pid, nx, nd = tl.program_id(0), XP // BX, (DP + BD - 1) // BD
    n = (pid // (nx * nd)).to(tl.int64)
    b, h, block = n // H, n % H, pid // nd % nx
    hx, hy = h // gx, h // gy
    mx, my = b * (H // gx) + hx, b * (H // gy) + hy
    lx = tl.load(LX + mx * (TXP // TILE) + (x0 + block * BX) // TILE)
    LY += my * (TYP // TILE) + y0 // TILE
    ACTIVE += n * (XP // TILE) * (YP // TILE) + block * BX // TILE * sax
    if REST:
        count = 0
        for m in range(YP // TILE):
            if tl.load(ACTIVE + m * say) != 0:
                count += (tl.maximum(lx, tl.load(LY + m)) >= 2).to(tl.int32)
        if count == 0:
            return
    local, d = block * BX + tl.arange(0, BX), pid % nd * BD + tl.arange(0, BD)
    t = x0 + local
    ex = tl.load(EX + (mx * TXP + t)[:, None] * DP + d[None, :], mask=(d < DP)[None, :], other=0.0)
    acc = tl.zeros([BX, BD], tl.float32)
    accw = tl.zeros([BX, BD], tl.float32)
    S += n * XP * YP
    four = S + local[:, None] * ssx + tl.arange(0, 4)[None, :] * ssy
    for m in range(0, YP, TILE):
        level = tl.maximum(lx, tl.load(LY + m // TILE))
        if (tl.load(ACTIVE + m // TILE * say) != 0) & ((level >= 2) == REST):
            rows, s = EY + (my * TYP + y0 + m) * DP, four + m * ssy
            if not REST:
                acc, accw = _near_gradients(
                    acc, accw, ex, rows, s, d, ssy, DP, BX, WEIGHTS, False, ASM, STAGES
                )
            elif level == 2:
                acc, accw = _near_gradients(
                    acc, accw, ex, rows, s, d, ssy, DP, BX, WEIGHTS, True, ASM, STAGES
                )
            else:
                at = X + b * sxb + hx * sxh + t.to(tl.int64)[:, None] * sxt + d[None, :]
                x = tl.load(at, mask=(t < TX)[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
                y, s1 = Y + b * syb + hy * syh, S + local * ssx + m * ssy
                acc, accw = _far_gradients(acc, accw, x, y, s1, d, y0 + m, TY, syt, ssy, D, WEIGHTS)
    w = tl.load(W + h * DP + d, mask=d < DP, other=0.0)
    acc = acc * (4.0 * w)[None, :]
    at, inside = DX + (n * TX + t)[:, None] * D + d[None, :], (t < TX)[:, None] & (d < D)[None, :]
    if ADD or REST:
        acc += tl.load(at, mask=inside, other=0.0)
    tl.store(at, acc, mask=inside)
    if WEIGHTS:
        sums, at = -2.0 * tl.sum(accw, 0), DW + (n * nx + block) * D + d
        if REST:
            sums += tl.load(at, mask=d < D, other=0.0)
        tl.store(at, sums, mask=d < D)
