"""`attend` and `MultiHead` against torch's SDPA, nn.MultiheadAttention and FlexAttention; torch.compile."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import Additive, ALiBi, Causal, MultiHead, Padding, Sparsemax, Window, attend
from regard.attention import Distance, Documents, Dot, RelativeBuckets


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "tiled", None])
def test_equal_to_torchs_attention(kernel):
    q, k, v = (torch.randn(2, 3, 70, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask, bias = torch.rand(2, 1, 70, 70) < 0.5, torch.randn(3, 70, 70, dtype=torch.float64)
    mask[..., 0] = True
    for ours, theirs in (
        ({}, {}),
        ({"mask": Causal()}, {"is_causal": True}),
        ({"mask": mask}, {"attn_mask": mask}),
        ({"bias": bias}, {"attn_mask": bias}),
        ({"energy": Dot(0.3)}, {"scale": 0.3}),
    ):
        a, b = attend(q, k, v, kernel=kernel, **ours), scaled_dot_product_attention(q, k, v, **theirs)
        assert torch.allclose(a, b)
        g = torch.randn_like(a)
        for x, y in zip(
            torch.autograd.grad(a, (q, k, v), g), torch.autograd.grad(b, (q, k, v), g), strict=True
        ):
            assert torch.allclose(x, y)


@pytest.mark.parametrize("bias", [True, False])
def test_equal_to_torchs_multihead_with_the_same_weights(bias):
    ours, theirs = (
        MultiHead(12, 3, linear_bias=bias).double(),
        torch.nn.MultiheadAttention(12, 3, bias=bias, batch_first=True).double(),
    )
    with torch.no_grad():
        for name, part in zip(("Wq", "Wk", "Wv"), theirs.in_proj_weight.chunk(3), strict=True):
            getattr(ours, name).weight.copy_(part)
        ours.Wo.weight.copy_(theirs.out_proj.weight)
        if bias:
            theirs.in_proj_bias.normal_()
            for name, part in zip(("Wq", "Wk", "Wv"), theirs.in_proj_bias.chunk(3), strict=True):
                getattr(ours, name).bias.copy_(part)
            ours.Wo.bias.copy_(theirs.out_proj.bias.normal_())
    x, memory = torch.randn(2, 7, 12, dtype=torch.float64), torch.randn(2, 9, 12, dtype=torch.float64)
    assert torch.allclose(ours(x), theirs(x, x, x)[0])
    assert torch.allclose(ours(x, memory), theirs(x, memory, memory)[0])
    assert torch.allclose(ours(x, memory, memory * 2), theirs(x, memory, memory * 2)[0])
    lengths = torch.tensor([4, 9])
    hidden = torch.arange(9) >= lengths[:, None]
    assert torch.allclose(
        ours(x, memory, mask=Padding(lengths)), theirs(x, memory, memory, key_padding_mask=hidden)[0]
    )
    causal = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
    assert torch.allclose(ours(x, mask=Causal()), theirs(x, x, x, attn_mask=causal)[0])
    with regard.watch() as seen:
        ours(x)
    assert torch.allclose(seen["self"].weights(), theirs(x, x, x, average_attn_weights=False)[1])


OPTIONS = {
    "plain": dict,
    "causal": lambda: {"mask": Causal()},
    "window and ALiBi": lambda: {"mask": Causal() & Window(5), "bias": ALiBi(2)},
    "additive": lambda: {"energy": Additive(8)},
    "sparsemax": lambda: {"normalize": Sparsemax()},
    "distance with cap": lambda: {"energy": Distance(), "softcap": 3.0},
    "padding": lambda: {"mask": Padding([3, 50])},
    "documents": lambda: {"mask": Documents(torch.arange(64) // 8)},
    "learned bias": lambda: {"bias": RelativeBuckets(2)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_torch_compile_traces_the_whole_call(name):
    options = OPTIONS[name]()
    q, k, v = (torch.randn(2, 2, 64, 8, requires_grad=True) for _ in range(3))
    torch._dynamo.reset()
    out = torch.compile(lambda q, k, v: attend(q, k, v, **options), fullgraph=True)(q, k, v)
    plain = attend(q, k, v, **options)
    assert torch.allclose(out, plain, atol=1e-5)
    for a, b in zip(
        torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(plain.sum(), (q, k, v)), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-4)


def test_dynamo_traces_the_whole_call_without_a_break():
    """The quick form of the above: traced by dynamo and run eagerly, which needs no C++ compiler."""
    q, k, v = (torch.randn(2, 2, 64, 8) for _ in range(3))
    for options in (
        {},
        {"mask": Causal() & Window(5), "bias": ALiBi(2)},
        {"normalize": Sparsemax(), "mask": Padding([3, 50])},
    ):
        torch._dynamo.reset()
        out = torch.compile(lambda q, k, v, o=options: attend(q, k, v, **o), fullgraph=True, backend="eager")(
            q, k, v
        )
        assert torch.allclose(out, attend(q, k, v, **options), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "causal", "window and ALiBi", "padding", "documents"])
def test_flex_agrees_where_it_can_be_compiled(name):
    q, k, v = (torch.randn(2, 2, 64, 16) for _ in range(3))
    options = OPTIONS[name]()
    out = attend(q, k, v, kernel="flex", **options)
    assert torch.allclose(out, attend(q, k, v, kernel="reference", **options), atol=1e-5)


@pytest.mark.slow
def test_flex_compiles_more_variants_than_torchs_recompile_limit():
    q, k, v = (torch.randn(1, 2, 64, 16) for _ in range(3))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=1):
        for cap in (3.0, 5.0, 7.0):
            out = attend(q, k, v, kernel="flex", softcap=cap)
            assert torch.allclose(out, attend(q, k, v, kernel="reference", softcap=cap), atol=1e-5)
