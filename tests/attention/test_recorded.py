"""Weights, top keys, column sums and entropy of a recorded call against a float64 recomputation.

Covers recorded.py, score_tiles.py and selection.py.
"""

import math

import pytest
import torch

import regard
from regard import Additive, ALiBi, Bilinear, Causal, Padding, Softmax, Window, attend, watch, weights
from regard.attention import Dense, Documents, Dot, Entmax, RelativeVectors, score_tiles, selection
from regard.errors import OptionError

T = 37


def dense(kind):
    torch.manual_seed(7)
    if kind == "mask":
        return torch.rand(2, 1, T, T) < 0.6
    bias = torch.randn(2, 4, T, T)
    bias[:, :, :, 5] = -math.inf
    bias[0, 1, 3] = -1e9
    bias[1, 2, 4] = -math.inf
    return bias


CASES = {
    "plain": {},
    "causal": {"mask": Causal()},
    "causal as torch": {"mask": Causal(offset=0)},
    "causal, all queries late": {"mask": Causal(offset=T)},
    "causal, nothing at first": {"mask": Causal(offset=-4)},
    "window": {"mask": Window(5, 3)},
    "narrow window": {"mask": Window(0, 0)},
    "causal window": {"mask": Causal() & Window(6)},
    "causal and padding": {"mask": Causal() & Padding([20, T])},
    "documents": {"mask": Documents.of_lengths([10, 1, 20, 6])},
    "not": {"mask": ~Window(4, 4)},
    "dense": {"mask": dense("mask")},
    "padding to nothing": {"mask": Padding([0, 12])},
    "bias": {"bias": dense("bias")},
    "bias and mask": {"bias": dense("bias"), "mask": Causal()},
    "alibi": {"bias": ALiBi(4), "mask": Causal()},
    "relative vectors": {"bias": RelativeVectors(8, clip=3)},
    "soft cap": {"softcap": 3.0, "mask": Causal()},
    "soft cap and bias": {"softcap": 3.0, "bias": dense("bias")},
    "warm": {"normalize": Softmax(3.0), "mask": Causal()},
    "scaled": {"energy": Dot(0.2), "mask": Causal()},
    "gate": {"gate": Window(4), "mask": Causal()},
    "gate of numbers": {"gate": torch.linspace(0, 1, T).expand(T, T)},
    "bilinear": {"energy": Bilinear(8, 8), "mask": Causal()},
    "not a dot product": {"energy": Additive(8, hidden=4), "mask": Causal()},
    "not a softmax": {"normalize": Entmax(1.5), "mask": Causal()},
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    torch.manual_seed(3)
    monkeypatch.setattr(score_tiles, "CPU_TILE", 300)
    monkeypatch.setattr(score_tiles, "ROWS", 8)
    monkeypatch.setattr(selection, "REFERENCE_TILE", 2000)


def in_double(option):
    """The option with floating-point tensors and parameters in float64."""
    if isinstance(option, torch.Tensor):
        return option.double() if option.is_floating_point() else option
    if isinstance(option, torch.nn.Module):
        import copy

        return copy.deepcopy(option).double()
    return option


def wrong_results(call, full, dtype, **selection):
    """Names of the results that differ from `full`, the float64 weights of the selected heads and queries."""
    eps = 64 * torch.finfo(dtype).eps  # weights are rounded to the dtype of the call
    sums = 256 * torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    values, keys = call.top(min(4, full.shape[-1]), **selection)
    entropy, expected_entropy = call.entropy(**selection), torch.special.entr(full).sum(-1)
    near = lambda a, b, tolerance: torch.allclose(a.double(), b, rtol=tolerance, atol=tolerance)  # noqa: E731
    is_right = {
        "weights": near(call.weights(**selection), full, eps),
        "column sums": near(call.column_sums(**selection), full.sum(-2), sums),
        "entropy": near(entropy, expected_entropy, 4 * sums),
        "top values": near(values, full.topk(values.shape[-1], -1).values, eps),
        "top keys": near(full.gather(-1, keys), values.double(), eps),
        "distinct top keys": bool((keys.sort(-1).values.diff(dim=-1) > 0).all()),
    }
    return [name for name, right in is_right.items() if not right]


def watched(q, k, **options):
    with watch() as seen:
        attend(q, k, k, **options)
    return seen["attend.0"]


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_every_result_equals_a_float64_recomputation(case, key_heads):
    options = CASES[case]
    q, k = torch.randn(2, 4, T, 8), torch.randn(2, key_heads, T, 8)
    call = watched(q, k, **options)
    full = weights(q.double(), k.double(), **{name: in_double(x) for name, x in options.items()})
    assert wrong_results(call, full, torch.float32) == []
    for head, query in (
        ([2, 0], slice(5, 30)),
        ([1], [9]),
        ([3, 2, 3], [0, 36, 7]),
        (slice(1, 3), slice(None, None, 5)),
    ):
        assert wrong_results(call, full[:, head][:, :, query], torch.float32, head=head, query=query) == []
    one = call.column_sums(batch=1, head=2, query=8)
    assert torch.allclose(one.double(), full[1, 2, 8], atol=1e-5)


@pytest.mark.parametrize("case", ["large scores", "cold"])
@torch.no_grad()
def test_scores_too_large_for_exp_give_correct_results(case):
    options = {"large scores": {"energy": Dot(40.0)}, "cold": {"normalize": Softmax(0.005)}}[case]
    q, k = torch.randn(2, 4, T, 8), torch.randn(2, 4, T, 8)
    call, full = (
        watched(q, k, mask=Causal(), **options),
        weights(q.double(), k.double(), mask=Causal(), **options),
    )
    assert torch.allclose(call.weights().double(), full, atol=1e-3)  # a score of 400 is known to 5e-5
    assert torch.allclose(call.column_sums().double(), full.sum(-2), atol=1e-2)
    assert torch.allclose(call.entropy().double(), torch.special.entr(full).sum(-1), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@torch.no_grad()
def test_half_precision_is_summed_in_float32_and_float64_in_float64(dtype):
    q, k = torch.randn(2, 4, T, 8).to(dtype), torch.randn(2, 2, T, 8).to(dtype)
    assert (
        wrong_results(watched(q, k, mask=Causal()), weights(q.double(), k.double(), mask=Causal()), dtype)
        == []
    )


@torch.no_grad()
def test_broadcast_and_empty_axes_give_correct_results():
    q, k = torch.randn(3, 2, 4, T, 8), torch.randn(2, 4, T, 8)
    assert (
        wrong_results(
            watched(q, k, mask=Window(3)), weights(q.double(), k.double(), mask=Window(3)), torch.float32
        )
        == []
    )
    assert (
        wrong_results(
            watched(q[:1], torch.randn(1, 1, 4, 2, 8) * 0, mask=None),
            torch.full((1, 2, 4, T, 2), 0.5).double(),
            torch.float32,
        )
        == []
    )
    assert watched(torch.randn(0, 4, T, 8), k[:0]).column_sums().shape == (0, 4, T)
    assert watched(q[0, :, :, :0], k).entropy().shape == (2, 4, 0)
    assert (watched(q[0], k).column_sums(query=[]) == 0).all()
    assert (watched(q[0, :, :, :0], k).column_sums() == 0).all()


@torch.no_grad()
def test_nan_in_a_key_that_no_query_sees_changes_no_result():
    q, k = torch.randn(1, 2, T, 8), torch.randn(1, 2, T, 8)
    k[:, :, 30:] = math.nan
    call = watched(q, k, mask=Padding([30]))
    assert (
        wrong_results(call, weights(q.double(), k.nan_to_num().double(), mask=Padding([30])), torch.float32)
        == []
    )


@torch.no_grad()
def test_tiles_have_bounded_size_and_leave_out_hidden_keys(monkeypatch):
    monkeypatch.setattr(score_tiles, "CPU_TILE", 1 << 14)
    monkeypatch.setattr(score_tiles, "ROWS", 64)
    n = 4000
    q, sizes = torch.randn(1, 4, n, 8), []
    plain = torch.bmm

    def spy(a, b, **more):
        sizes.append(len(a) * a.shape[1] * b.shape[2])
        return plain(a, b, **more)

    monkeypatch.setattr(torch, "bmm", spy)
    call = watched(q, q, mask=Causal() & Window(100))
    sizes.clear()
    assert float(call.entropy().max()) < math.log(101) + 1e-4
    assert max(sizes) <= 1 << 14
    assert sum(sizes) < 4 * n * 2.6 * 100  # of 4 · n² = 64 million pairs, 1 million
    assert float(call.column_sums().sum()) == pytest.approx(4 * n, rel=1e-5)
    sizes.clear()
    watched(q, q, mask=Documents.of_lengths([100] * 40)).top(3)
    assert sum(sizes) < 4 * n * 300


@pytest.mark.parametrize("k", [0, 38, 2.0, True])
def test_an_invalid_k_is_refused(k):
    with pytest.raises(OptionError, match="k must be between 1 and the 37 keys"):
        watched(torch.randn(1, 1, T, 8), torch.randn(1, 1, T, 8)).top(k)


def test_topk_by_blocks_equals_topk():
    for n, k in ((100, 1), (1000, 3), (1003, 7), (64, 4), (5, 5)):
        x = torch.randn(3, 2, 4, n)
        values, at = score_tiles._topk(x, k)
        assert torch.equal(values, x.topk(k, -1).values)
        assert torch.equal(x.gather(-1, at), values)


def test_invalid_indices_are_quoted_as_given():
    call = watched(torch.randn(1, 4, T, 8), torch.randn(1, 4, T, 8))
    for pick, sentence in (
        (1.5, "head must be an integer"),
        (True, "head must be"),
        ("x", "head must be"),
        (9, "head=9 is out"),
    ):
        with pytest.raises(OptionError, match=sentence):
            call.weights(head=pick)


def test_the_repr_of_a_long_mask_is_shortened():
    mask = Dense(torch.ones(T, T, dtype=torch.bool)) & Documents(torch.arange(T)) & regard.Causal()
    shown = repr(watched(torch.randn(1, 4, T, 8), torch.randn(1, 4, T, 8), mask=mask))
    assert "…" in shown and "\n" not in shown


@torch.no_grad()
def test_a_gate_that_makes_weights_negative_leaves_hidden_keys_on_top():
    q, k = torch.randn(2, 4, T, 8), torch.randn(2, 4, T, 8)
    call = watched(q, k, mask=Causal(), gate=-torch.ones(1, 1))
    values, keys = call.top(3)
    full = call.weights()
    assert torch.allclose(values, full.topk(3, -1).values) and torch.allclose(full.gather(-1, keys), values)
