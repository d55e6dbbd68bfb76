"""Triton kernel of the cross-entropy: the loss of each row of logits, and the gradient of the logits.

    loss = (1 − ε)(lse − logit[label]) + ε (lse − mean of the logits),  lse = log Σ exp(logits)
    gradient = softmax − ε/V − (1 − ε) [label]

Each program handles one row, in float32, in two passes: the second one reads the row from the L2 cache. Rows
whose label is IGNORE have loss and gradient 0.
"""

# Triton code is compiled by its own rules, which type checkers do not know.
# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false
import triton
import triton.language as tl


@triton.jit
def _logits(LOGITS, BIAS, v, vocabulary, HAS_BIAS: tl.constexpr):
    """Logits of tokens v in float32, zeros beyond the vocabulary."""
    x = tl.load(LOGITS + v, mask=v < vocabulary, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(BIAS + v, mask=v < vocabulary, other=0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["smoothing"])
def cross_entropy_rows(
    LOGITS, GRAD, BIAS, LABELS, LOSS, NLL, stride, grad_stride, vocabulary, smoothing,
    IGNORE: tl.constexpr, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, NEEDS_GRAD: tl.constexpr,
):  # fmt: skip
    """GRAD may be LOGITS: every element is read before it is overwritten, by the same program."""
    row = tl.program_id(0).to(tl.int64)
    LOGITS += row * stride
    GRAD += row * grad_stride
    label = tl.load(LABELS + row)
    ignored = label == IGNORE
    logit = tl.load(LOGITS + label).to(tl.float32)
    if HAS_BIAS:
        logit += tl.load(BIAS + label).to(tl.float32)

    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)  # Σ exp(x − top)
    plain_sum = tl.full([], 0.0, tl.float32)  # Σ x
    for start in range(0, vocabulary, BLOCK):
        v = start + tl.arange(0, BLOCK)
        x = _logits(LOGITS, BIAS, v, vocabulary, HAS_BIAS)
        plain_sum += tl.sum(x, 0)
        x = tl.where(v < vocabulary, x, float("-inf"))
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    lse = top + tl.log(total)
    nll = lse - logit
    loss = (1 - smoothing) * nll + smoothing * (lse - plain_sum / vocabulary)
    tl.store(NLL + row, tl.where(ignored, 0.0, nll))
    tl.store(LOSS + row, tl.where(ignored, 0.0, loss))

    if NEEDS_GRAD:
        share = smoothing / vocabulary
        for start in range(0, vocabulary, BLOCK):
            v = start + tl.arange(0, BLOCK)
            x = _logits(LOGITS, BIAS, v, vocabulary, HAS_BIAS)
            at_label = tl.where(v == label, 1 - smoothing, 0.0)
            grad = tl.where(ignored, 0.0, tl.exp(x - lse) - share - at_label)
            tl.store(GRAD + v, grad.to(GRAD.dtype.element_ty), mask=v < vocabulary)
