"""Edge cases of `attend` on every kernel: strides, second derivatives, NaN, dtypes, tracing.

The conformance suite draws random cases of each kind. Covers kernel_hints.py, kernel_inputs.py, precision.py
and tracing.py.
"""

import math
import warnings

import pytest
import torch
from torch import nn

import regard
from regard import (
    Additive,
    ALiBi,
    Bilinear,
    Causal,
    Padding,
    Softmax,
    Window,
    attend,
    explain,
    watch,
    weights,
)
from regard.attention import (
    Bias,
    Cosine,
    Dense,
    Diagonal,
    Dilated,
    Distance,
    Documents,
    Entmax,
    Hard,
    Mask,
    Prefix,
    RelativeVectors,
)
from regard.attention.plan import KERNELS
from regard.errors import KernelError, OptionError, ShapeError

CHECKED = [name for name in KERNELS if name != "flex"]  # Flex would compile for every call


def inputs(*shape, dtype=torch.float32, grad=False):
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_(grad) for _ in range(3)]


def runs(*args, **options):
    """(name, output) of every kernel that can run the call, and of the automatic choice."""
    outputs = [("auto", attend(*args, **options))]
    for name in CHECKED:
        try:
            outputs.append((name, attend(*args, kernel=name, **options)))
        except KernelError:
            continue
    return outputs


def grads(out, leaves):
    return torch.autograd.grad(out.sum(), leaves, allow_unused=True)


def close(a, b, tol=1e-5):
    return torch.allclose(a.double(), b.double(), rtol=tol, atol=tol)


# ---------------------------------------------------------------------------------------------------- strides


def strided(x, kind):
    if kind == "transposed":
        return x.mT.contiguous().mT
    if kind == "expanded features":
        return x[..., :1].expand_as(x)
    if kind == "expanded batch":
        return x[:1].expand_as(x)
    if kind == "every other":
        return torch.stack([x, x], -1).flatten(-2)[..., ::2]
    if kind == "negative":
        return torch._neg_view(-x)
    return x.flip(-2)


