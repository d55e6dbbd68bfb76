"""Triton kernels of a decoder step: attention of one query per row, and the best token of each row.

A program computes one row and head, or one row of scores, in float32. Keys and values are read once, where
they lie: the tokens of a hypothesis are found in the rows that wrote them, so beam search copies no cache.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl


@triton.jit
def _add_keys(q, KEYS, VALUES, visible, here, top, total, out):
    """Online softmax: add keys and values (T, D) to a maximum, a sum of exponentials and an output (D).

    KEYS and VALUES are pointers (T, D), read where `here` is true; only `visible` keys get weight.
    """
    keys = tl.load(KEYS, mask=here, other=0.0)
    values = tl.load(VALUES, mask=here, other=0.0)
    energies = tl.where(visible, tl.sum(q[None, :] * keys.to(tl.float32), 1), float("-inf"))
    new_top = tl.maximum(top, tl.max(energies, 0))
    scale = tl.exp(top - new_top)
    p = tl.exp(energies - new_top)
    out = out * scale + tl.sum(p[:, None] * values.to(tl.float32), 0)
    return new_top, total * scale + tl.sum(p, 0), out


@triton.jit(do_not_specialize=["capacity"])
def self_attention(
    QKV, KEYS, VALUES, PAST, POSITION, OUT, heads, capacity,
    WIDTH: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Write the new key and value of a row to the cache, and attend to all tokens up to the new one.

    QKV (rows, 3, heads, D) and OUT (rows, heads, D). KEYS and VALUES (sentences, heads, capacity, WIDTH, D)
    have WIDTH rows per sentence. PAST (rows, capacity): which row of the sentence wrote a token. POSITION:
    the number of tokens before the new one.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(POSITION).to(tl.int32)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    QKV += (row * 3 * heads + head) * D
    q = tl.load(QKV + d, mask=in_head, other=0.0).to(tl.float32)
    key = tl.load(QKV + heads * D + d, mask=in_head, other=0.0)
    value = tl.load(QKV + 2 * heads * D + d, mask=in_head, other=0.0)
    first = (row // WIDTH * heads + head) * capacity * WIDTH * D  # of this sentence and head
    new = first + (position * WIDTH + row % WIDTH) * D + d
    tl.store(KEYS + new, key, mask=in_head)
    tl.store(VALUES + new, value, mask=in_head)
    # The new token is taken from the registers: other tokens were written by earlier steps.
    top = tl.sum(q * key.to(tl.float32), 0)
    total = tl.full([], 1.0, tl.float32)
    out = value.to(tl.float32)
    for start in range(0, position, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        visible = t < position
        column = t
        if WIDTH > 1:
            column = t * WIDTH + tl.load(PAST + row * capacity + t, mask=visible, other=0).to(tl.int32)
        at = first + column[:, None] * D + d[None, :]
        here = visible[:, None] & in_head[None, :]
        top, total, out = _add_keys(q, KEYS + at, VALUES + at, visible, here, top, total, out)
    tl.store(OUT + (row * heads + head) * D + d, (out / total).to(OUT.dtype.element_ty), mask=in_head)


@triton.jit
def cross_attention(
    Q, KEYS, VALUES, MASK, OUT, heads, source,
    WIDTH: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Attend to the source: Q and OUT (rows, heads, D); KEYS and VALUES (sentences, heads, source, D); MASK
    (sentences, source) is 0, or −inf at padding, and 0 for the first token.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    q = tl.load(Q + (row * heads + head) * D + d, mask=in_head, other=0.0).to(tl.float32)
    sentence = row // WIDTH
    first = (sentence * heads + head) * source * D
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    out = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, source, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        visible = tl.load(MASK + sentence * source + t, mask=t < source, other=float("-inf")) == 0
        at = first + t[:, None] * D + d[None, :]
        here = visible[:, None] & in_head[None, :]
        top, total, out = _add_keys(q, KEYS + at, VALUES + at, visible, here, top, total, out)
    tl.store(OUT + (row * heads + head) * D + d, (out / total).to(OUT.dtype.element_ty), mask=in_head)


@triton.jit
def best_token(SCORES, LOG_P, TOKEN, vocabulary, BLOCK: tl.constexpr):
    """The best token of each row of scores, the first of equal ones, and its log p; NaN if there is a NaN."""
    row = tl.program_id(0).to(tl.int64)
    SCORES += row * vocabulary
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)  # Σ exp(score − top)
    token = tl.full([], 0, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        v = start + tl.arange(0, BLOCK)
        x = tl.load(SCORES + v, mask=v < vocabulary, other=float("-inf"))
        best, index = tl.max(x, 0, return_indices=True)
        token = tl.where(best > top, start + index, token)
        new_top = tl.maximum(top, best)
        finite = tl.where(new_top == float("-inf"), 0.0, new_top)
        total = total * tl.exp(top - finite) + tl.sum(tl.exp(x - finite), 0)
        top = new_top
    tl.store(LOG_P + row, -tl.log(total))
    tl.store(TOKEN + row, token.to(tl.int64))


@triton.jit
def column_maxima(SCORES, MAXIMA, LSE, columns, LINES: tl.constexpr, BLOCK: tl.constexpr):
    """The largest score of each column, and log Σ exp of a row, for rows read as LINES lines of columns."""
    row = tl.program_id(0).to(tl.int64)
    SCORES += row * LINES * columns
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)  # Σ exp(score − top)
    line = tl.arange(0, LINES)
    for start in range(0, columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(SCORES + line[:, None] * columns + c[None, :], mask=c[None, :] < columns,
                    other=float("-inf"))  # fmt: skip
        tl.store(MAXIMA + row * columns + c, tl.max(x, 0), mask=c < columns)
        new_top = tl.maximum(top, tl.max(tl.max(x, 0), 0))
        finite = tl.where(new_top == float("-inf"), 0.0, new_top)
        total = total * tl.exp(top - finite) + tl.sum(tl.sum(tl.exp(x - finite), 0), 0)
        top = new_top
    tl.store(LSE + row, top + tl.log(total))
