"""Triton kernels: softmax or sigmoid attention over a band of keys, low ≤ key − query ≤ high, and gradients.

Each program handles a block of queries (for the gradients of keys and values, a block of keys) and reads only
the keys in their band. Blocks that are entirely inside the band are computed without a mask. Options: a
number of keys per sequence (padding), and ALiBi, a slope per head times the distance, in float32. Scores are
in base 2. SIGMOID: a weight is σ(score) and needs no statistics of its row; L and R are then zeros.

Names: i, j are query and key positions; sqb, sqh, sqt are the batch, head and time strides of Q (skb, … of
K); L holds log2 Σ exp2 of each row, R output · gradient of each row (`products`); `last` is the end of the
keys (or queries) that exist.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl

# BIAS is 0 (none), 1 (slope · (key − query), all keys at or before the query) or 2 (−slope · |key − query|).
RUNTIME = ["H", "groups", "Tq", "Tk", "low", "high", "shift"]  # not compiled in: one kernel serves all values


@triton.jit
def _load(base, rows, stride, last, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """Rows of a (time, dim) matrix as (rows, BLOCK_D); zeros outside."""
    d = tl.arange(0, BLOCK_D)
    at = base + rows[:, None] * stride + d[None, :]
    if MASKED:
        if D == BLOCK_D:
            return tl.load(at, mask=(rows < last)[:, None], other=0.0)
        return tl.load(at, mask=(rows < last)[:, None] & (d < D)[None, :], other=0.0)
    if D == BLOCK_D:
        return tl.load(at)
    return tl.load(at, mask=(d < D)[None, :], other=0.0)


@triton.jit
def _outside(j, i, low, high, last):
    distance = j - i
    return (distance < low) | (distance > high) | (j >= last)


@triton.jit
def _last_key(lengths, b, Tk, PADDED: tl.constexpr):
    """The number of keys of sequence b."""
    last = Tk
    if PADDED:
        last = tl.minimum(tl.maximum(tl.load(lengths + b), 0), Tk).to(tl.int32)
    return last


@triton.jit
def _slope(slopes, h, BIAS: tl.constexpr):
    slope = 0.0
    if BIAS != 0:
        slope = tl.load(slopes + h)
    return slope


@triton.jit
def _band_ranges(first, count, low, high, last, BLOCK: tl.constexpr):
    """Bounds of the three ranges that positions first … first+count−1 see: edge, inside, edge.

    Blocks of the middle range are inside the band for all positions and need no mask. Nothing outside these
    ranges is read: positions that nobody sees may hold NaN.
    """
    start = tl.maximum(first + low, 0)
    stop = tl.minimum(first + count + high, last)
    stop = tl.maximum(stop, start)
    common = tl.maximum(first + count - 1 + low, start)  # the first key that all positions see
    begin = tl.minimum(start + (common - start + BLOCK - 1) // BLOCK * BLOCK, stop)
    blocks = tl.maximum(tl.minimum(first + high + 1, last) - begin, 0) // BLOCK
    return start, begin, begin + blocks * BLOCK, stop


@triton.jit
def _weights(x, SIGMOID: tl.constexpr):
    """exp2(x) for scores minus log2 Σ exp2 of their row; with SIGMOID, σ of scores in base 2."""
    if SIGMOID:
        return 1.0 / (1.0 + tl.exp2(-x))
    return tl.exp2(x)


@triton.jit
def _sigmoid_steps(
    acc, q, K, V, i, start, stop, last, sk, sv, shift, slope, scale, low, high,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add Σ σ(s) v over keys start … stop to acc."""
    for n in tl.range(start, stop, BN):
        j = n + tl.arange(0, BN)
        k = _load(K, j, sk, last, D, BLOCK_D, MASKED)
        s = tl.dot(q, tl.trans(k)) * scale
        if BIAS != 0:
            s -= slope * tl.abs(j[None, :] - i[:, None] - shift).to(tl.float32)
        p = _weights(s, True)
        if MASKED:
            p = tl.where(_outside(j[None, :], i[:, None], low, high, last), 0.0, p)
        v = _load(V, j, sv, last, DV, BLOCK_DV, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc)
    return acc


