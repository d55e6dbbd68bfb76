"""Triton code: softmax attention over a band of keys, low ≤ key − query ≤ high, forward and backward.

Each program takes a block of queries (or, for the gradients of keys and values, a block of keys) and reads only the keys
its band reaches. Blocks that lie inside the band whole are computed without a mask. Options: a number of keys per sequence
(padding), and a slope per head times the distance (ALiBi), in float32. Scores are kept in base 2.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl

# BIAS is 0 (none), 1 (slope · (key − query), all keys at or before the query) or 2 (−slope · |key − query|).
NUMBERS = ["H", "groups", "Tq", "Tk", "low", "high", "shift"]  # one compiled kernel serves all of them


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
def _forward_steps(
    acc, total, top, q, K, V, i, start, stop, last, sk, sv, shift, slope, scale, low, high,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for n in tl.range(start, stop, BN):
        j = n + tl.arange(0, BN)
        k = _load(K, j, sk, last, D, BLOCK_D, MASKED)
        s = tl.dot(q, tl.trans(k))
        # `of_row` is the part of the bias that all keys of a row share: it moves the row's maximum and nothing else.
        of_row = tl.zeros_like(top)
        if BIAS == 1:
            s = s * scale + (slope * tl.arange(0, BN).to(tl.float32))[None, :]
            of_row = slope * (n - i - shift).to(tl.float32)
        if BIAS == 2:
            s = s * scale - slope * tl.abs(j[None, :] - i[:, None] - shift).to(tl.float32)
        if MASKED:
            s = tl.where(_outside(j[None, :], i[:, None], low, high, last), float("-inf"), s)
        if BIAS == 0:
            new = tl.maximum(top, tl.max(s, 1) * scale)
        else:
            new = tl.maximum(top, tl.max(s, 1) + of_row)
        if MASKED:
            shown = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen nothing yet
        else:
            shown = new
        if BIAS == 0:
            p = tl.exp2(s * scale - shown[:, None])
        else:
            p = tl.exp2(s - (shown - of_row)[:, None])
        kept = tl.exp2(top - shown)
        total = total * kept + tl.sum(p, 1)
        v = _load(V, j, sv, last, DV, BLOCK_DV, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc * kept[:, None])
        top = new
    return acc, total, top


@triton.jit
def _reach(first, count, low, high, last, BLOCK: tl.constexpr):
    """What positions first … first+count−1 reach: start, then blocks inside the band of all of them from begin to end, stop.

    Nothing outside of start … stop is read: what nobody may see may hold NaN.
    """
    start = tl.maximum(first + low, 0)
    stop = tl.minimum(first + count + high, last)
    stop = tl.maximum(stop, start)
    whole = tl.maximum(first + count - 1 + low, start)
    begin = tl.minimum(start + (whole - start + BLOCK - 1) // BLOCK * BLOCK, stop)
    blocks = tl.maximum(tl.minimum(first + high + 1, last) - begin, 0) // BLOCK
    return start, begin, begin + blocks * BLOCK, stop


@triton.jit(do_not_specialize=NUMBERS)
def forward(
    Q, K, V, OUT, L, slopes, sinks, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt,
    H, groups, Tq, Tk, low, high, shift, scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BIAS: tl.constexpr, SINKS: tl.constexpr, PADDED: tl.constexpr, LOGS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block, bh = (
        tl.num_programs(0) - 1 - tl.program_id(0),
        tl.program_id(1),
    )  # of a causal mask, the longest rows first
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    kh = h // groups
    last = Tk
    if PADDED:
        last = tl.minimum(tl.maximum(tl.load(lengths + b), 0), Tk).to(tl.int32)
    slope = 0.0
    if BIAS != 0:
        slope = tl.load(slopes + h)
    Q, K, V = Q + b * sqb + h * sqh, K + b * skb + kh * skh, V + b * svb + kh * svh
    first = block * BM
    i = first + tl.arange(0, BM)
    q = _load(Q, i, sqt, Tq, D, BLOCK_D, True)
    acc = tl.zeros([BM, BLOCK_DV], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    start, begin, end, stop = _reach(first, tl.minimum(BM, Tq - first), low, high, last, BN)
    acc, total, top = _forward_steps(
        acc, total, top, q, K, V, i, start, begin, stop, skt, svt, shift, slope, scale, low, high,
        D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, True)  # fmt: skip
    acc, total, top = _forward_steps(
        acc, total, top, q, K, V, i, begin, end, stop, skt, svt, shift, slope, scale, low, high,
        D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, False)  # fmt: skip
    acc, total, top = _forward_steps(
        acc, total, top, q, K, V, i, end, stop, stop, skt, svt, shift, slope, scale, low, high,
        D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, True)  # fmt: skip
    if SINKS:  # one more key, without a value
        sink = tl.load(sinks + h)
        new = tl.maximum(top, sink)
        kept = tl.exp2(top - new)
        seen = total != 0.0  # a row with nothing to attend to gives zeros all the same
        total, acc, top = tl.where(seen, total * kept + tl.exp2(sink - new), 0.0), acc * kept[:, None], new
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
    """output · gradient for each query: the term that the softmax's backward pass subtracts."""
    bh, i = tl.program_id(1), tl.program_id(0) * BM + tl.arange(0, BM)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    o = _load(OUT + bh.to(tl.int64) * Tq * DV, i, DV, Tq, DV, BLOCK_DV, True).to(tl.float32)
    g = _load(G + b * sgb + h * sgh, i, sgt, Tq, DV, BLOCK_DV, True).to(tl.float32)
    tl.store(R + bh.to(tl.int64) * Tq + i, tl.sum(o * g, 1), mask=i < Tq)


