"""Both multi-head layers against their formulas, with interaction matrices and caches.

Covers convolution.py.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import regard
from regard import Additive, ALiBi, Cache, Causal, MultiHead, Padding, Rotary, Window, weights
from regard.attention import Dot
from regard.errors import OptionError, ShapeError
from regard.layers import Convolution, Recurrence, SlicedMultiHead, multihead
from regard.layers.linear import Linear


@pytest.fixture
def fused_on_cpu(monkeypatch):
    """Projections are one matmul on a CPU too, as they are on a GPU."""
    monkeypatch.setattr(multihead, "FUSED_ON", ("cpu",))


def test_full_heads_equal_the_formula_of_the_transformer():
    layer = MultiHead(6, 2, head_dim=4, value_head_dim=5, out_dim=7, linear_bias=False).double()
    q, k, v = (torch.randn(3, 6, dtype=torch.float64) for _ in range(3))
    parts = []
    for h in range(2):
        Q, K = q @ layer.Wq.weight[4 * h : 4 * h + 4].T, k @ layer.Wk.weight[4 * h : 4 * h + 4].T
        parts.append(torch.softmax(Q @ K.T / 2, -1) @ (v @ layer.Wv.weight[5 * h : 5 * h + 5].T))
    assert torch.allclose(layer(q, k, v), torch.cat(parts, -1) @ layer.Wo.weight.T)
    unprojected = MultiHead(6, 2, project=False)
    assert unprojected(torch.randn(2, 3, 6)).shape == (2, 3, 6)
    assert unprojected.Wo is None


def test_sliced_heads_equal_the_formula_of_the_lecture():
    M, H, L, K, Kout, T = 12, 3, 5, 2, 7, 4
    layer = SlicedMultiHead(M, H, rank=L, value_head_dim=K, out_dim=Kout).double()
    X = torch.randn(T, M, dtype=torch.float64)
    heads = []
    for h in range(H):
        x = X[:, h * M // H : (h + 1) * M // H]
        attn = torch.softmax(x @ layer.W[h].T @ layer.V[h] @ x.T / math.sqrt(L), -1)
        heads.append(attn @ x @ layer.U[h].T)
    assert layer.W.shape == (H, L, M // H)
    assert layer.U.shape == (H, K, M // H)
    assert layer.Q.shape == (Kout, H * K)
    assert torch.allclose(layer(X), torch.cat(heads, 1) @ layer.Q.T)


def test_the_interaction_matrix_of_sliced_heads_is_block_diagonal_and_gives_the_energies():
    layer = SlicedMultiHead(8, 2, rank=3)
    interaction = layer.interaction()
    assert interaction.shape == (8, 8)
    assert (interaction[:4, 4:] == 0).all()
    assert (interaction[4:, :4] == 0).all()
    x = torch.randn(5, 8)
    energy = weights(layer.queries(x), layer.keys_values(x, x)[0], energy=Dot(), stage="energy")
    for h in range(2):
        block = torch.zeros(8, 8)
        block[4 * h : 4 * h + 4, 4 * h : 4 * h + 4] = interaction[4 * h : 4 * h + 4, 4 * h : 4 * h + 4]
        assert torch.allclose(energy[h], x @ block @ x.T, atol=1e-5)


def test_the_interaction_matrices_of_full_heads_give_the_energies():
    layer = MultiHead(8, 4, key_heads=2, memory_dim=6, linear_bias=False)
    x, memory = torch.randn(5, 8), torch.randn(7, 6)
    interaction = layer.interaction()
    assert interaction.shape == (4, 8, 6)
    k = layer.keys_values(memory, memory)[0].repeat_interleave(2, 0)
    assert torch.allclose(layer.queries(x) @ k.transpose(-1, -2), x @ interaction @ memory.T, atol=1e-5)
    assert layer(x, memory).shape == (5, 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiHead(8, 2, mask=Causal()),
        lambda: MultiHead(8, 4, key_heads=2, mask=Causal() & Window(3), bias=ALiBi(4)),
        lambda: MultiHead(8, 2, mask=Causal(), rotary=Rotary(4)),
        lambda: MultiHead(8, 2, mask=Causal(), energy=Additive(4)),
        lambda: SlicedMultiHead(8, 2, mask=Causal()),
    ],
)
def test_decoding_step_by_step_with_a_cache_equals_one_pass(make):
    layer, x = make().double(), torch.randn(3, 40, 8, dtype=torch.float64)
    full = layer(x)
    for sizes in ([1] * 40, [17, 1, 1, 21]):
        cache, parts = Cache(), []
        for part in x.split(sizes, 1):
            parts.append(layer(part, cache=cache))
        assert torch.allclose(torch.cat(parts, 1), full)
        assert cache.length == 40


def test_a_cache_for_cross_attention_projects_the_memory_once():
    layer, cache = MultiHead(8, 2), Cache()
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    first = layer(x, memory, cache=cache)
    assert torch.allclose(layer(x, torch.full_like(memory, math.nan), cache=cache), first)
    assert torch.allclose(layer(x, memory), first, atol=1e-6)


@pytest.mark.parametrize("call", [lambda x: (x, x), lambda x: (x, x, x), lambda x: (x, None, x)])
def test_the_same_tensor_as_query_key_and_value_is_self_attention(call):
    layer = MultiHead(8, 2, mask=Causal(), rotary=Rotary(4)).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    full = layer(x)
    with regard.watch(layer) as seen:
        torch.testing.assert_close(layer(*call(x)), full)
    assert "self" in seen and "cross" not in seen
    cache, parts = Cache(), []
    with torch.no_grad():
        for part in x.split([1, 3, 2], 1):
            parts.append(layer(*call(part), cache=cache))
    assert cache.length == 6
    torch.testing.assert_close(torch.cat(parts, 1), full)


def test_a_copy_of_the_query_as_key_is_cross_attention():
    layer, x = MultiHead(8, 2, rotary=Rotary(4)), torch.randn(2, 6, 8)
    for key_value in ((x.clone(),), (x.clone(), x), (x, x.clone())):
        with regard.watch(layer) as seen:
            assert not torch.allclose(layer(x, *key_value), layer(x))
        assert {*seen} == {"self", "cross"}


def test_reordering_a_cache_reorders_what_follows():
    layer, x = MultiHead(8, 2, mask=Causal()), torch.randn(3, 4, 8)
    cache = Cache()
    with torch.no_grad():
        layer(x[:, :3], cache=cache)
        cache.reorder(torch.tensor([2, 0]))
        step = layer(x[[2, 0], 3:], cache=cache)
        assert torch.allclose(step, layer(x[[2, 0]])[:, 3:], atol=1e-6)
    assert cache.key.shape == (2, 2, 4, 4)
    assert cache.value.shape == (2, 2, 4, 4)
    assert Cache().key is None


def test_the_layers_mask_and_the_calls_mask_are_combined():
    layer, x = MultiHead(8, 2, mask=Causal()), torch.randn(2, 5, 8)
    with regard.watch(layer) as seen:
        layer(x, mask=Padding([2, 5]))
    allowed = (Causal() & Padding([2, 5])).dense(5, 5)
    assert torch.equal(seen["self"].weights() > 0, allowed.expand(2, 2, 5, 5))


def test_dropout_acts_in_training_only():
    layer, x = MultiHead(8, 2, dropout=0.5), torch.randn(2, 9, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_convolution_and_recurrence_keep_the_length():
    x = torch.randn(2, 9, 6)
    for layer in (
        Convolution(6, 3),
        Convolution(6, 4),
        Convolution(6, 3, causal=True, out_dim=5),
        Recurrence(6),
        Recurrence(6, cell="lstm", bidirectional=True),
    ):
        assert layer(x).shape[:2] == (2, 9)
        assert layer(x[0]).shape[0] == 9
    causal = Convolution(6, 3, causal=True)
    changed = x.clone()
    changed[:, 5:] = 0
    assert torch.allclose(causal(x)[:, :5], causal(changed)[:, :5])
    layer = Convolution(6, 3, bias=False)
    padded = torch.nn.functional.pad(x, (0, 0, 1, 1))
    expected = sum(padded[:, j : j + 9] @ layer.weight.weight[:, :, j].T for j in range(3))
    assert torch.allclose(layer(x), expected, atol=1e-5)
    for make in (
        lambda: Recurrence(6, cell="rn"),
        lambda: Convolution(6, 0),
        lambda: Recurrence(5, bidirectional=True),
    ):
        with pytest.raises(OptionError):
            make()
    for layer in (Recurrence(6), Convolution(6, 3)):
        with pytest.raises(ShapeError, match="make the layer for 7"):
            layer(torch.randn(2, 9, 7))


class LoRA(nn.Module):
    """A low-rank update of a frozen linear layer (Hu et al. 2022); `weight` is the frozen one, as in peft."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features, dtype=base.weight.dtype))
        self.B = nn.Parameter(torch.randn(base.out_features, rank, dtype=base.weight.dtype))
        self.weight, self.bias, self.out_features = base.weight, base.bias, base.out_features

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


