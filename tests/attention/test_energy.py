"""Energies against their formulas, and the experiment behind 1/√d."""

import math

import pytest
import torch

import regard
from regard import Additive, Bilinear, Causal, Padding, ScaledDot, attend, weights
from regard.attention import Cosine, Distance, Dot, Match, RelativeVectors
from regard.errors import KernelError
from tests.attention.every_kernel import close, runs


def qk(Tq=4, Tk=5, D=6, H=2):
    return torch.randn(1, H, Tq, D, dtype=torch.float64), torch.randn(1, H, Tk, D, dtype=torch.float64)


def by_hand(f, q, k):
    out = torch.empty(*q.shape[:-1], k.shape[-2], dtype=q.dtype)
    for h in range(q.shape[1]):
        for i in range(q.shape[2]):
            for j in range(k.shape[2]):
                out[0, h, i, j] = f(q[0, h, i], k[0, h, j], h)
    return out


@pytest.mark.parametrize("scale", [-0.5, 0.0, -1e-42, 1e-42])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_scale_that_is_not_positive_is_right_under_every_mask(dtype, scale):
    """torch's SDPA sets masked energies to −∞ and scales them: −∞ · 0 is NaN, −∞ · −0.5 is the largest."""
    torch.manual_seed(0)
    for Tq, Tk in ((6, 6), (5, 9), (200, 200)):
        q, k, v = (torch.randn(2, 2, T, 8).to(dtype) for T in (Tq, Tk, Tk))
        masks = (None, Causal(), Causal(offset=0), Padding([Tk, 1]), torch.ones(Tq, Tk).tril().bool())
        for mask in masks:
            exact = (x.double() for x in (q, k, v))
            expected = attend(*exact, energy=Dot(scale), mask=mask, kernel="reference")
            for leaf in (q, q.clone().requires_grad_()):
                for name, out in runs(leaf, k, v, energy=Dot(scale), mask=mask):
                    assert close(out, expected, 5 * torch.finfo(dtype).eps), (name, mask, Tq)


def test_a_prepared_call_does_not_keep_the_scale_of_another_dot_product():
    q, k, v = (torch.randn(2, 3, 7, 8) for _ in range(3))
    for _ in range(3):  # later calls take the shortcuts of earlier ones
        for scale in (1.0, 0.125, 2.0):
            expected = torch.softmax(scale * q @ k.mT, -1) @ v
            for kernel in (None, "sdpa"):
                out = attend(q, k, v, energy=Dot(scale), kernel=kernel)
                assert torch.allclose(out, expected, atol=1e-5), (scale, kernel)


def test_each_energy_is_its_formula_pair_by_pair():
    q, k = qk()
    full, low, heads = (
        Bilinear(6).double(),
        Bilinear(6, rank=2).double(),
        Bilinear(6, rank=3, heads=2, scale=0.5).double(),
    )
    additive, many = Additive(6, hidden=4).double(), Additive(6, hidden=4, heads=2).double()
    formulas = [
        (Dot(), lambda a, b, h: sum(x * y for x, y in zip(a, b, strict=True))),
        (Dot(0.25), lambda a, b, h: 0.25 * a.dot(b)),
        (ScaledDot(), lambda a, b, h: a.dot(b) / math.sqrt(6)),
        (Cosine(3.0), lambda a, b, h: 3 * a.dot(b) / (a.norm() * b.norm())),
        (Distance(), lambda a, b, h: -((a - b) ** 2).sum()),
        (Match(), lambda a, b, h: float(torch.equal(a, b))),
        (full, lambda a, b, h: a @ full.W @ b),
        (low, lambda a, b, h: a @ low.W.T @ low.V @ b),
        (heads, lambda a, b, h: 0.5 * (a @ heads.W[h].T @ heads.V[h] @ b)),
        (
            additive,
            lambda a, b, h: additive.v.dot(torch.tanh(additive.Wq.weight @ a + additive.Wk.weight @ b)),
        ),
        (many, lambda a, b, h: many.v[h].dot(torch.tanh(many.Wq.weight @ a + many.Wk.weight @ b))),
    ]
    k[0, 0, 2] = q[0, 0, 1]
    for energy, formula in formulas:
        assert torch.allclose(weights(q, k, energy=energy, stage="energy"), by_hand(formula, q, k)), energy