@triton.jit
def _query_steps(
    dq, q, g, logs, rows, K, V, i, start, stop, last, sk, sv, shift, slope, scale, low, high,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for n in tl.range(start, stop, BN):
        j = n + tl.arange(0, BN)
        k = _load(K, j, sk, last, D, BLOCK_D, MASKED)
        v = _load(V, j, sv, last, DV, BLOCK_DV, MASKED)
        s = tl.dot(q, tl.trans(k)) * scale
        less = logs
        if BIAS == 1:
            s += (slope * tl.arange(0, BN).to(tl.float32))[None, :]
            less = logs - slope * (n - i - shift).to(tl.float32)
        if BIAS == 2:
            s -= slope * tl.abs(j[None, :] - i[:, None] - shift).to(tl.float32)
        p = tl.exp2(s - less[:, None])
        if MASKED:
            p = tl.where(_outside(j[None, :], i[:, None], low, high, last), 0.0, p)
        ds = p * (tl.dot(g, tl.trans(v)) - rows[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit(do_not_specialize=NUMBERS)
def backward_queries(
    Q, K, V, G, L, R, DQ, slopes, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, sgb, sgh, sgt,
    H, groups, Tq, Tk, low, high, shift, scale, energy_scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BIAS: tl.constexpr, PADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block, bh = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    kh = h // groups
    last = Tk
    if PADDED:
        last = tl.minimum(tl.maximum(tl.load(lengths + b), 0), Tk).to(tl.int32)
    slope = 0.0
    if BIAS != 0:
        slope = tl.load(slopes + h)
    K, V = K + b * skb + kh * skh, V + b * svb + kh * svh
    first = block * BM
    i = first + tl.arange(0, BM)
    q = _load(Q + b * sqb + h * sqh, i, sqt, Tq, D, BLOCK_D, True)
    g = _load(G + b * sgb + h * sgh, i, sgt, Tq, DV, BLOCK_DV, True)
    logs = tl.load(L + bh.to(tl.int64) * Tq + i, mask=i < Tq, other=float("inf"))
    rows = tl.load(R + bh.to(tl.int64) * Tq + i, mask=i < Tq, other=0.0)
    dq = tl.zeros([BM, BLOCK_D], tl.float32)
    start, begin, end, stop = _reach(first, tl.minimum(BM, Tq - first), low, high, last, BN)
    dq = _query_steps(dq, q, g, logs, rows, K, V, i, start, begin, stop, skt, svt, shift, slope, scale, low, high,
                      D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, True)  # fmt: skip
    dq = _query_steps(dq, q, g, logs, rows, K, V, i, begin, end, stop, skt, svt, shift, slope, scale, low, high,
                      D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, False)  # fmt: skip
    dq = _query_steps(dq, q, g, logs, rows, K, V, i, end, stop, stop, skt, svt, shift, slope, scale, low, high,
                      D, DV, BLOCK_D, BLOCK_DV, BN, BIAS, True)  # fmt: skip
    d = tl.arange(0, BLOCK_D)
    at = DQ + bh.to(tl.int64) * Tq * D + i[:, None] * D + d[None, :]
    tl.store(at, (dq * energy_scale).to(DQ.dtype.element_ty), mask=(i < Tq)[:, None] & (d < D)[None, :])


@triton.jit
def _key_steps(
    dk, dv, k, v, Q, G, L, R, first, start, stop, last, sq, sg, shift, slope, scale, low, high,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    j = first + tl.arange(0, BN)
    for m in tl.range(start, stop, BM):
        i = m + tl.arange(0, BM)
        q = _load(Q, i, sq, last, D, BLOCK_D, MASKED)
        g = _load(G, i, sg, last, DV, BLOCK_DV, MASKED)
        if MASKED:
            logs = tl.load(L + i, mask=i < last, other=float("inf"))
            rows = tl.load(R + i, mask=i < last, other=0.0)
        else:
            logs, rows = tl.load(L + i), tl.load(R + i)
        # Transposed, (keys, queries): what is added up for keys is then a plain product.
        s = tl.dot(k, tl.trans(q)) * scale
        less = logs
        if BIAS == 1:
            s += (slope * tl.arange(0, BN).to(tl.float32))[:, None]
            less = logs - slope * (first - i - shift).to(tl.float32)
        if BIAS == 2:
            s -= slope * tl.abs(j[:, None] - i[None, :] - shift).to(tl.float32)
        p = tl.exp2(s - less[None, :])
        if MASKED:
            p = tl.where(
                _outside(j[:, None], i[None, :], low, high, first + BN) | (i >= last)[None, :], 0.0, p
            )
        dv = tl.dot(p.to(g.dtype), g, dv)
        ds = p * (tl.dot(v, tl.trans(g)) - rows[None, :])
        if MASKED:
            ds = tl.where(p == 0.0, 0.0, ds)  # a key that nobody sees may hold NaN
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=NUMBERS)
def backward_keys(
    Q, K, V, G, L, R, DK, DV_, slopes, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt, sgb, sgh, sgt,
    H, groups, Tq, Tk, low, high, shift, scale, energy_scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BIAS: tl.constexpr, PADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block, bh = tl.program_id(0), tl.program_id(1)
    Hk = H // groups
    b, kh = (bh // Hk).to(tl.int64), (bh % Hk).to(tl.int64)
    last = Tk
    if PADDED:
        last = tl.minimum(tl.maximum(tl.load(lengths + b), 0), Tk).to(tl.int32)
    first = block * BN
    j = first + tl.arange(0, BN)
    k = _load(K + b * skb + kh * skh, j, skt, last, D, BLOCK_D, True)
    v = _load(V + b * svb + kh * svh, j, svt, last, DV, BLOCK_DV, True)
    dk = tl.zeros([BN, BLOCK_D], tl.float32)
    dv = tl.zeros([BN, BLOCK_DV], tl.float32)
    start, begin, end, stop = _reach(first, tl.minimum(BN, last - first), -high, -low, Tq, BM)
    if first >= last:  # nobody sees padding
        begin, end, stop = start, start, start
    for g in range(groups):
        h = kh * groups + g
        slope = 0.0
        if BIAS != 0:
            slope = tl.load(slopes + h)
        Qh, Gh, row = Q + b * sqb + h * sqh, G + b * sgb + h * sgh, (b * H + h) * Tq
        dk, dv = _key_steps(dk, dv, k, v, Qh, Gh, L + row, R + row, first, start, begin, stop, sqt, sgt,
                            shift, slope, scale, low, high, D, DV, BLOCK_D, BLOCK_DV, BM, BN, BIAS, True)  # fmt: skip
        dk, dv = _key_steps(dk, dv, k, v, Qh, Gh, L + row, R + row, first, begin, end, stop, sqt, sgt,
                            shift, slope, scale, low, high, D, DV, BLOCK_D, BLOCK_DV, BM, BN, BIAS, False)  # fmt: skip
        dk, dv = _key_steps(dk, dv, k, v, Qh, Gh, L + row, R + row, first, end, stop, stop, sqt, sgt,
                            shift, slope, scale, low, high, D, DV, BLOCK_D, BLOCK_DV, BM, BN, BIAS, True)  # fmt: skip
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    seen = (j < last)[:, None]
    row = bh.to(tl.int64) * Tk
    at = DK + row * D + j[:, None] * D + d[None, :]
    tl.store(
        at,
        tl.where(seen, dk * energy_scale, 0.0).to(DK.dtype.element_ty),
        mask=(j < Tk)[:, None] & (d < D)[None, :],
    )
    at = DV_ + row * DV + j[:, None] * DV + e[None, :]
    tl.store(at, tl.where(seen, dv, 0.0).to(DV_.dtype.element_ty), mask=(j < Tk)[:, None] & (e < DV)[None, :])


@triton.jit
def _sum_steps(
    sums, k, Q, L, first, start, stop, last, sq, shift, slope, scale, low, high,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BIAS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    j = first + tl.arange(0, BN)
    for m in tl.range(start, stop, BM):
        i = m + tl.arange(0, BM)
        q = _load(Q, i, sq, last, D, BLOCK_D, MASKED)
        if MASKED:
            logs = tl.load(L + i, mask=i < last, other=float("inf"))
        else:
            logs = tl.load(L + i)
        s = tl.dot(k, tl.trans(q)) * scale
        if BIAS == 1:
            s += (slope * tl.arange(0, BN).to(tl.float32))[:, None]
            logs -= slope * (first - i - shift).to(tl.float32)
        if BIAS == 2:
            s -= slope * tl.abs(j[:, None] - i[None, :] - shift).to(tl.float32)
        p = tl.exp2(s - logs[None, :])
        if MASKED:
            p = tl.where(
                _outside(j[:, None], i[None, :], low, high, first + BN) | (i >= last)[None, :], 0.0, p
            )
        sums += tl.sum(p, 1)
    return sums


@triton.jit(do_not_specialize=NUMBERS)
def column_sums(
    Q, K, L, SUMS, slopes, lengths, sqb, sqh, sqt, skb, skh, skt, H, groups, Tq, Tk, low, high, shift, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BIAS: tl.constexpr, PADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The weight each key gets from all queries together, given the log-sum of each row."""
    block, bh = tl.program_id(0), tl.program_id(1)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    last = Tk
    if PADDED:
        last = tl.minimum(tl.maximum(tl.load(lengths + b), 0), Tk).to(tl.int32)
    slope = 0.0
    if BIAS != 0:
        slope = tl.load(slopes + h)
    first = block * BN
    j = first + tl.arange(0, BN)
    k = _load(K + b * skb + (h // groups) * skh, j, skt, last, D, BLOCK_D, True)
    Q, L = Q + b * sqb + h * sqh, L + bh.to(tl.int64) * Tq
    sums = tl.zeros([BN], tl.float32)
    start, begin, end, stop = _reach(first, tl.minimum(BN, last - first), -high, -low, Tq, BM)
    if first >= last:
        begin, end, stop = start, start, start
    sums = _sum_steps(sums, k, Q, L, first, start, begin, stop, sqt, shift, slope, scale, low, high,
                      D, BLOCK_D, BM, BN, BIAS, True)  # fmt: skip
    sums = _sum_steps(sums, k, Q, L, first, begin, end, stop, sqt, shift, slope, scale, low, high,
                      D, BLOCK_D, BM, BN, BIAS, False)  # fmt: skip
    sums = _sum_steps(sums, k, Q, L, first, end, stop, stop, sqt, shift, slope, scale, low, high,
                      D, BLOCK_D, BM, BN, BIAS, True)  # fmt: skip
    tl.store(SUMS + bh.to(tl.int64) * Tk + j, tl.where(j < last, sums, 0.0), mask=j < Tk)
