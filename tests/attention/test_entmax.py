"""Thresholds of sparsemax and entmax: Newton's method against sorting and bisection, on hard rows.

Covers entmax_gpu.py and triton_entmax.py, in Triton's interpreter; on a GPU: test_cuda.py.
"""

import math
from pathlib import Path

import pytest
import torch

from regard import Causal, attend
from regard.attention import Entmax, entmax, entmax_gpu
from tests.triton_interpreter import run_interpreted

LONG = 10_000


def masked(dtype):
    rows = torch.randn(40, 300, dtype=dtype)
    rows[torch.rand(40, 300) < 0.7] = -math.inf
    rows[:, 7] = 0.0
    return rows


ROWS = {
    "normal": lambda dtype: torch.randn(20, LONG, dtype=dtype),
    "all equal": lambda dtype: torch.full((2, LONG), 3.3e4, dtype=dtype),
    "tiny differences": lambda dtype: torch.randn(5, LONG, dtype=dtype) * 1e-30,
    "huge differences": lambda dtype: torch.randn(5, LONG, dtype=dtype) * 1e30,
    "one key": lambda dtype: torch.randn(20, 1, dtype=dtype),
    "two keys": lambda dtype: torch.randn(200, 2, dtype=dtype),
    "differences from 1e-12 to 1e3": lambda dtype: -torch.logspace(-12, 3, LONG, dtype=dtype)[None],
    "halves": lambda dtype: -(2.0 ** -torch.arange(200, dtype=dtype))[None],
    "one large, many at the threshold": lambda dtype: torch.cat(
        [torch.zeros(5, 1, dtype=dtype), 1e-6 * torch.randn(5, LONG, dtype=dtype) - 0.5], -1
    ),
    "masked": masked,
    "one allowed key": lambda dtype: torch.full((3, 50), -math.inf, dtype=dtype).index_fill_(
        1, torch.tensor([7]), 5.0
    ),
    "transposed": lambda dtype: torch.randn(300, 40, dtype=dtype).T,
}


def exact(scores, alpha):
    """By bisection in float64. A sum over many keys at the threshold repeats the rounding of τ for each."""
    z = (scores.double() - scores.double().amax(-1, keepdim=True)) * (alpha - 1)
    weights = (z - entmax._bisect(z, 1 / (alpha - 1))).clamp(min=0).pow(1 / (alpha - 1))
    return weights if alpha >= 1.5 else weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3, 1.01])
@pytest.mark.parametrize("name", ROWS)
def test_weights_of_hard_rows_are_right_to_rounding(name, alpha, dtype):
    torch.manual_seed(0)
    scores = ROWS[name](dtype)
    weights, eps = Entmax(alpha)(scores), torch.finfo(dtype).eps
    error = 8 * eps if alpha > 1.1 else 1000 * eps  # a weight is a power of 1/(α − 1)
    assert (weights.double() - exact(scores, alpha)).abs().max() <= error
    assert (weights >= 0).all()
    support = (weights > 0).sum(-1)  # τ is rounded once, and so is each weight
    assert ((weights.double().sum(-1) - 1).abs() <= eps * (10 + support)).all()