@pytest.mark.parametrize(
    "kind", ["transposed", "expanded features", "expanded batch", "every other", "negative", "flipped"]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_strides_give_what_contiguous_inputs_give(kind, dtype, which):
    tensors = inputs(2, 4, 140, 32, dtype=dtype)
    tensors[which] = strided(tensors[which], kind)
    plain = [x.clone().contiguous().resolve_neg() for x in tensors]
    for options in (
        {"mask": Window(32, 32)},
        {"mask": Causal(), "bias": ALiBi(4)},
        {"mask": Padding([140, 70])},
    ):
        true = attend(*(x.double() for x in plain), kernel="reference", **options)
        for name, out in runs(*tensors, **options):
            assert close(out, true, 0.04 if dtype == torch.bfloat16 else 1e-5), (name, options)


def test_strided_and_expanded_output_gradients_are_read_correctly():
    for mask in (None, Causal(), Window(20, 3)):
        q, k, v = inputs(2, 4, 140, 16, grad=True)
        for grad in (
            torch.randn(2, 4, 16, 140).mT,
            torch.ones(()).expand(2, 4, 140, 16),
            torch._neg_view(torch.randn(2, 4, 140, 16)),
        ):
            true = torch.autograd.grad(attend(q, k, v, mask=mask, kernel="reference"), (q, k, v), grad)
            for name, out in runs(q, k, v, mask=mask):
                for a, b in zip(torch.autograd.grad(out, (q, k, v), grad), true, strict=True):
                    assert close(a, b, 1e-4), name


# ----------------------------------------------------------------------------------------- second derivatives

TWICE = {
    "plain": {},
    "causal": {"mask": Causal()},
    "window": {"mask": Window(10, 4)},
    "padding": {"mask": Padding([140, 20])},
    "dense bias": {"bias": torch.randn(140, 140)},
    "ALiBi": {"bias": ALiBi(2), "mask": Causal()},
    "soft cap": {"softcap": 2.0},
    "cold": {"normalize": Softmax(0.5)},
    "additive": {"energy": Additive(16)},
    "entmax": {"normalize": Entmax(1.5)},
    "empty rows": {"mask": Causal(offset=-3)},
}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_penalty_equals_the_reference_on_every_kernel(name, dtype):
    options = dict(TWICE[name])
    if isinstance(options.get("energy"), nn.Module):
        options["energy"].to(dtype)
    if isinstance(options.get("bias"), torch.Tensor):
        options["bias"] = options["bias"].to(dtype)
    q, k, v = inputs(2, 2, 140, 16, dtype=dtype, grad=True)

    def penalty(out):
        (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (q, k, v), allow_unused=True)

    true = penalty(attend(q, k, v, kernel="reference", **options))
    largest = max(x.abs().max().item() for x in true if x is not None)
    for kernel, out in runs(q, k, v, **options):
        for a, b in zip(penalty(out), true, strict=True):
            assert close(a / largest, b / largest, 1e-4), kernel


def test_second_derivatives_with_a_learned_bias_agree_on_every_kernel():
    q, k, v = inputs(1, 2, 130, 8, grad=True)
    bias = torch.randn(2, 130, 130, requires_grad=True)
    second = []
    for _, out in runs(q, k, v, bias=bias):
        (g,) = torch.autograd.grad(out.square().sum(), bias, create_graph=True)
        second.append(torch.autograd.grad(g.square().sum(), (q, bias)))
    assert len(second) > 2
    for by_query, by_bias in second:
        assert close(by_query, second[-1][0], 1e-4)
        assert close(by_bias, second[-1][1], 1e-4)


# ------------------------------------------------------------------------------------ closures and subclasses


class Sloped(Bias):
    def __init__(self, slope):
        self.slope = slope

    def values(self, grid, query):
        return -self.slope * (grid.k - grid.position()).abs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_in_the_closure_of_a_bias_get_gradients(dtype):
    q, k, v = inputs(2, 4, 200, 16, dtype=dtype)
    slope = nn.Parameter(torch.tensor(0.01, dtype=dtype))
    for bias in (lambda t, s: -slope * (t - s).abs(), Sloped(slope)):
        for requires_grad in (False, True):
            tensors = [x.requires_grad_(requires_grad) for x in (q, k, v)]
            results = [
                (n, torch.autograd.grad(out.square().sum(), slope)[0])
                for n, out in runs(*tensors, bias=bias, mask=Window(60, 60))
            ]
            for name, grad in results:
                assert close(grad / results[-1][1], torch.ones(()), 1e-4), name


class Shifted(regard.ScaledDot):
    def __call__(self, query, key):
        return super().__call__(query, key) + query[..., :1] * key[..., 0].unsqueeze(-2)


class Reversed(Causal):
    def allowed(self, grid):
        return grid.k >= grid.position()


class Wider(Causal):
    def band(self):
        return None, 5


class Cubed(Softmax):
    def rows(self, scores):
        return torch.softmax(scores, -1) ** 3


@pytest.mark.parametrize(
    "options", [{"energy": Shifted()}, {"mask": Reversed()}, {"mask": Wider()}, {"normalize": Cubed()}]
)
def test_every_kernel_follows_a_subclass_that_overrides_the_rule(options):
    q, k, v = inputs(2, 4, 200, 16)
    true = attend(q, k, v, kernel="reference", **options)
    plain = attend(q, k, v, kernel="reference", **{n: type(x).__mro__[1]() for n, x in options.items()})
    assert not close(true, plain)
    for name, out in runs(q, k, v, **options):
        assert close(out, true), name


# --------------------------------------------------------------------------------------------- invisible keys


def minus_infinity(bias, keys):
    bias[..., keys] = -math.inf
    return bias


HIDDEN = {
    "additive": lambda: ({"energy": Additive(16), "mask": Padding([100, 100])}, 100),
    "cosine": lambda: ({"energy": Cosine(), "mask": Padding([100, 100])}, 100),
    "bilinear": lambda: ({"energy": Bilinear(16, rank=4), "mask": Padding([100, 100])}, 100),
    "soft cap and learned bias": lambda: (
        {"softcap": 3.0, "bias": torch.randn(2, 130, 130, requires_grad=True), "mask": Padding([100, 100])},
        100,
    ),
    "relative vectors": lambda: (
        {"bias": RelativeVectors(16), "mask": Padding([100, 100]), "softcap": 3.0},
        100,
    ),
    "bias of -inf": lambda: ({"bias": minus_infinity(torch.randn(130, 130), slice(100, 130))}, 100),
    "causal and bias": lambda: (
        {"mask": Causal(), "bias": minus_infinity(torch.zeros(130, 130), slice(100, 130))},
        100,
    ),
    "dense": lambda: ({"mask": torch.arange(130).expand(130, 130) < 100}, 100),
    "distance": lambda: ({"energy": Distance(), "mask": Prefix(100)}, 100),
    "entmax": lambda: ({"normalize": Entmax(), "mask": Prefix(100)}, 100),
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_in_a_key_that_no_query_sees_reaches_no_gradient(name, value):
    options, visible = HIDDEN[name]()
    finite = inputs(2, 2, 130, 16)
    with_value = [x.clone() for x in finite]
    for x in with_value[1:]:
        x[:, :, visible:] = value
    learned = [p for x in options.values() if isinstance(x, nn.Module) for p in x.parameters()]
    learned += [x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    results = []
    for tensors in (finite, with_value):
        leaves = [x.clone().requires_grad_() for x in tensors]
        results.append([(n, out, grads(out, [*leaves, *learned])) for n, out in runs(*leaves, **options)])
    for (kernel, a, da), (_, b, db) in zip(*results, strict=True):
        assert close(a, b), kernel
        for x, y in zip(da, db, strict=True):
            assert close(x, y, 1e-4), kernel


def test_nan_in_keys_after_the_last_query_reaches_nothing_under_torchs_causal_mask():
    q, k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    k[:, :, 5:] = v[:, :, 5:] = math.nan
    for name, out in runs(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), mask=Causal(offset=0)):
        assert out.isfinite().all(), name
        assert all(g.isfinite().all() for g in grads(out, (q, k, v))), name


def test_nan_in_a_query_without_visible_keys_or_in_its_gradient_reaches_nothing():
    for dtype in (torch.float32, torch.float64):
        q, k, v = inputs(2, 2, 130, 16, dtype=dtype)
        q[:, :, :3] = math.nan
        leaves = [x.requires_grad_() for x in (q, k, v)]
        grad = torch.randn(2, 2, 130, 16, dtype=dtype)
        grad[:, :, :3] = math.nan
        for name, out in runs(*leaves, mask=Causal(offset=-3)):
            assert (out[:, :, :3] == 0).all(), name
            assert all(g.isfinite().all() for g in torch.autograd.grad(out, leaves, grad)), name


# --------------------------------------------------------------------------------- dtypes and shapes of masks


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
)
def test_document_ids_may_have_any_integer_dtype_and_order(dtype):
    q, k, v = inputs(2, 2, 150, 16)
    ids = torch.tensor([1, 0, 1] if dtype == torch.bool else [3, 0, 2])[torch.arange(150) // 60].to(dtype)
    true = attend(q, k, v, mask=Dense(ids[:, None] == ids), kernel="reference")
    for name, out in runs(q, k, v, mask=Documents(ids)):
        assert close(out, true), name
    for name, out in runs(q, k, v, mask=Documents(ids.expand(2, 150), ids)):
        assert close(out, true), name


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_lengths_may_have_any_integer_dtype(dtype):
    q, k, v = inputs(2, 2, 120, 16)
    for kind in (Padding, Prefix):
        true = attend(q, k, v, mask=kind(torch.tensor([120, 7])), kernel="reference")
        for name, out in runs(q, k, v, mask=kind(torch.tensor([120, 7]).to(dtype))):
            assert close(out, true), name


@pytest.mark.parametrize(
    "options",
    [
        {"mask": Padding(torch.tensor([[5, 100, 30], [1, 2, 99]]))},
        {"mask": Padding(torch.tensor([5, 100, 30]))},
        {"mask": Causal() & Padding(torch.tensor([[5], [100]]))},
        {"mask": Documents(torch.randint(0, 3, (2, 1, 100)).sort().values)},
        {"bias": torch.randn(3, 1, 100, 100)},
        {"bias": torch.randn(2, 1, 4, 100, 100)},
        {"mask": torch.rand(3, 4, 100, 100) < 0.5},
        {"mask": Causal(offset=torch.tensor([1, 2, 3]))},
    ],
)
def test_masks_and_biases_per_sequence_work_with_two_batch_axes(options):
    q, k, v = inputs(2, 3, 4, 100, 16, grad=True)
    results = [(n, out, grads(out, (q, k, v))) for n, out in runs(q, k, v, **options)]
    for name, out, gradients in results:
        assert close(out, results[-1][1]), name
        assert all(close(a, b, 1e-4) for a, b in zip(gradients, results[-1][2], strict=True)), name


@pytest.mark.parametrize("shape", [(0, 2, 5, 4), (2, 2, 0, 4), (2, 0, 5, 4), (2, 2, 5, 0), (0, 3, 2, 5, 4)])
def test_empty_axes_give_empty_outputs_with_every_mask(shape):
    q, k, v = inputs(*shape, grad=True)
    B, T = shape[:-3], shape[-2]
    for mask in (
        None,
        Causal(),
        Padding(torch.zeros(B, dtype=torch.long)),
        Documents(torch.zeros(T, dtype=torch.long)),
        Window(2, 2),
    ):
        for name, out in runs(q, k, v, mask=mask):
            assert out.shape == shape, name
            grads(out, (q, k, v))
    q = torch.randn(*shape[:-2], 3, shape[-1])
    assert attend(q, k[..., :0, :], v[..., :0, :]).shape == q.shape
    assert (attend(q, k[..., :0, :], v[..., :0, :]) == 0).all()


class AllHidden(Bias):
    def values(self, grid, query):
        return torch.full((1, 1), -math.inf, dtype=query.dtype).expand(grid.q.shape[0], grid.k.shape[1])


def test_nan_and_minus_infinity_in_a_bias_mean_the_same_on_every_kernel():
    q, k, v = inputs(1, 2, 140, 16)
    bias = torch.randn(140, 140)
    bias[3, 7], bias[5], bias[6, 9] = math.nan, -math.inf, math.nan
    for mask in (None, Window(100, 100)):
        for name, out in runs(q, k, v, bias=bias, mask=mask):
            assert out[:, :, 3].isnan().all(), name
            assert (out[:, :, 5] == 0).all(), name
            assert out[:, :, 20:].isfinite().all(), name
    for name, out in runs(q, k, v, bias=AllHidden()):
        assert (out == 0).all(), name
    hidden = torch.zeros(140, 140).masked_fill(torch.eye(140).bool(), math.nan)  # NaN where the mask hides it
    for name, out in runs(q, k, v, bias=hidden, mask=~Diagonal()):
        assert close(out, attend(q, k, v, mask=~Diagonal(), kernel="reference")), name


# -------------------------------------------------------------------------------------- in-place modification


@pytest.mark.parametrize("kind", ["mask", "bias", "lengths"])
def test_an_option_modified_before_the_backward_pass_raises_or_has_no_effect(kind):
    for dtype in (torch.float32, torch.float64):
        q, k, v = inputs(2, 4, 200, 16, dtype=dtype, grad=True)

        def make_option():
            x = {
                "mask": torch.rand(200, 200) < 0.7,
                "bias": torch.randn(200, 200, dtype=dtype),
                "lengths": torch.tensor([200, 90]),
            }[kind]
            return x, {"mask": Padding(x)} if kind == "lengths" else {kind: x}

        for name in ["auto", *CHECKED]:
            torch.manual_seed(1)
            x, options = make_option()
            kernel = None if name == "auto" else name
            try:
                before = grads(attend(q, k, v, kernel=kernel, **options), (q, k, v))
            except KernelError:
                continue
            out = attend(q, k, v, kernel=kernel, **options)
            x.copy_(~x if kind == "mask" else x + 1 if kind == "bias" else x // 2)
            try:
                after = grads(out, (q, k, v))
            except RuntimeError:  # torch's own error
                continue
            except KernelError as error:
                assert "changed in place" in str(error)
                continue
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), name


# ----------------------------------------------------------------------------- half precision, extreme values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_the_output_but_not_the_energies(dtype):
    eps = torch.finfo(dtype).eps
    for T in (9, 140):
        for options in (
            {},
            {"mask": Causal()},
            {"energy": Distance()},
            {"normalize": Entmax(1.5)},
            {"bias": ALiBi(2)},
        ):
            q, k, v = inputs(2, 2, T, 32, dtype=dtype, grad=True)
            with torch.no_grad():
                q *= 4
            exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
            true = attend(*exact, kernel="reference", **options)
            truth = grads(true, exact)
            for name, out in runs(q, k, v, **options):
                bound = (2 if name in ("auto", "reference") else 8) * eps * v.abs().max()
                assert (out.double() - true).abs().max() <= bound, (name, options)
                for a, b in zip(grads(out, (q, k, v)), truth, strict=True):
                    assert (a.double() - b).abs().max() <= 8 * eps * (1 + b.abs().max()), (name, options)


def test_a_finite_bias_never_masks_even_in_half_precision():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        q, k, v = inputs(1, 2, 6, 8, dtype=dtype)
        bias = torch.zeros(6, 6)
        bias[0], bias[1, 3:] = -1e9, -1e9
        for name, out in runs(q, k, v, bias=bias):
            assert out[:, :, 0].isfinite().all(), name
            assert out[:, :, 0].abs().sum() > 0, name
            assert close(out[:, :, 1], attend(q, k[..., :3, :], v[..., :3, :])[:, :, 1], 0.02), name


@pytest.mark.parametrize("alpha", [1.0, 1.01, 1.3, 1.5, 2.0, 3.0, 5.0, 12.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_entmax_rows_sum_to_one_and_their_gradient_is_exact(alpha, dtype):
    scores = (3 * torch.randn(40, 200, dtype=torch.float64)).to(dtype)
    p = Entmax(alpha)(scores)
    assert p.dtype == dtype
    assert (p.double().sum(-1) - 1).abs().max() < {
        torch.float64: 1e-12,
        torch.float32: 1e-5,
        torch.bfloat16: 0.05,
    }[dtype]
    if dtype == torch.float64 and alpha <= 3:
        small = torch.randn(3, 7, dtype=dtype, requires_grad=True)
        assert torch.autograd.gradcheck(Entmax(alpha), small)
        assert torch.autograd.gradgradcheck(Entmax(alpha), small)


def test_entmax_15_is_exact_in_float64():
    scores = torch.cat(
        [torch.zeros(5, 1), torch.full((5, 500), -1.9) + 0.2 * torch.rand(5, 500)], -1
    ).double()
    p = Entmax(1.5)(scores)
    tau = (scores / 2 - p.sqrt())[p > 1e-10]
    assert (p.sum(-1) - 1).abs().max() < 1e-14
    for row, weight in zip(scores / 2, p, strict=True):
        inside = weight > 1e-9
        assert (row - weight.sqrt())[inside].std() < 1e-13
    assert tau.numel()


def test_cosine_has_no_gradient_at_zero_and_is_exact_at_any_scale():
    q, k, v = (torch.randn(1, 1, 4, 8, dtype=torch.float64) for _ in range(3))
    q[0, 0, 1] = 0
    true = attend(q, k, v, energy=Cosine())
    for scale in (1.0, 1e-30, 1e30):
        a = (q.float() * scale).requires_grad_()
        for name, out in runs(a, k.float() * scale, v.float(), energy=Cosine()):
            assert close(out, true), name
            (g,) = torch.autograd.grad(out.square().sum(), a)
            assert (g[0, 0, 1] == 0).all(), name
            assert g.isfinite().all(), name


@pytest.mark.parametrize("temperature", [1e-40, 1e-12, 1e12])
def test_extreme_temperatures_give_the_limits(temperature):
    q, k, v = inputs(1, 2, 5, 8)
    limit = attend(q, k, v, normalize=Hard()) if temperature < 1 else v.mean(-2, keepdim=True).expand_as(v)
    for name, out in runs(q, k, v, normalize=Softmax(temperature)):
        assert close(out, limit), name


# -------------------------------------------------------------------------- tracing, default dtype and device

TRACED = {
    "plain": {},
    "causal": {"mask": Causal()},
    "window": {"mask": Window(9, 3)},
    "alibi": {"mask": Causal(), "bias": ALiBi(2)},
    "dilated": {"mask": Dilated(3)},
    "not diagonal": {"mask": ~Diagonal()},
    "padding": {"mask": Padding(torch.tensor([700, 20]))},
    "documents": {"mask": Documents(torch.arange(700) // 300)},
    "entmax": {"normalize": Entmax(1.5)},
    "soft cap": {"softcap": 4.0},
}


def test_fake_tensors_give_the_output_shape():
    from torch._subclasses.fake_tensor import FakeTensorMode

    for options in TRACED.values():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            q = torch.randn(2, 2, 700, 16)
            kinds = {n: _faked(x, mode) for n, x in options.items()}
            assert attend(q, q, q, **kinds).shape == q.shape


def _faked(x, mode):
    if isinstance(x, Padding):
        return Padding(mode.from_tensor(x.lengths))
    return Documents(mode.from_tensor(x.ids)) if isinstance(x, Documents) else x


@pytest.mark.parametrize("name", TRACED)
def test_a_device_context_or_another_default_dtype_changes_nothing(name):
    q, k, v = inputs(2, 2, 700, 16, grad=True)
    true = attend(q, k, v, kernel="reference", **TRACED[name])
    with torch.device("meta"):
        for kernel, out in runs(q, k, v, **TRACED[name]):
            assert out.device.type == "cpu", kernel
            assert close(out, true), kernel
            grads(out, (q, k, v))
    torch.set_default_dtype(torch.float64)
    try:
        for kernel, out in runs(q, k, v, **TRACED[name]):
            assert out.dtype == torch.float32, kernel
            assert close(out, true), kernel
            grads(out, (q, k, v))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", TRACED)
def test_make_fx_records_the_computation_and_not_its_result(name):
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = inputs(2, 2, 700, 16)
    traced = make_fx(lambda q, k, v: attend(q, k, v, **TRACED[name]))(q, k, v)
    other = inputs(2, 2, 700, 16)
    assert close(traced(*other), attend(*other, **TRACED[name]), 1e-4)


def test_jit_trace_records_the_computation():
    q, k, v = inputs(1, 2, 300, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda q, k, v: attend(q, k, v, mask=Causal()), (q, k, v))
        other = inputs(1, 2, 300, 16)
        assert close(traced(*other), attend(*other, mask=Causal()))


def sized(name, T):
    """The same options for another length."""
    if name == "padding":
        return {"mask": Padding(torch.tensor([T, 20]))}
    return {"mask": Documents(torch.arange(T) // 300)} if name == "documents" else TRACED[name]


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_has_no_graph_break_at_any_size(name, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v, o: attend(q, k, v, **o), fullgraph=True, dynamic=dynamic, backend="aot_eager"
    )
    for T in (700, 90) if dynamic else (700,):
        q, k, v = inputs(2, 2, T, 16, grad=True)
        options = sized(name, T)
        out, true = compiled(q, k, v, options), attend(q, k, v, **options)
        assert close(out, true)
        for a, b in zip(grads(out, (q, k, v)), grads(true, (q, k, v)), strict=True):
            assert close(a, b, 1e-4)


class Layer(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mha = regard.MultiHead(16, 2, mask=mask)

    def forward(self, x):
        return self.mha(x)


@pytest.mark.parametrize("mask", [None, Causal(), Window(9, 3), ~Diagonal()])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_exported_layer_gives_the_same_output(mask, dynamic):
    layer = Layer(mask).eval()
    x = torch.randn(2, 600, 16)
    shapes = {"x": {1: torch.export.Dim("T", min=2, max=4096)}} if dynamic else None
    program = torch.export.export(layer, (x,), dynamic_shapes=shapes).module()
    for T in (600, 50) if dynamic else (600,):
        x = torch.randn(2, T, 16)
        assert close(program(x), layer(x))


@pytest.mark.parametrize("name", TRACED)
def test_torch_func_vmap_and_grad_agree_with_eager(name):
    options, (q, k, v) = TRACED[name], inputs(3, 2, 2, 700, 16)
    if name == "documents":
        q, k, v = (x[:, :1] for x in (q, k, v))
        options = {"mask": Documents(torch.arange(700) // 300)}
    true = torch.stack([attend(*x, **options) for x in zip(q, k, v, strict=True)])
    assert close(torch.func.vmap(lambda q, k, v: attend(q, k, v, **options))(q, k, v), true, 1e-4)
    f = lambda q: attend(q, k[0], v[0], **options).square().sum()  # noqa: E731
    leaf = q[0].clone().requires_grad_()
    assert close(torch.func.grad(f)(q[0]), torch.autograd.grad(f(leaf), leaf)[0], 1e-3)


def test_forward_mode_derivatives_equal_finite_differences():
    q, k, v = inputs(1, 2, 300, 8, dtype=torch.float64)
    t = torch.randn_like(q)
    for options in ({}, {"mask": Causal()}, {"normalize": Entmax(1.5)}):
        _, tangent = torch.func.jvp(lambda q: attend(q, k, v, **options), (q,), (t,))
        eps = 1e-6
        true = (attend(q + eps * t, k, v, **options) - attend(q - eps * t, k, v, **options)) / (2 * eps)
        assert close(tangent, true, 1e-5)


def test_tensor_subclasses_keep_their_type():
    class Marked(torch.Tensor):
        pass

    q, k, v = (x.as_subclass(Marked) for x in inputs(2, 2, 300, 16))
    out = attend(q, k, v, mask=Causal())
    assert type(out) is Marked
    assert close(
        out.as_subclass(torch.Tensor),
        attend(*(x.as_subclass(torch.Tensor) for x in (q, k, v)), mask=Causal()),
    )


# --------------------------------------------------------------------------------------------------- watching


@pytest.mark.parametrize("energy", [Bilinear(8, rank=4), Additive(8), Bilinear(8)])
def test_weights_of_a_call_under_autocast_can_be_computed_outside_it(energy):
    q, k, v = inputs(1, 2, 6, 8)
    with watch() as seen, torch.autocast("cpu", torch.bfloat16):
        out = attend(q, k, v, energy=energy)
        inside = seen["attend.0"].weights()
    outside = seen["attend.0"].weights()
    assert out.dtype == torch.bfloat16
    assert torch.equal(inside, outside)
    assert close(outside.double() @ v.double(), out, 0.05)


def test_a_module_used_as_energy_is_copied_when_watched():
    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, q, k):
            return self.scale * (q @ k.mT)

    module = Learned()
    q, k, v = inputs(1, 1, 4, 8)
    with watch() as seen:
        attend(q, k, v, energy=module)
    before = seen["attend.0"].weights()
    with torch.no_grad():
        module.scale.mul_(5)
    assert torch.equal(seen["attend.0"].weights(), before)


def test_two_classes_with_one_name_do_not_share_a_plan():
    def make_mask(width):
        class Mine(Mask):
            def allowed(self, grid):
                return (grid.k - grid.position()).abs() <= width

            def __repr__(self):
                return "Mine()"

        return Mine()

    q, k, v = inputs(1, 2, 140, 8)
    for width in (3, 50):
        for name, out in runs(q, k, v, mask=make_mask(width)):
            assert close(out, attend(q, k, v, mask=Window(width, width), kernel="reference")), (name, width)


def test_cached_plans_do_not_mix_signatures():
    q, k, v = inputs(2, 2, 40, 8)
    for options in (
        {},
        {"mask": Causal()},
        {"mask": Causal(offset=3)},
        {"mask": Padding([3, 40])},
        {"mask": Padding([40, 40])},
    ):
        for _ in range(2):
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                tensors = [x.to(dtype) for x in (q, k, v)]
                true = attend(*(x.double() for x in tensors), kernel="reference", **options)
                assert close(attend(*tensors, **options), true, 0.05 if dtype == torch.bfloat16 else 1e-5)
    assert explain(q, k, v).kernel == "sdpa"
    with torch.no_grad():
        attend(q, k, v)
    out = attend(q.requires_grad_(), k, v)
    assert out.requires_grad


# ------------------------------------------------------------------------------------------------ conventions


def test_tensors_and_masks_combine_from_both_sides():
    dense = torch.rand(6, 6) < 0.7
    for mask in (dense & Causal(), Causal() & dense):
        assert torch.equal(mask.dense(6, 6), dense & Causal().dense(6, 6))
    assert torch.equal((dense | Causal()).dense(6, 6), dense | Causal().dense(6, 6))


def test_a_mask_of_two_axes_is_queries_by_keys_and_the_error_suggests_padding():
    q, k, v = inputs(3, 2, 5, 8)
    with pytest.raises(ShapeError, match=r"\(batch, Tk\), write mask\[:, None, None, :\] or Padding"):
        attend(q, k, v, mask=torch.ones(3, 5, dtype=torch.bool))


@pytest.mark.parametrize(
    "make", [lambda x: torch.nested.nested_tensor([x[0], x[1]]), lambda x: x[0, 0].to_sparse()]
)
def test_nested_and_sparse_tensors_are_refused(make):
    q = torch.randn(2, 2, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = make(q)
    with pytest.raises(OptionError, match="must be a plain tensor"):
        attend(x, q, q)


def test_weights_are_those_of_the_reference_in_the_dtype_of_the_call():
    q, k, _ = inputs(1, 2, 5, 8, dtype=torch.bfloat16)
    assert weights(q, k).dtype == torch.bfloat16


@pytest.mark.parametrize("options", [{}, {"mask": Window(9, 9)}, {"bias": RelativeVectors(8)}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_derivatives_when_one_input_is_a_function_of_another(options, dtype):
    leaf = torch.randn(1, 2, 130, 8, dtype=dtype, requires_grad=True)
    options = {n: x.to(dtype) if isinstance(x, nn.Module) else x for n, x in options.items()}
    results = []
    for name in ["reference", None, *CHECKED]:
        k = leaf.sin()
        try:
            out = attend(leaf, k, k.cos(), kernel=name, **options)
        except KernelError:
            continue
        (g,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        results.append((name, torch.autograd.grad(g.square().sum(), leaf)[0]))
    reference = results[0][1]
    for name, second in results:
        assert close(second / reference.abs().max(), reference / reference.abs().max(), 1e-4), name


@pytest.mark.parametrize("far", [0.0, 100.0, 1e4])
def test_distances_of_vectors_far_from_the_origin_keep_their_digits(far):
    q, k, v = (torch.randn(2, 2, 130, 16) * 0.3 for _ in range(3))
    q, k = (q + far).requires_grad_(), (k + far).requires_grad_()
    exact = [x.detach().double().requires_grad_() for x in (q, k)]
    true = attend(*exact, v.double(), energy=Distance(), mask=Causal(), kernel="reference")
    truth = grads(true, exact)
    for name, out in runs(q, k, v, energy=Distance(), mask=Causal()):
        assert close(out, true, 1e-5), name
        for a, b in zip(grads(out, (q, k)), truth, strict=True):
            assert close(a, b, 1e-4), name


@pytest.mark.parametrize("Tq", [1, 2, 4, 5, 40])
@pytest.mark.parametrize("size", [1.0, 60.0])
@pytest.mark.parametrize("learned_bias", [False, True])
def test_additive_kernels_agree_for_few_and_many_queries(Tq, size, learned_bias):
    from regard.attention.energy import ProjectedAdditive

    energy, exact_energy = Additive(16, 24, hidden=70), Additive(16, 24, hidden=70).double()
    exact_energy.load_state_dict(energy.state_dict())
    q, k, v = torch.randn(3, 1, Tq, 16) * size, torch.randn(3, 1, 29, 24) * size, torch.randn(3, 1, 29, 32)
    bias = torch.randn(Tq, 29)
    results = {}
    for name, e, dtype in (
        ("reference", exact_energy, torch.float64),
        ("cpp", energy, torch.float32),
        ("additive", energy, torch.float32),
    ):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, bias)]
        options = {
            "mask": Padding([29, 3, 1]),
            "bias": leaves[3] if learned_bias else None,
            "softcap": 20.0 if learned_bias else None,
        }
        projected = e.Wk(leaves[1])
        try:
            out = attend(leaves[0], projected, leaves[2], energy=ProjectedAdditive(e), kernel=name, **options)
        except KernelError:
            continue
        with_gradient = [*leaves[: 4 if learned_bias else 3], e.v, e.Wq.weight, e.Wk.weight]
        results[name] = (out, *torch.autograd.grad(out.square().sum(), with_gradient))
    assert len(results) > 1
    for name, result in results.items():
        for a, b in zip(result, results["reference"], strict=True):
            assert close(a / (1 + b.abs().max()), b / (1 + b.abs().max()), 2e-5), name
