"""Triton kernels: few queries against many cached keys (flash-decoding), without gradients.

A program has one sequence, one key head and one part of its keys. The queries of all heads that share the key
head form one tile, so that each key and value is read once. `cache_forward` writes the output, or with SPLIT
the output and log2 Σ exp2 of each part; `cache_merge` then combines the parts.

Names: R is the number of queries per key head (query heads per key head × Tq), row r of a tile is query
r % Tq of head r // Tq, so rows follow each other in the output; low ≤ key − query ≤ high is the band that the
mask allows; sqb, sqh, sqt are the batch, head and time strides of Q (skb, … of K); scores are in base 2.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false
import triton
import triton.language as tl

# Not compiled in: one kernel serves all values.
RUNTIME = ["Hk", "R", "Tq", "Tk", "low", "high", "splits"]


@triton.jit
def _load(base, offsets, seen, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of a (time, dim) matrix as (rows, BLOCK_D); zeros where `seen` is false."""
    d = tl.arange(0, BLOCK_D)
    mask = seen[:, None] if D == BLOCK_D else seen[:, None] & (d < D)[None, :]
    return tl.load(base + offsets[:, None] + d[None, :], mask=mask, other=0.0)


@triton.jit
def _part_of_keys(lengths, b, part, Tq, Tk, low, high, splits, PADDED: tl.constexpr, BN: tl.constexpr):
    """First and last + 1 of this part of the keys that any query of sequence b sees; parts are alike."""
    last = Tk
    if PADDED:
        last = tl.minimum(tl.load(lengths + b), Tk).to(tl.int32)
    first, last = tl.maximum(low, 0), tl.minimum(last, Tq + high)
    count = (tl.maximum(last - first, 0) + splits - 1) // splits
    count = (count + BN - 1) // BN * BN
    start = first + part * count
    return start, tl.minimum(start + count, last)


@triton.jit(do_not_specialize=RUNTIME)
def cache_forward(
    Q, K, V, OUT, lengths,
    sqb, sqh, sqt, skb, skh, skt, svb, svh, svt,
    Hk, R, Tq, Tk, low, high, splits, scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr, BAND: tl.constexpr, SPLIT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Grid: (batch × key heads, splits). OUT: (batch, heads, Tq, DV).

    With SPLIT, OUT is float32: (batch × key heads, splits, R, DV), then (batch × key heads, splits, R) logs,
    −∞ where a part has no key that the query sees.
    """
    bh, part = tl.program_id(0), tl.program_id(1)
    b, h = (bh // Hk).to(tl.int64), (bh % Hk).to(tl.int64)
    start, stop = _part_of_keys(lengths, b, part, Tq, Tk, low, high, splits, PADDED, BN)
    r, j = tl.arange(0, ROWS), tl.arange(0, BN)
    exists, i = r < R, r % Tq
    head = h * (R // Tq) + r // Tq
    q = _load(Q + b * sqb, head * sqh + i * sqt, exists, D, BLOCK_D)
    keys = K + b * skb + h * skh + start.to(tl.int64) * skt
    values = V + b * svb + h * svh + start.to(tl.int64) * svt
    top = tl.full([ROWS], float("-inf"), tl.float32)
    sums = tl.zeros([ROWS, BN], tl.float32)  # added up at the end: a sum in the loop makes warps wait
    acc = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    for n in tl.range(start, stop, BN):
        seen = n + j < stop  # other keys may be NaN
        k = _load(keys, j * skt, seen, D, BLOCK_D)
        s = tl.dot(q, tl.trans(k)) * scale
        allowed = seen[None, :]
        if BAND:
            distance = (n + j)[None, :] - i[:, None]
            allowed = allowed & (distance >= low) & (distance <= high)
        s = tl.where(allowed, s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        level = tl.where(new_top == float("-inf"), 0.0, new_top)  # no key seen yet
        p, rescale = tl.exp2(s - level[:, None]), tl.exp2(top - level)
        sums = sums * rescale[:, None] + p
        v = _load(values, j * svt, seen, DV, BLOCK_DV)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        top = new_top
        keys += BN * skt
        values += BN * svt
    total = tl.sum(sums, 1)
    empty = total == 0.0
    out = acc / tl.where(empty, 1.0, total)[:, None]
    rows = (bh.to(tl.int64) * splits + part) * R + r
    e = tl.arange(0, BLOCK_DV)
    at, mask = OUT + rows[:, None] * DV + e[None, :], exists[:, None] & (e < DV)[None, :]
    tl.store(at, out.to(OUT.dtype.element_ty), mask=mask)
    if SPLIT:
        logs = OUT + tl.num_programs(0).to(tl.int64) * splits * R * DV
        log = tl.where(empty, float("-inf"), top + tl.log2(tl.where(empty, 1.0, total)))
        tl.store(logs + rows, log, mask=exists)


@triton.jit(do_not_specialize=RUNTIME)
def cache_merge(OUT, PARTS, R, splits, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BN: tl.constexpr):
    """OUT (rows, DV) of the parts that `cache_forward` wrote; a program has one row, BN parts at a time."""
    row = tl.program_id(0).to(tl.int64)
    logs = PARTS + tl.num_programs(0).to(tl.int64) * splits * DV
    first = row // R * splits * R + row % R  # part 0 of this row
    e = tl.arange(0, BLOCK_DV)
    acc = tl.zeros([BLOCK_DV], tl.float32)
    total, top = 0.0, float("-inf")
    for n in range(0, splits, BN):
        part = n + tl.arange(0, BN)
        at = first + part * R
        log = tl.load(logs + at, mask=part < splits, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(log, 0))
        level = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight, rescale = tl.exp2(log - level), tl.exp2(top - level)
        x = tl.load(PARTS + at[:, None] * DV + e[None, :],
                    mask=(part < splits)[:, None] & (e < DV)[None, :], other=0.0)  # fmt: skip
        acc = acc * rescale + tl.sum(weight[:, None] * x, 0)
        total = total * rescale + tl.sum(weight, 0)
        top = new_top
    out = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(OUT + row * DV + e, out.to(OUT.dtype.element_ty), mask=e < DV)
