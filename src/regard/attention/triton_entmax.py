"""Triton kernels: sparsemax and entmax-1.5 of rows of scores, forward and backward, in float32.

A program holds ROWS whole rows in registers; the T keys are padded to COLS, a power of two. The threshold is
found by Newton's method as in entmax.py, where the formulas are.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN001, ANN201
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl

TOLERANCE = tl.constexpr(4 * 2.0**-23)  # relative, of the threshold
MAX_STEPS = tl.constexpr(64)


@triton.jit(do_not_specialize=["rows", "T"])
def entmax_forward(
    X, P, rows, T, highest, SPARSEMAX: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Weights P of scores X. `highest` is the threshold of a row of equal scores."""
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    exists = i < rows
    inside = exists[:, None] & (j < T)[None, :]
    offsets = i.to(tl.int64)[:, None] * T + j[None, :]
    x = tl.load(X + offsets, mask=inside, other=float("-inf"))
    z = x - tl.max(x, 1)[:, None]
    is_nan = tl.max((z != z).to(tl.int32), 1) > 0  # maxima on a GPU ignore NaN
    if not SPARSEMAX:
        z = z * 0.5
    tau = tl.full([ROWS], -1.0, tl.float32)
    moving = exists & (is_nan == 0)
    left, steps = tl.max(moving.to(tl.int32), 0), 0
    while (left > 0) & (steps < MAX_STEPS):
        root = tl.maximum(z - tau[:, None], 0.0)
        if SPARSEMAX:
            step = (tl.sum(root, 1) - 1.0) / tl.sum((root > 0.0).to(tl.float32), 1)
        else:
            total = tl.sum(root * root, 1)
            step = (total - tl.sqrt(total)) / tl.sum(root, 1)
        tau = tl.where(moving, tl.minimum(tau + step, highest), tau)
        moving = moving & (tl.abs(step) > tl.abs(tau) * TOLERANCE)
        left, steps = tl.max(moving.to(tl.int32), 0), steps + 1
    p = tl.maximum(z - tau[:, None], 0.0)
    if not SPARSEMAX:
        p = p * p
    tl.store(P + offsets, tl.where(is_nan[:, None], float("nan"), p), mask=inside)


@triton.jit(do_not_specialize=["rows", "T"])
def entmax_backward(P, G, DX, rows, T, SPARSEMAX: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr):
    """Gradient DX of the scores, given the weights P and their gradient G."""
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    inside = (i < rows)[:, None] & (j < T)[None, :]
    offsets = i.to(tl.int64)[:, None] * T + j[None, :]
    p = tl.load(P + offsets, mask=inside, other=0.0)
    support = p > 0.0
    g = tl.where(support, tl.load(G + offsets, mask=inside, other=0.0), 0.0)  # it may be NaN where p is 0
    slope = support.to(tl.float32) if SPARSEMAX else tl.where(support, tl.sqrt(p), 0.0)
    mean = tl.sum(slope * g, 1) / tl.sum(slope, 1)
    tl.store(DX + offsets, tl.where(support, slope * (g - mean[:, None]), 0.0), mask=inside)