@triton.jit
def _forward_steps(
    acc, total, top, q, K, V, i, start, stop, last, sk, sv, shift, slope, scale, low, high,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Online softmax over keys start … stop: acc = Σ exp2(s − top) v, total = Σ exp2(s − top)."""
    for n in tl.range(start, stop, BN):
        j = n + tl.arange(0, BN)
        k = _load(K, j, sk, last, D, BLOCK_D, MASKED)
        s = tl.dot(q, tl.trans(k))
        # The part of the bias that is the same for all keys of a row; it only moves the row's maximum.
        row_bias = tl.zeros_like(top)
        if BIAS == 1:
            s = s * scale + (slope * tl.arange(0, BN).to(tl.float32))[None, :]
            row_bias = slope * (n - i - shift).to(tl.float32)
        if BIAS == 2:
            s = s * scale - slope * tl.abs(j[None, :] - i[:, None] - shift).to(tl.float32)
        if MASKED:
            s = tl.where(_outside(j[None, :], i[:, None], low, high, last), float("-inf"), s)
        if BIAS == 0:
            new_top = tl.maximum(top, tl.max(s, 1) * scale)
        else:
            new_top = tl.maximum(top, tl.max(s, 1) + row_bias)
        if MASKED:
            level = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen no key yet
        else:
            level = new_top
        if BIAS == 0:
            p = tl.exp2(s * scale - level[:, None])
        else:
            p = tl.exp2(s - (level - row_bias)[:, None])
        rescale = tl.exp2(top - level)
        total = total * rescale + tl.sum(p, 1)
        v = _load(V, j, sv, last, DV, BLOCK_DV, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        top = new_top
    return acc, total, top


@triton.jit(do_not_specialize=RUNTIME)
def forward(
    Q, K, V, OUT, L, slopes, sinks, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt,
    H, groups, Tq, Tk, low, high, shift, scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BIAS: tl.constexpr,
    SIGMOID: tl.constexpr, SINKS: tl.constexpr, PADDED: tl.constexpr, LOGS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # with a causal mask, the longest rows first
    bh = tl.program_id(1)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    kh = h // groups
    last, slope = _last_key(lengths, b, Tk, PADDED), _slope(slopes, h, BIAS)
    Q, K, V = Q + b * sqb + h * sqh, K + b * skb + kh * skh, V + b * svb + kh * svh
    first = block * BM
    i = first + tl.arange(0, BM)
    q = _load(Q, i, sqt, Tq, D, BLOCK_D, True)
    acc = tl.zeros([BM, BLOCK_DV], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    bounds = _band_ranges(first, tl.minimum(BM, Tq - first), low, high, last, BN)
    for span in tl.static_range(3):
        if SIGMOID:  # total stays 0, so nothing is divided below
            acc = _sigmoid_steps(
                acc, q, K, V, i, bounds[span], bounds[span + 1], bounds[3], skt, svt,
                shift, slope, scale, low, high, D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, span != 1)  # fmt: skip
        else:
            acc, total, top = _forward_steps(
                acc, total, top, q, K, V, i, bounds[span], bounds[span + 1], bounds[3], skt, svt,
                shift, slope, scale, low, high, D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, span != 1)  # fmt: skip
    if SINKS:  # one more key, without a value
        sink = tl.load(sinks + h)
        new_top = tl.maximum(top, sink)
        rescale = tl.exp2(top - new_top)
        has_keys = total != 0.0  # a row that sees no key gives zeros also with a sink
        total = tl.where(has_keys, total * rescale + tl.exp2(sink - new_top), 0.0)
        acc, top = acc * rescale[:, None], new_top
    empty = total == 0.0
    acc = acc / tl.where(empty, 1.0, total)[:, None]
    d = tl.arange(0, BLOCK_DV)
    row = bh.to(tl.int64) * Tq
    tl.store(
        OUT + row * DV + i[:, None] * DV + d[None, :],
        acc.to(OUT.dtype.element_ty),
        mask=(i < Tq)[:, None] & (d < DV)[None, :],
    )
    if LOGS:  # +∞ for an empty row, so that its weights are 0 in the backward pass
        tl.store(L + row + i, tl.where(empty, float("inf"), top + tl.log2(total)), mask=i < Tq)


@triton.jit(do_not_specialize=["H", "Tq"])
def row_products(OUT, G, R, sgb, sgh, sgt, H, Tq, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BM: tl.constexpr):
    """R = output · gradient for each query: the term that the softmax's backward pass subtracts."""
    bh, i = tl.program_id(1), tl.program_id(0) * BM + tl.arange(0, BM)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    o = _load(OUT + bh.to(tl.int64) * Tq * DV, i, DV, Tq, DV, BLOCK_DV, True).to(tl.float32)
    g = _load(G + b * sgb + h * sgh, i, sgt, Tq, DV, BLOCK_DV, True).to(tl.float32)
    tl.store(R + bh.to(tl.int64) * Tq + i, tl.sum(o * g, 1), mask=i < Tq)


@triton.jit
def _query_steps(
    dq, q, g, logs, products, K, V, i, start, stop, last, sk, sv, shift, slope, scale, low, high,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, SIGMOID: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dq the gradient through keys start … stop."""
    for n in tl.range(start, stop, BN):
        j = n + tl.arange(0, BN)
        k = _load(K, j, sk, last, D, BLOCK_D, MASKED)
        v = _load(V, j, sv, last, DV, BLOCK_DV, MASKED)
        s = tl.dot(q, tl.trans(k)) * scale
        row_logs = logs
        if BIAS == 1:
            s += (slope * tl.arange(0, BN).to(tl.float32))[None, :]
            row_logs = logs - slope * (n - i - shift).to(tl.float32)
        if BIAS == 2:
            s -= slope * tl.abs(j[None, :] - i[:, None] - shift).to(tl.float32)
        p = _weights(s - row_logs[:, None], SIGMOID)
        if MASKED:
            p = tl.where(_outside(j[None, :], i[:, None], low, high, last), 0.0, p)
        ds = p * (tl.dot(g, tl.trans(v)) - products[:, None])
        if SIGMOID:
            ds *= 1.0 - p
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit(do_not_specialize=RUNTIME)
def backward_queries(
    Q, K, V, G, L, R, DQ, slopes, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, sgb, sgh, sgt,
    H, groups, Tq, Tk, low, high, shift, scale, energy_scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BIAS: tl.constexpr, SIGMOID: tl.constexpr, PADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block, bh = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    kh = h // groups
    last, slope = _last_key(lengths, b, Tk, PADDED), _slope(slopes, h, BIAS)
    K, V = K + b * skb + kh * skh, V + b * svb + kh * svh
    first = block * BM
    i = first + tl.arange(0, BM)
    q = _load(Q + b * sqb + h * sqh, i, sqt, Tq, D, BLOCK_D, True)
    g = _load(G + b * sgb + h * sgh, i, sgt, Tq, DV, BLOCK_DV, True)
    logs = tl.load(L + bh.to(tl.int64) * Tq + i, mask=i < Tq, other=float("inf"))
    products = tl.load(R + bh.to(tl.int64) * Tq + i, mask=i < Tq, other=0.0)
    dq = tl.zeros([BM, BLOCK_D], tl.float32)
    bounds = _band_ranges(first, tl.minimum(BM, Tq - first), low, high, last, BN)
    for span in tl.static_range(3):
        dq = _query_steps(
            dq, q, g, logs, products, K, V, i, bounds[span], bounds[span + 1], bounds[3], skt, svt,
            shift, slope, scale, low, high, D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, SIGMOID, span != 1,
        )  # fmt: skip
    d = tl.arange(0, BLOCK_D)
    at = DQ + bh.to(tl.int64) * Tq * D + i[:, None] * D + d[None, :]
    tl.store(at, (dq * energy_scale).to(DQ.dtype.element_ty), mask=(i < Tq)[:, None] & (d < D)[None, :])


@triton.jit
def _load_rows(X, i, last, other, MASKED: tl.constexpr):
    """One number per query."""
    if MASKED:
        return tl.load(X + i, mask=i < last, other=other)
    return tl.load(X + i)


@triton.jit
def _transposed_weights(
    k, q, logs, i, j, first, last, shift, slope, scale, low, high,
    BN: tl.constexpr, BIAS: tl.constexpr, SIGMOID: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Weights as (keys, queries): sums over queries are then plain matrix products."""
    s = tl.dot(k, tl.trans(q)) * scale
    row_logs = logs
    if BIAS == 1:
        s += (slope * tl.arange(0, BN).to(tl.float32))[:, None]
        row_logs = logs - slope * (first - i - shift).to(tl.float32)
    if BIAS == 2:
        s -= slope * tl.abs(j[:, None] - i[None, :] - shift).to(tl.float32)
    p = _weights(s - row_logs[None, :], SIGMOID)
    if MASKED:
        hidden = _outside(j[:, None], i[None, :], low, high, first + BN) | (i >= last)[None, :]
        p = tl.where(hidden, 0.0, p)
    return p


@triton.jit
def _key_steps(
    dk, dv, k, v, Q, G, L, R, first, start, stop, last, sq, sg, shift, slope, scale, low, high,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BIAS: tl.constexpr, SIGMOID: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dk and dv the gradient through queries start … stop."""
    j = first + tl.arange(0, BN)
    for m in tl.range(start, stop, BM):
        i = m + tl.arange(0, BM)
        q = _load(Q, i, sq, last, D, BLOCK_D, MASKED)
        g = _load(G, i, sg, last, DV, BLOCK_DV, MASKED)
        logs = _load_rows(L, i, last, float("inf"), MASKED)
        products = _load_rows(R, i, last, 0.0, MASKED)
        p = _transposed_weights(
            k, q, logs, i, j, first, last, shift, slope, scale, low, high, BN, BIAS, SIGMOID, MASKED,
        )  # fmt: skip
        dv = tl.dot(p.to(g.dtype), g, dv)
        ds = p * (tl.dot(v, tl.trans(g)) - products[None, :])
        if SIGMOID:
            ds *= 1.0 - p
        if MASKED:
            ds = tl.where(p == 0.0, 0.0, ds)  # a key that nobody sees may hold NaN
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=RUNTIME)
def backward_keys(
    Q, K, V, G, L, R, DK, DV_, slopes, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, sgb, sgh, sgt,
    H, groups, Tq, Tk, low, high, shift, scale, energy_scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BIAS: tl.constexpr, SIGMOID: tl.constexpr, PADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block, bh = tl.program_id(0), tl.program_id(1)
    Hk = H // groups
    b, kh = (bh // Hk).to(tl.int64), (bh % Hk).to(tl.int64)
    last = _last_key(lengths, b, Tk, PADDED)
    first = block * BN
    j = first + tl.arange(0, BN)
    k = _load(K + b * skb + kh * skh, j, skt, last, D, BLOCK_D, True)
    v = _load(V + b * svb + kh * svh, j, svt, last, DV, BLOCK_DV, True)
    dk = tl.zeros([BN, BLOCK_D], tl.float32)
    dv = tl.zeros([BN, BLOCK_DV], tl.float32)
    start, begin, end, stop = _band_ranges(first, tl.minimum(BN, last - first), -high, -low, Tq, BM)
    if first >= last:  # padding: no query sees it
        begin, end, stop = start, start, start
    bounds = (start, begin, end, stop)
    for g in range(groups):
        h = kh * groups + g
        slope = _slope(slopes, h, BIAS)
        Qh, Gh, row = Q + b * sqb + h * sqh, G + b * sgb + h * sgh, (b * H + h) * Tq
        for span in tl.static_range(3):
            dk, dv = _key_steps(
                dk, dv, k, v, Qh, Gh, L + row, R + row, first, bounds[span], bounds[span + 1], stop, sqt,
                sgt, shift, slope, scale, low, high, D, DV, BLOCK_D, BLOCK_DV, BM, BN, BIAS, SIGMOID,
                span != 1,
            )  # fmt: skip
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    exists = (j < last)[:, None]
    row = bh.to(tl.int64) * Tk
    at = DK + row * D + j[:, None] * D + d[None, :]
    dk = tl.where(exists, dk * energy_scale, 0.0).to(DK.dtype.element_ty)
    tl.store(at, dk, mask=(j < Tk)[:, None] & (d < D)[None, :])
    at = DV_ + row * DV + j[:, None] * DV + e[None, :]
    dv = tl.where(exists, dv, 0.0).to(DV_.dtype.element_ty)
    tl.store(at, dv, mask=(j < Tk)[:, None] & (e < DV)[None, :])


@triton.jit
def _sum_steps(
    sums, k, Q, L, first, start, stop, last, sq, shift, slope, scale, low, high,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BIAS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add to the sums the weights of queries start … stop."""
    j = first + tl.arange(0, BN)
    for m in tl.range(start, stop, BM):
        i = m + tl.arange(0, BM)
        q = _load(Q, i, sq, last, D, BLOCK_D, MASKED)
        logs = _load_rows(L, i, last, float("inf"), MASKED)
        p = _transposed_weights(
            k, q, logs, i, j, first, last, shift, slope, scale, low, high, BN, BIAS, False, MASKED,
        )  # fmt: skip
        sums += tl.sum(p, 1)
    return sums


@triton.jit(do_not_specialize=RUNTIME)
def column_sums(
    Q, K, L, SUMS, slopes, lengths, sqb, sqh, sqt, skb, skh, skt,
    H, groups, Tq, Tk, low, high, shift, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BIAS: tl.constexpr, PADDED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The total weight that each key gets from all queries, given log2 Σ exp2 of each row."""
    block, bh = tl.program_id(0), tl.program_id(1)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    last, slope = _last_key(lengths, b, Tk, PADDED), _slope(slopes, h, BIAS)
    first = block * BN
    j = first + tl.arange(0, BN)
    k = _load(K + b * skb + (h // groups) * skh, j, skt, last, D, BLOCK_D, True)
    Q, L = Q + b * sqb + h * sqh, L + bh.to(tl.int64) * Tq
    sums = tl.zeros([BN], tl.float32)
    start, begin, end, stop = _band_ranges(first, tl.minimum(BN, last - first), -high, -low, Tq, BM)
    if first >= last:  # padding: no query sees it
        begin, end, stop = start, start, start
    bounds = (start, begin, end, stop)
    for span in tl.static_range(3):
        sums = _sum_steps(
            sums, k, Q, L, first, bounds[span], bounds[span + 1], stop, sqt,
            shift, slope, scale, low, high, D, BLOCK_D, BM, BN, BIAS, span != 1)  # fmt: skip
    tl.store(SUMS + bh.to(tl.int64) * Tk + j, tl.where(j < last, sums, 0.0), mask=j < Tk)
