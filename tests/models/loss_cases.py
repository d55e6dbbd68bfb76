"""The fused loss on a CPU, by Triton's interpreter, against float64. Run by test_fused_loss.py."""

import torch
from torch.nn.functional import cross_entropy

from regard.models import fused_loss

SIZES = [(37, 8, 19), (64, 16, 10)]  # vocabulary, features, rows
DTYPES = [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, None)]
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


def relative_error(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def errors(vocabulary, dim, rows, smoothing, has_bias, dtype):
    """Relative errors of both losses and of all gradients; a fifth of the rows is padding."""
    x = torch.randn(rows, dim).to(dtype).requires_grad_()
    w = torch.randn(vocabulary, dim, requires_grad=True)
    b = torch.randn(vocabulary, requires_grad=True) if has_bias else None
    labels = torch.randint(0, vocabulary, (rows,))
    labels[::5] = 0
    total, nll = fused_loss.fused_cross_entropy(x, w, b, labels, smoothing)
    inputs = [x, w, *([b] if b is not None else [])]
    exact = [t.detach().double().requires_grad_() for t in (x, w.to(dtype), *inputs[2:])]
    logits = exact[0] @ exact[1].T + (exact[2] if has_bias else 0)
    common = {"ignore_index": 0, "reduction": "sum"}
    loss = cross_entropy(logits, labels, label_smoothing=smoothing, **common)
    assert not nll.requires_grad
    pairs = [(total, loss), (nll, cross_entropy(logits, labels, **common))]
    gradients, expected = torch.autograd.grad(3 * total, inputs), torch.autograd.grad(3 * loss, exact)
    assert [g.dtype for g in gradients] == [t.dtype for t in inputs]
    assert not gradients[0][::5].any()  # padding has no gradient
    return max(relative_error(a, b) for a, b in [*pairs, *zip(gradients, expected, strict=True)])


def check_second_derivatives():
    """Under create_graph the gradient is differentiable, as on the plain path."""
    x, w = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    labels = torch.tensor([1, 0, 5, 8, 2, 0])
    results = []
    for function in (fused_loss.fused_cross_entropy, fused_loss.plain_cross_entropy):
        total, _ = function(x, w, None, labels, 0.1)
        first = torch.autograd.grad(total, (x, w), create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), (x, w)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


if __name__ == "__main__":
    torch.manual_seed(2)
    fused_loss.BLOCK, fused_loss.CHUNK_ROWS = 16, 4
    for vocabulary, dim, rows in SIZES:
        fused_loss.CHUNK_LOGITS = 8 * vocabulary  # several chunks, the last one smaller
        for dtype, fused_loss.LOGITS_DTYPE in DTYPES:
            for smoothing, has_bias in ((0.0, False), (0.1, True)):
                error = errors(vocabulary, dim, rows, smoothing, has_bias, dtype)
                assert error < BOUNDS[dtype], (vocabulary, dtype, smoothing, has_bias, error)
    check_second_derivatives()
    with torch.no_grad():  # validation: no gradient is computed
        x, w, labels = torch.randn(6, 4), torch.randn(9, 4), torch.tensor([1, 0, 5, 8, 2, 0])
        total, nll = fused_loss.fused_cross_entropy(x, w, None, labels, 0.1)
        torch.testing.assert_close((total, nll), fused_loss.plain_cross_entropy(x, w, None, labels, 0.1))