def double_output(module, args, output):
    return 2 * output


def modification(name):
    """Return a function that modifies the projection Wk of a layer."""

    def set_forward(layer):
        return setattr(layer.Wk, "forward", lambda x: 2 * nn.functional.linear(x, layer.Wk.weight))

    return {
        "lora": lambda layer: setattr(layer, "Wk", LoRA(layer.Wk)),
        "another module": lambda layer: setattr(layer, "Wk", nn.Sequential(layer.Wk, nn.Tanh())),
        "forward hook": lambda layer: layer.Wk.register_forward_hook(double_output),
        "forward pre hook": lambda layer: layer.Wk.register_forward_pre_hook(lambda _, x: (2 * x[0],)),
        "parametrisation": lambda layer: parametrize.register_parametrization(
            layer.Wk, "weight", Symmetric()
        ),
        "weight norm": lambda layer: nn.utils.parametrizations.weight_norm(
            layer.Wk
        ).parametrizations.weight.original0.data.mul_(3),
        "replaced forward": set_forward,
        "no bias": lambda layer: setattr(layer, "Wk", Linear(8, 8, bias=False).double()),
    }[name]


def test_unmodified_projections_are_fused_into_one_matmul_in_training(fused_on_cpu, monkeypatch):
    widths, affine = [], multihead.affine
    monkeypatch.setattr(multihead, "affine", lambda *x: widths.append(len(x[1])) or affine(*x))
    layer, x = MultiHead(8, 2), torch.randn(2, 5, 8)
    layer(x)
    layer(x, torch.randn(2, 4, 8))
    with torch.no_grad():
        layer(x)
    assert widths == [24, 16]  # query, key and value; key and value