def test_the_interaction_matrix_of_a_low_rank_energy_is_w_transposed_v():
    q, k = qk(H=1)
    energy = Bilinear(6, rank=2).double()
    assert torch.allclose(energy(q, k), q @ energy.matrix() @ k.transpose(-1, -2))
    assert torch.linalg.matrix_rank(energy.matrix()) == 2


def test_bilinear_and_additive_take_queries_and_keys_of_different_widths():
    q, k, v = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 7, 6), torch.randn(2, 3, 7, 2)
    for energy in (
        Bilinear(5, 6),
        Bilinear(5, 6, rank=3, heads=3),
        Additive(5, 6, 8),
        Additive(5, 6, 8, heads=3),
    ):
        assert attend(q, k, v, energy=energy).shape == (2, 3, 4, 2)


@pytest.mark.parametrize("size", [1.0, 20.0, 60.0, 400.0])
def test_additive_is_exact_also_beyond_the_range_of_the_reciprocal_form(size):
    q, k, v = (torch.randn(1, 2, 40, 8) * size for _ in range(3))
    energy = Additive(8, hidden=16)
    truth = attend(q.double(), k.double(), v.double(), energy=energy.double(), kernel="reference")
    energy.float()
    for kernel in ("additive", "cpp", None):
        try:
            out = attend(q, k, v, energy=energy, kernel=kernel)
        except KernelError:
            continue
        assert (out - truth).abs().max() < 2e-5 * size


@pytest.mark.parametrize("energy", [Distance(), Additive(8), Additive(8, hidden=6), Cosine(), Bilinear(8)])
@pytest.mark.parametrize("option", ["bias", "gate"])
def test_a_bias_or_gate_of_the_query_reads_the_query_of_the_call(energy, option):
    q, k, v = torch.randn(3, 2, 2, 150, 8)
    options = {"energy": energy, option: RelativeVectors(8, clip=4)}
    true = attend(q, k, v, kernel="reference", **options)
    for name, out in runs(q + 0.0, k, v, **options):
        assert close(out, true), name


def test_distance_finds_the_equal_key_even_far_from_the_origin():
    k = torch.randn(1, 200, 16) + 1000
    w = weights(k[:, 17:18], k, energy=Distance())
    assert w.argmax() == 17
    out = attend(k[:, 17:18], k, torch.eye(200)[None], energy=Distance())
    assert torch.allclose(out, w, atol=1e-5)


def test_a_zero_vector_has_cosine_zero_with_everything():
    q, k = torch.zeros(1, 1, 4), torch.randn(1, 3, 4)
    assert (weights(q, k, energy=Cosine(), stage="energy") == 0).all()


def test_the_dot_product_of_unit_normals_has_variance_d():
    """d = 200, 10 000 samples: standard deviation near √200 = 14.14; scaled, near 1."""
    torch.manual_seed(1)
    q, k = torch.randn(10_000, 1, 200), torch.randn(10_000, 1, 200)
    plain, scaled = (weights(q, k, energy=e, stage="energy") for e in (Dot(), ScaledDot()))
    assert abs(plain.mean()) < 0.5
    assert plain.std().item() == pytest.approx(math.sqrt(200), rel=0.03)
    assert scaled.std().item() == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize(
    "energy",
    [
        Dot(),
        ScaledDot(),
        Cosine(),
        Distance(),
        Bilinear(3),
        Bilinear(3, rank=2, heads=2),
        Additive(3, hidden=4),
        Additive(3, heads=2),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("kernel", ["reference", "tiled", "additive"])
def test_gradcheck_of_every_energy(energy, kernel):
    q, k, v = (torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    if isinstance(energy, torch.nn.Module):
        energy = energy.double()
    learned = list(energy.parameters()) if isinstance(energy, torch.nn.Module) else []

    def run(q, k, v, *_):
        return attend(q, k, v, energy=energy, mask=regard.Causal(), kernel=kernel)

    try:
        run(q, k, v)
    except KernelError as error:
        pytest.skip(str(error))
    assert torch.autograd.gradcheck(run, (q, k, v, *learned), fast_mode=False)
