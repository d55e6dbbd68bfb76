"""Both multi-head layers against the lectures' formulas, their interaction matrices, and the cache."""

import math

import pytest
import torch

import regard
from regard import (
    Additive,
    ALiBi,
    Cache,
    Causal,
    Convolution,
    MultiHead,
    Padding,
    Recurrence,
    Rotary,
    SlicedMultiHead,
    Window,
    weights,
)


def test_full_heads_are_three_n_maps_side_by_side_then_projected():
    layer = MultiHead(6, 2, head_dim=4, value_head_dim=5, out_dim=7, linear_bias=False).double()
    q, k, v = (torch.randn(3, 6, dtype=torch.float64) for _ in range(3))
    parts = []
    for h in range(2):
        Q, K = q @ layer.Wq.weight[4 * h : 4 * h + 4].T, k @ layer.Wk.weight[4 * h : 4 * h + 4].T
        parts.append(torch.softmax(Q @ K.T / 2, -1) @ (v @ layer.Wv.weight[5 * h : 5 * h + 5].T))
    assert torch.allclose(layer(q, k, v), torch.cat(parts, -1) @ layer.Wo.weight.T)
    bare = MultiHead(6, 2, project=False)
    assert bare(torch.randn(2, 3, 6)).shape == (2, 3, 6)
    assert bare.Wo is None


def test_sliced_heads_are_the_lectures_formula():
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


def test_the_interaction_matrix_of_sliced_heads_is_block_diagonal_and_makes_the_energies():
    layer = SlicedMultiHead(8, 2, rank=3)
    inside = layer.interaction()
    assert inside.shape == (8, 8)
    assert (inside[:4, 4:] == 0).all()
    assert (inside[4:, :4] == 0).all()
    x = torch.randn(5, 8)
    energy = weights(layer.queries(x), layer.keys_values(x, x)[0], energy=regard.Dot(), stage="energy")
    for h in range(2):
        block = torch.zeros(8, 8)
        block[4 * h : 4 * h + 4, 4 * h : 4 * h + 4] = inside[4 * h : 4 * h + 4, 4 * h : 4 * h + 4]
        assert torch.allclose(energy[h], x @ block @ x.T, atol=1e-5)


def test_the_interaction_matrices_of_full_heads_make_the_energies():
    layer = MultiHead(8, 4, key_heads=2, memory_dim=6, linear_bias=False)
    x, memory = torch.randn(5, 8), torch.randn(7, 6)
    inside = layer.interaction()
    assert inside.shape == (4, 8, 6)
    k = layer.keys_values(memory, memory)[0].repeat_interleave(2, 0)
    assert torch.allclose(layer.queries(x) @ k.transpose(-1, -2), x @ inside @ memory.T, atol=1e-5)
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
def test_step_by_step_with_a_cache_is_all_at_once(make):
    layer, x = make().double(), torch.randn(3, 40, 8, dtype=torch.float64)
    whole = layer(x)
    for sizes in ([1] * 40, [17, 1, 1, 21]):
        cache, parts = Cache(), []
        for part in x.split(sizes, 1):
            parts.append(layer(part, cache=cache))
        assert torch.allclose(torch.cat(parts, 1), whole)
        assert cache.length == 40


def test_a_cache_for_cross_attention_projects_the_memory_once():
    layer, cache = MultiHead(8, 2), Cache()
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    first = layer(x, memory, cache=cache)
    assert torch.allclose(layer(x, torch.full_like(memory, math.nan), cache=cache), first)
    assert torch.allclose(layer(x, memory), first, atol=1e-6)


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


def test_the_layers_mask_and_the_calls_mask_are_joined():
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
    assert torch.allclose(layer(x), sum(padded[:, j : j + 9] @ layer.weight.weight[:, :, j].T for j in range(3)), atol=1e-5)
    for make in (lambda: Recurrence(6, cell="rn"), lambda: Convolution(6, 0), lambda: Recurrence(5, bidirectional=True)):
        with pytest.raises(regard.OptionError):
            make()
    for layer in (Recurrence(6), Convolution(6, 3)):
        with pytest.raises(regard.ShapeError, match="make the layer for 7"):
            layer(torch.randn(2, 9, 7))