@pytest.mark.parametrize(
    "name",
    [
        "lora",
        "another module",
        "forward hook",
        "forward pre hook",
        "parametrisation",
        "weight norm",
        "replaced forward",
        "no bias",
    ],
)
@pytest.mark.parametrize("cross", [False, True])
def test_a_modified_projection_is_used_with_and_without_gradients(name, cross, fused_on_cpu):
    layer, x = MultiHead(8, 2).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    call = (x, torch.randn(2, 4, 8, dtype=torch.float64)) if cross else (x,)
    before = layer(*call)
    modification(name)(layer)
    result = layer(*call)
    with torch.no_grad():
        torch.testing.assert_close(result, layer(*call))  # here each projection is a call of its own
    assert not torch.allclose(result, before)
    result.sum().backward()


def test_hooks_on_every_module_and_backward_hooks_are_called(fused_on_cpu):
    layer, x, called = MultiHead(8, 2), torch.randn(2, 5, 8, requires_grad=True), []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(module))
    try:
        layer(x)
    finally:
        hook.remove()
    assert all(m in called for m in (layer.Wq, layer.Wk, layer.Wv))
    layer.Wv.register_full_backward_hook(lambda *_: called.append("backward"))
    layer(x).sum().backward()
    assert called[-1] == "backward"


def test_projections_in_two_precisions_are_not_fused(fused_on_cpu):
    layer, x = MultiHead(8, 2, linear_bias=False), torch.randn(2, 5, 8)
    layer.Wk.to(torch.bfloat16)
    for call in ((x,), (x, torch.randn(2, 4, 8))):
        with pytest.raises(RuntimeError, match="dtype"):  # torch's own error, as without gradients
            layer(*call)


def test_the_interaction_includes_wrappers_around_the_projections():
    layer = MultiHead(8, 2).double()
    layer.Wk = LoRA(layer.Wk)
    changed = layer.Wk.base.weight + layer.Wk.B @ layer.Wk.A
    expected = layer.Wq.weight.unflatten(0, (2, 4)).transpose(-1, -2) @ changed.unflatten(0, (2, 4))
    torch.testing.assert_close(layer.interaction(), expected)


@pytest.mark.parametrize("shape", [(2, 0, 6), (0, 4, 6), (0, 0, 6), (0, 6), (3, 0, 2, 6)])
def test_empty_inputs_give_empty_outputs(shape):
    x = torch.randn(shape)
    for layer in (
        Convolution(6, 3, out_dim=4),
        Convolution(6, 3, out_dim=4, causal=True),
        Recurrence(6, out_dim=4, cell="lstm", bidirectional=True),
        MultiHead(6, 2, out_dim=4, mask=Causal()),
        SlicedMultiHead(6, 2, out_dim=4),
    ):
        assert layer(x).shape == (*shape[:-1], 4)
