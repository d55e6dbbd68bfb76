"""The fused residual connection on a CPU, by Triton's interpreter, against float64. Run by
test_fused_residual.py.
"""

import torch
from torch import nn

from regard.layers import fused_residual
from regard.layers.fused_residual import add_and_norm, run_sublayers
from regard.models.transformer import TransformerOptions

SIZES = [(7, 24, 0.3), (33, 64, 0.0)]  # rows, features, dropout; the last tile of rows is not full
DTYPES = [
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
]
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 6e-3}


def relative_error(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def make_norm(dim):
    norm = nn.LayerNorm(dim)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def dropout_mask(state, rows, dim, p):
    """The factors of dropout for this state of the generator: with x = 0 and f = 1, they are the sum."""
    torch.random.set_rng_state(state)
    _, mask = add_and_norm(torch.zeros(rows, dim), torch.ones(rows, dim), nn.LayerNorm(dim), p, keep_sum=True)
    return mask.detach().double()


def errors(rows, dim, dtypes, p, keep_sum, uses):
    """Relative errors of both outputs and all gradients; `uses` says which outputs have a gradient."""
    norm = make_norm(dim)
    x, f = (torch.randn(rows, dim).to(dtype).requires_grad_() for dtype in dtypes)
    state = torch.random.get_rng_state()
    outputs = add_and_norm(x, f, norm, p, keep_sum=keep_sum)
    mask = dropout_mask(state, rows, dim, p)
    exact = [t.detach().double().requires_grad_() for t in (x, f, norm.weight, norm.bias)]
    total = exact[0] + exact[1] * mask
    y = nn.functional.layer_norm(total, (dim,), *exact[2:], norm.eps)
    expected_outputs = (y, total if keep_sum else y)
    grads = [torch.randn(rows, dim).to(out.dtype) for out in outputs]
    torch.autograd.backward(
        [out for out, used in zip(outputs, uses, strict=True) if used],
        [g for g, used in zip(grads, uses, strict=True) if used],
    )
    torch.autograd.backward(
        [out for out, used in zip(expected_outputs, uses, strict=True) if used],
        [g.double() for g, used in zip(grads, uses, strict=True) if used],
    )
    results = [*outputs, x.grad, f.grad, norm.weight.grad, norm.bias.grad]
    expected = [*expected_outputs, *(t.grad for t in exact)]
    assert [t.dtype for t in results[2:4]] == list(dtypes)
    pairs = [(a, b) for a, b in zip(results, expected, strict=True) if b is not None and b.norm() > 0]
    return max(relative_error(a, b) for a, b in pairs)


def check_kernel():
    for rows, dim, p in SIZES:
        for dtypes in DTYPES:
            for keep_sum in (False, True):
                error = errors(rows, dim, dtypes, p, keep_sum, (True, True))
                assert error < BOUNDS[dtypes[1]], (rows, dim, dtypes, p, keep_sum, error)
    for keep_sum in (False, True):
        for uses in ((True, False), (False, True)):
            error = errors(7, 24, DTYPES[0], 0.3, keep_sum, uses)
            assert error < 1e-6, (keep_sum, uses, error)


def check_dropout():
    """The rate is right, rows and columns are independent, and every call draws another mask."""
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    mask = dropout_mask(state, 400, 64, 0.3)
    dropped = mask == 0
    assert abs(float(dropped.double().mean()) - 0.3) < 0.01
    assert set(mask.unique().tolist()) == {0.0, float(torch.tensor(65536 / (65536 - 19661)))}
    for a, b in ((dropped[1:], dropped[:-1]), (dropped[:, 1:], dropped[:, :-1]), (dropped[8:], dropped[:-8])):
        assert abs(float((a & b).double().mean()) - 0.09) < 0.01
    assert torch.equal(mask, dropout_mask(state, 400, 64, 0.3))
    assert not torch.equal(mask, dropout_mask(torch.random.get_rng_state(), 400, 64, 0.3))


def check_stack(norm, decoder):
    """A Transformer stack with fused residual connections equals the plain one, with all gradients."""
    torch.manual_seed(4)
    options = TransformerOptions(layers=2, heads=2, inner=24, norm=norm)
    stack = options.build_decoder(16, 0.0) if decoder else options.build_encoder(16, 0.0)
    for p in stack.parameters():
        nn.init.normal_(p, std=0.3)
    x, grad = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    results = []
    for fused in (False, True):
        leaf = x.clone().requires_grad_()
        stack.zero_grad()
        if fused:
            sublayers = [s for layer in stack.layers for s in layer.sublayers()]
            assert fused_residual.can_fuse(leaf.expand(64, 2, 5, 16), [r for r, _ in sublayers], stack.norm)
            out = run_sublayers(leaf, sublayers, stack.norm)
        else:
            out = stack.run_layers(leaf)
        out.backward(grad)
        results.append([out.detach(), leaf.grad, *(p.grad.clone() for p in stack.parameters())])
    for plain, fused in zip(*results, strict=True):
        assert (plain - fused).norm() <= 1e-5 * max(1.0, float(plain.norm())), (norm, plain, fused)


if __name__ == "__main__":
    torch.manual_seed(2)
    check_kernel()
    check_dropout()
    check_stack("post", decoder=False)
    check_stack("pre", decoder=True)