@pytest.mark.parametrize("step", [2.3e-16, 1e-12, 9e-9, 1.1e-8, 1e-6])
def test_entmax_of_an_alpha_close_to_1_is_close_to_softmax(step):
    """The difference is of order α − 1; the formula's power 1/(α − 1) multiplies its rounding errors."""
    torch.manual_seed(0)
    scores = (3 * torch.randn(20, 50, dtype=torch.float64)).requires_grad_()
    results = []
    for weights in (Entmax(1 + step)(scores), torch.softmax(scores, -1)):
        results.append((weights, *torch.autograd.grad(weights.square().sum(), scores)))
    assert all(torch.allclose(a, b, rtol=0, atol=5 * step + 5e-8) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_newtons_method_and_sorting_give_the_same_threshold(alpha, name):
    torch.manual_seed(0)
    z = ROWS[name](torch.float64)
    z = (z - z.amax(-1, keepdim=True)) * (alpha - 1)
    by_sorting = entmax._sparsemax_by_sorting if alpha == 2.0 else entmax._entmax15_by_sorting
    assert torch.allclose(entmax._newton(z, 1 / (alpha - 1)), by_sorting(z), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", ROWS)
def test_few_steps_are_enough(name, monkeypatch):
    """More of them change nothing, so the bound of the docstring is far away."""
    torch.manual_seed(0)
    z = ROWS[name](torch.float64)
    z = z - z.amax(-1, keepdim=True)
    taus = {}
    for steps in (20, entmax.MAX_STEPS):
        monkeypatch.setattr(entmax, "MAX_STEPS", steps)
        taus[steps] = [entmax._newton(z / power, power) for power in (1.0, 2.0, 5.0)]
    assert all(torch.equal(a, b) for a, b in zip(*taus.values(), strict=True))


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3])
def test_a_row_does_not_depend_on_rows_that_need_more_steps(alpha):
    torch.manual_seed(0)
    easy, slow = torch.randn(2, 64, 500) * torch.tensor([[[0.01]], [[1.0]]])
    weights = Entmax(alpha)(torch.cat([easy, slow]))
    assert torch.equal(weights[:64], Entmax(alpha)(torch.cat([easy, easy]))[:64])


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3, 3.0])
@pytest.mark.parametrize("bad", [[0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [-math.inf] * 3])
def test_rows_that_are_not_finite_are_nan_and_disturb_no_other_row(bad, alpha):
    good = [0.3, -math.inf, 0.0]
    scores = torch.tensor([good, bad, good], requires_grad=True)
    weights = Entmax(alpha)(scores)
    (grad,) = torch.autograd.grad(weights[::2].square().sum(), scores)
    alone = torch.tensor([good], requires_grad=True)
    expected = Entmax(alpha)(alone)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), alone)
    assert weights[1].isnan().all()
    for row in (0, 2):
        assert torch.equal(weights[row], expected[0])
        assert torch.equal(grad[row], expected_grad[0])
    assert (grad[1] == 0).all()


def test_nothing_is_sorted_on_a_cpu_unless_the_call_is_traced(monkeypatch):
    def fail(*_):
        raise AssertionError("sorted")

    for name in ("_sparsemax_by_sorting", "_entmax15_by_sorting"):
        monkeypatch.setattr(entmax, name, fail)
    q = torch.randn(1, 2, 9, 4, requires_grad=True)
    for alpha in (2.0, 1.5):
        attend(q, q, q, mask=Causal(), normalize=Entmax(alpha)).sum().backward()
        with pytest.raises(AssertionError, match="sorted"):
            torch.func.vmap(Entmax(alpha))(q[0])


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.3])
def test_traced_and_transformed_rows_are_equal_to_eager_ones(alpha):
    torch.manual_seed(0)
    scores, tangent = torch.randn(2, 4, 3, 30, dtype=torch.float64)
    weights = Entmax(alpha)(scores)
    compiled = torch.compile(Entmax(alpha), backend="aot_eager", fullgraph=True)
    exported = torch.export.export(Module(alpha), (scores,)).module()
    for run in (compiled, exported, torch.func.vmap(Entmax(alpha))):
        assert torch.allclose(run(scores), weights, rtol=1e-13, atol=1e-15)
    change = torch.func.jvp(Entmax(alpha), (scores,), (tangent,))[1]
    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(Entmax(alpha)(leaf), leaf, tangent)  # the Jacobian is symmetric
    assert torch.allclose(change, expected, rtol=1e-12, atol=1e-14)


class Module(torch.nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.normalize = Entmax(alpha)

    def forward(self, scores):
        return self.normalize(scores)


def test_the_interpreted_kernels_equal_plain_torch():
    process = run_interpreted(Path(__file__).with_name("triton_entmax_cases.py"))
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]


def test_the_kernels_take_float32_rows_of_limited_length():
    row = torch.zeros(3, 7)
    assert entmax_gpu.can_run(row, 2.0) and entmax_gpu.can_run(row, 1.5)
    assert not entmax_gpu.can_run(row, 1.3)
    assert not entmax_gpu.can_run(row.double(), 2.0)
    assert not entmax_gpu.can_run(row[:0], 2.0)
    assert entmax_gpu.can_run(torch.zeros(1, entmax_gpu.MAX_KEYS), 2.0)
    assert not entmax_gpu.can_run(torch.zeros(1, entmax_gpu.MAX_KEYS + 1), 2.0)


def test_the_kernels_never_run_on_a_cpu():
    assert not entmax_gpu.is_chosen(torch.zeros(3, 7), 2.0)
