"""Triton kernel of a beam search step: choose the candidates that end or continue, and update the buffers.

A program handles one sentence. Candidates are the K best tokens of each of its WIDTH rows (hypotheses). No
sort is needed: the rank of a candidate is the number of candidates before it. `device_beam.extend` defines
the result.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl


@triton.jit
def _precedes(x, i, y, j):
    """True if candidate i with score x is before candidate j with score y in a stable descending sort, where
    NaN is the largest score.
    """
    larger = (x > y) | ((x != x) & (y == y))
    smaller = (y > x) | ((y != y) & (x == x))
    return larger | ((i < j) & (smaller == 0))


@triton.jit
def _count_before(
    total, i, SCORE, LOG_P, BEST, end, WIDTH: tl.constexpr, K: tl.constexpr, COLS: tl.constexpr
):
    """Count the candidates before candidate i with score `total`: all, those that end, those that continue.

    SCORE (WIDTH), LOG_P and BEST (WIDTH, K) belong to one sentence. A candidate with a score of −inf or NaN
    neither ends nor continues.
    """
    c = tl.arange(0, COLS)  # K padded to a power of two
    inside = c < K
    rank = tl.zeros_like(i)
    ends_before = tl.zeros_like(i)
    continued_before = tl.zeros_like(i)
    for row in range(WIDTH):
        log_p = tl.load(LOG_P + row * K + c, mask=inside, other=float("-inf")).to(tl.float64)
        other = tl.load(SCORE + row) + log_p
        is_end = tl.load(BEST + row * K + c, mask=inside, other=0) == end
        possible = other > float("-inf")
        before = _precedes(other[None, :], (row * K + c)[None, :], total[:, None], i[:, None])
        before = (before & inside[None, :]).to(tl.int32)
        rank += tl.sum(before, 1)
        ends_before += tl.sum(before * (possible & is_end).to(tl.int32)[None, :], 1)
        continued_before += tl.sum(before * (possible & (is_end == 0)).to(tl.int32)[None, :], 1)
    return rank, ends_before, continued_before


@triton.jit
def _reorder_past(PAST, parent, w, position, capacity, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr):
    """Replace row w of PAST (WIDTH, capacity) by row `parent`, up to `position`; later columns are all 0."""
    for start in range(0, position + 1, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        inside = (w < WIDTH)[:, None] & (t <= position)[None, :]
        past = tl.load(PAST + parent[:, None] * capacity + t[None, :], mask=inside, other=0)
        tl.debug_barrier()  # another thread may store where this one loads
        tl.store(PAST + w[:, None] * capacity + t[None, :], past, mask=inside)


@triton.jit(do_not_specialize=["sentences", "capacity", "end"])
def extend(
    LOG_P, BEST, POSITION, LIMIT, SCORE, LAST, DONE, TOKENS, ENDED, ENDED_SCORE, ENDED_ROW, ENDED_AT,
    HISTORY, PARENTS, PAST, sentences, capacity, end,
    WIDTH: tl.constexpr, K: tl.constexpr, CANDIDATES: tl.constexpr, COLS: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Update the tensors of `Buffers`, except `position`, by log p and ids of the K best tokens of each row.

    CANDIDATES, COLS and SLOTS are WIDTH · K, K and WIDTH, padded to powers of two.
    """
    sentence = tl.program_id(0).to(tl.int64)
    first = sentence * WIDTH
    SCORE, LOG_P, BEST = SCORE + first, LOG_P + first * K, BEST + first * K
    position = tl.load(POSITION).to(tl.int32)
    limit, was_done, count = tl.load(LIMIT + sentence), tl.load(DONE + sentence), tl.load(ENDED + sentence)
    i = tl.arange(0, CANDIDATES)
    row, inside = i // K, i < WIDTH * K
    log_p = tl.load(LOG_P + i, mask=inside, other=float("-inf")).to(tl.float64)
    total = tl.load(SCORE + row, mask=inside, other=float("-inf")) + log_p
    token = tl.load(BEST + i, mask=inside, other=0)
    rank, ends_before, slot = _count_before(total, i, SCORE, LOG_P, BEST, end, WIDTH, K, COLS)
    possible, is_end = total > float("-inf"), token == end
    ended = possible & is_end & (rank < WIDTH)
    continued = possible & (is_end == 0) & (rank < 2 * WIDTH) & (slot < WIDTH)
    # The new rows; one without a candidate gets −inf, PAD (0) and parent 0.
    w = tl.arange(0, SLOTS)
    chosen = continued[None, :] & (slot[None, :] == w[:, None])
    score = tl.max(tl.where(chosen, total[None, :], float("-inf")), 1)
    new_token = tl.sum(tl.where(chosen, token[None, :], 0), 1)
    parent = tl.sum(tl.where(chosen, row[None, :], 0), 1)
    tl.debug_barrier()  # every thread has loaded what the stores below overwrite
    column = sentence * (2 * WIDTH + 1) + count + ends_before
    tl.store(ENDED_SCORE + column, total, mask=ended)
    tl.store(ENDED_ROW + column, row.to(tl.int64), mask=ended)
    tl.store(ENDED_AT + column, tl.zeros_like(column) + position, mask=ended)
    count += tl.sum(ended.to(tl.int32), 0)
    tl.store(ENDED + sentence, count)
    none_continued = tl.sum(continued.to(tl.int32), 0) == 0
    done = was_done | (count >= WIDTH) | (position + 1 >= limit) | none_continued
    tl.store(DONE + sentence, done)
    in_beam = w < WIDTH
    tl.store(LAST + first + w, score, mask=in_beam & (was_done == 0))
    tl.store(SCORE + w, tl.where(done, float("-inf"), score), mask=in_beam)
    tl.store(TOKENS + first + w, new_token, mask=in_beam)
    at = position.to(tl.int64) * sentences * WIDTH + first + w
    tl.store(HISTORY + at, new_token.to(tl.int32), mask=in_beam)
    tl.store(PARENTS + at, parent.to(tl.int16), mask=in_beam)
    if WIDTH > 1:
        _reorder_past(PAST + first * capacity, parent, w, position, capacity, WIDTH, BLOCK_T)
