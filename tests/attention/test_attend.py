"""The conventions of `attend` (docs/conventions.md), on every kernel that can run the call.

Also covers call.py.
"""

import math

import pytest
import torch

import regard
from regard import Additive, ALiBi, Causal, Padding, ScaledDot, Softmax, Window, attend, weights
from regard.attention import Dense, Documents, Dot, Energy, Hard, Mask, Raw
from regard.attention.kernels import tiled
from regard.conformance import case
from regard.errors import KernelError

KERNELS = ["reference", "cpp", "sdpa", "tiled", "additive", None]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def qkv(*shape, dtype=torch.float64, grad=False):
    return tuple(torch.randn(*shape, dtype=dtype, requires_grad=grad) for _ in range(3))


def options_of(seed):
    """Inputs and options drawn by the conformance suite, in float64."""
    _, tensors, options = case("all options", seed).make(torch.float64)
    return [x.detach() for x in tensors.values()], options


def attend_or_skip(kernel, q, k, v, **options):
    """attend by a kernel, or skip the test if the kernel refuses the call."""
    try:
        return attend(q, k, v, kernel=kernel, **options)
    except KernelError as error:
        pytest.skip(str(error))


def test_a_small_example_equals_the_formula():
    q, k, v = (
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        torch.tensor([[10.0], [20.0]]),
    )
    a = math.exp(1 / math.sqrt(2)) / (math.exp(1 / math.sqrt(2)) + 1)
    assert attend(q, k, v).item() == pytest.approx(10 * a + 20 * (1 - a))
    assert attend(q, k, v, energy=Dot(), normalize=Raw()).item() == pytest.approx(10.0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_output_has_the_dtype_of_the_inputs(kernel, dtype):
    q, k, v = qkv(2, 3, 70, 8, dtype=dtype)
    energy = Additive(8).to(dtype) if kernel == "additive" else ScaledDot()
    out = attend_or_skip(kernel, q, k, v, energy=energy, mask=Causal())
    truth = attend(
        q.double(),
        k.double(),
        v.double(),
        energy=energy.double() if kernel == "additive" else energy,
        mask=Causal(),
    )
    assert out.dtype == dtype
    assert (out.double() - truth).abs().max() < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(0, 2, 5, 4), (2, 0, 5, 4), (2, 2, 0, 4)])
def test_empty_batches_heads_and_sequences_give_empty_or_zero_output(kernel, shape):
    q, k, v = qkv(*shape, dtype=torch.float32)
    out = attend_or_skip(kernel, q, k, v, energy=Additive(4) if kernel == "additive" else ScaledDot())
    assert out.shape == q.shape


@pytest.mark.parametrize("kernel", KERNELS)
def test_queries_with_no_keys_at_all_get_zeros(kernel):
    q, k = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 0, 4)
    out = attend_or_skip(
        kernel, q, k, k, energy=Additive(4) if kernel == "additive" else ScaledDot(), mask=Causal()
    )
    assert out.shape == (2, 2, 5, 4)
    assert (out == 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_query_unequal_lengths_and_widths_work(kernel):
    q, k, v = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 77, 8), torch.randn(2, 3, 77, 5)
    energy = Additive(8) if kernel == "additive" else ScaledDot()
    out = attend_or_skip(kernel, q, k, v, energy=energy, mask=Causal())
    assert torch.allclose(
        out, attend(q, k, v, energy=energy, kernel="reference"), atol=1e-5
    )  # the last query sees all keys


@pytest.mark.parametrize("kernel", KERNELS)
def test_batch_and_heads_broadcast(kernel):
    q, k, v = torch.randn(2, 1, 4, 6, 8), torch.randn(3, 1, 9, 8), torch.randn(1, 9, 5)
    energy = Additive(8) if kernel == "additive" else ScaledDot()
    out = attend_or_skip(kernel, q, k, v, energy=energy)
    full = attend(
        q.expand(2, 3, 4, 6, 8),
        k.expand(2, 3, 4, 9, 8),
        v.expand(2, 3, 4, 9, 5),
        energy=energy,
        kernel="reference",
    )
    assert out.shape == (2, 3, 4, 6, 5)
    assert torch.allclose(out, full, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_grouped_key_heads_interleave_as_in_torch(kernel):
    q, k, v = torch.randn(2, 6, 70, 8), torch.randn(2, 2, 70, 8), torch.randn(2, 2, 70, 8)
    energy = Additive(8) if kernel == "additive" else ScaledDot()
    out = attend_or_skip(kernel, q, k, v, energy=energy, mask=Causal())
    repeated = attend(
        q,
        k.repeat_interleave(3, 1),
        v.repeat_interleave(3, 1),
        energy=energy,
        mask=Causal(),
        kernel="reference",
    )
    assert torch.allclose(out, repeated, atol=1e-5)
    if kernel != "additive":
        torchs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        assert torch.allclose(out, torchs, atol=1e-5)


def test_inputs_without_batch_and_heads_axes_are_accepted():
    q, k, v = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 2)
    assert attend(q, k, v, mask=Window(1, 1)).shape == (3, 2)
    assert weights(q, k, bias=ALiBi(1)).shape == (3, 5)


def test_the_order_is_energy_bias_cap_mask_normaliser_gate():
    q, k, v = qkv(1, 2, 6, 4)
    bias, gate, allowed = torch.randn(2, 6, 6).double(), torch.rand(6, 6).double(), torch.rand(6, 6) < 0.7
    allowed[0] = True
    e = q @ k.transpose(-1, -2) / 2 + bias
    e = 3 * torch.tanh(e / 3)
    w = torch.softmax(e.masked_fill(~allowed, -math.inf) / 0.7, -1).nan_to_num() * gate
    out = attend(
        q, k, v, bias=bias, softcap=3.0, mask=allowed, normalize=Softmax(0.7), gate=gate, kernel="reference"
    )
    assert torch.allclose(out, w @ v)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_without_visible_keys_gives_zeros_and_zero_gradient(kernel):
    q, k, v = qkv(2, 2, 80, 8, dtype=torch.float32, grad=True)
    allowed = torch.rand(2, 1, 80, 80) < 0.5
    allowed[0, 0, 3] = False
    allowed[1, :, 70:] = False
    for mask in (Dense(allowed), Padding([0, 60]) & Causal(), Causal(offset=-5)):
        energy = Additive(8) if kernel == "additive" else ScaledDot()
        out = attend_or_skip(kernel, q, k, v, energy=energy, mask=mask)
        empty = ~mask.dense(80, 80).expand(2, 1, 80, 80).any(-1)[:, 0]  # (batch, query)
        assert empty.any()
        assert (out.transpose(1, 2)[empty] == 0).all()
        dq, dk, dv = torch.autograd.grad(out.square().sum() + out.sum(), (q, k, v))
        assert all(x.isfinite().all() for x in (dq, dk, dv))
        assert (dq.transpose(1, 2)[empty] == 0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kernel", KERNELS)
def test_nan_in_a_key_that_no_query_sees_changes_neither_outputs_nor_gradients(kernel, value):
    finite = [torch.randn(2, 2, 90, 8) for _ in range(3)]
    with_value = [x.clone() for x in finite]
    for x in with_value[1:]:
        x[0, :, 50:] = value
        x[1, :, 75:] = value
    energy = Additive(8) if kernel == "additive" else ScaledDot()
    dense = Padding([50, 75]).dense(90, 90).expand(2, 1, 90, 90)
    for mask in (Padding([50, 75]), Dense(dense), Padding([50, 75]) & Causal()):
        results = []
        for q, k, v in (finite, with_value):
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            out = attend_or_skip(kernel, *inputs, energy=energy, mask=mask)
            results.append((out, *torch.autograd.grad(out.sum(), inputs)))
        for a, b in zip(*results, strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_on_the_reference_nan_in_a_key_reaches_only_the_rows_that_see_it():
    q, k, v = qkv(1, 1, 6, 4)
    k[..., 3, :] = math.nan
    assert attend(q, k, v, mask=Causal(), kernel="reference").isnan().any(-1).tolist() == [
        [[False, False, False, True, True, True]]
    ]
    k[..., 3, :], v[..., 3, 0] = 0.0, math.inf
    assert (
        attend(q, k, v, mask=Causal(), kernel="reference").isfinite().all(-1)[0, 0].tolist()
        == [True] * 3 + [False] * 3
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_minus_infinity_in_a_bias_masks(kernel):
    q, k, v = qkv(1, 2, 70, 8, dtype=torch.float32)
    allowed = torch.rand(70, 70) < 0.5
    allowed[7] = False
    if kernel == "additive":
        pytest.skip("the additive kernel runs biases by the plain tiles")
    k[:, :, 11], allowed[:, 11] = math.nan, False
    out = attend_or_skip(kernel, q, k, v, bias=torch.zeros(70, 70).masked_fill(~allowed, -math.inf))
    assert torch.allclose(out, attend(q, k, v, mask=allowed, kernel="reference"), atol=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_permuting_the_keys_changes_nothing(seed):
    (q, k, v), drawn = options_of(seed)
    options = drawn | {"mask": None, "bias": None, "gate": None}
    if isinstance(options.get("normalize"), Hard):
        options["normalize"] = Softmax()  # Hard takes the first of equal energies, so order matters
    order = torch.randperm(k.shape[-2])
    a, b = attend(q, k, v, **options), attend(q, k[..., order, :], v[..., order, :], **options)
    assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_deleting_masked_keys_changes_nothing(seed):
    (q, k, v), drawn = options_of(seed)
    keep = torch.rand(k.shape[-2]) < 0.6
    keep[0] = True
    options = drawn | {"bias": None, "gate": None}
    a = attend(q, k, v, **(options | {"mask": keep[None, :]}))
    b = attend(q, k[..., keep, :], v[..., keep, :], **(options | {"mask": None}))
    assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_batch_and_padding_change_nothing(seed):
    (q, k, v), drawn = options_of(seed)
    options = drawn | {"bias": None, "gate": None, "mask": Padding([k.shape[-2]] * len(k))}
    together = attend(q, *(torch.nn.functional.pad(x, (0, 0, 0, 9), value=7.0) for x in (k, v)), **options)
    for i in range(len(q)):
        alone = attend(q[i : i + 1], k[i : i + 1], v[i : i + 1], **(options | {"mask": None}))
        assert torch.allclose(together[i : i + 1], alone, atol=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_causal_outputs_do_not_depend_on_later_tokens(seed):
    (q, k, v), drawn = options_of(seed)
    T = min(q.shape[-2], k.shape[-2])
    q, k, v = (x[..., :T, :] for x in (q, k, v))
    options = drawn | {"mask": Causal(), "bias": None, "gate": None}
    n = T // 2 + 1
    full, prefix = attend(q, k, v, **options), attend(*(x[..., :n, :] for x in (q, k, v)), **options)
    assert torch.allclose(full[..., :n, :], prefix, atol=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_weights_times_values_is_the_output(seed):
    (q, k, v), options = options_of(seed)
    w = weights(q, k, **options)
    repeated = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    assert torch.allclose(w @ repeated, attend(q, k, v, **options), atol=1e-9)


def test_packed_documents_equal_each_document_alone():
    lengths = [5, 90, 1, 40]
    q, k, v = qkv(1, 2, sum(lengths), 8, dtype=torch.float32)
    packed = attend(q, k, v, mask=Documents.of_lengths(lengths) & Causal())
    separate = [
        attend(*(x.split(lengths, -2)[i] for x in (q, k, v)), mask=Causal(), kernel="reference")
        for i in range(4)
    ]
    assert torch.allclose(packed, torch.cat(separate, -2), atol=1e-5)


def test_causal_aligns_the_last_query_with_the_last_key():
    q, k = torch.randn(1, 2, 4), torch.randn(1, 5, 4)
    assert (weights(q, k, mask=Causal()) > 0).tolist() == [[[True] * 4 + [False], [True] * 5]]
    assert (weights(q, k, mask=Causal(offset=0)) > 0).tolist() == [
        [[True] + [False] * 4, [True] * 2 + [False] * 3]
    ]


def test_a_mask_keeps_row_sums_of_1_and_a_gate_does_not():
    """The lecture's restricted attention in two forms: masked before the softmax, or multiplied after it."""
    q, k, _ = qkv(1, 1, 12, 4)
    before = weights(q, k, mask=Window.centered(4))
    after = weights(q, k, gate=Window.centered(4))
    assert torch.allclose(before.sum(-1), torch.ones_like(before.sum(-1)))
    assert (after.sum(-1) < 1).all()
    assert (before > 0).sum(-1)[0, 0, 5] == 5  # K + 1 keys for even K
    band = (torch.arange(12)[:, None] - torch.arange(12)).abs() <= 2
    assert torch.allclose(after, torch.softmax(q @ k.transpose(-1, -2) / 2, -1) * band)


def test_gradients_of_gradients_on_the_reference_path():
    q, k, v = qkv(1, 2, 4, 3, grad=True)
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: attend(q, k, v, mask=Causal(), bias=ALiBi(2), kernel="reference"), (q, k, v)
    )


@pytest.mark.parametrize("kernel", ["reference", "tiled", None])
@pytest.mark.parametrize("max_kept", [0, 1 << 23])
def test_dropout_scales_and_repeats_with_the_seed(kernel, max_kept, monkeypatch):
    monkeypatch.setattr(
        tiled, "MAX_SAVED_PAIRS", max_kept
    )  # 0: the backward pass draws the dropout mask again
    monkeypatch.setattr(tiled, "TILE_ELEMENTS", {"cpu": 8 * 2000})
    q, k = torch.zeros(1, 1, 64, 4), torch.zeros(1, 1, 2000, 4)
    v = torch.ones(1, 1, 2000, 1).requires_grad_()
    torch.manual_seed(5)
    a = attend(q, k, v, dropout=0.4, kernel=kernel)
    torch.manual_seed(5)
    b = attend(q, k, v, dropout=0.4, kernel=kernel)
    assert torch.equal(a, b)
    assert a.mean().item() == pytest.approx(1.0, abs=0.02)
    assert a.std() > 0.005
    grad = torch.autograd.grad(b.sum(), v)[0]  # the same weights are dropped in the backward pass
    assert (grad * v).sum().item() == pytest.approx(b.sum().item(), rel=1e-4)


def test_autocast_computes_in_its_dtype():
    q, k, v = qkv(2, 2, 70, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        for options in ({}, {"mask": Causal()}, {"energy": Additive(8)}, {"normalize": regard.Sparsemax()}):
            out = attend(q, k, v, **options)
            assert out.dtype == torch.bfloat16
            assert torch.allclose(
                out.float(), attend(q, k, v, **options, kernel="reference").float(), atol=0.05
            )
    layer = regard.MultiHead(16, 2)
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(2, 5, 16)).float().sum().backward()
    assert layer.Wq.weight.grad.dtype == torch.float32


def test_a_user_defined_mask_runs_on_every_kernel():
    class SameParity(Mask):
        """A query sees the keys of its own parity."""

        def allowed(self, grid):
            return (grid.q + grid.k) % 2 == 0

    q, k, v = qkv(1, 2, 200, 4, dtype=torch.float32)
    truth = attend(q, k, v, mask=torch.eye(2, dtype=torch.bool).repeat(100, 100), kernel="reference")
    for kernel in ("reference", "sdpa", "tiled", None):
        with regard.watch() as seen:
            out = attend(q, k, v, mask=SameParity() | Window(0), kernel=kernel)
        assert torch.allclose(out, truth, atol=1e-5)
        assert seen["attend.0"].weights(query=3)[..., 0].max() == 0
    assert (SameParity().blocks(200, 200, 64) == 1).all()  # unknown is PARTIAL


def test_the_cpp_kernel_gives_the_same_bits_for_any_number_of_threads():
    q, k, v = qkv(1, 2, 300, 16, dtype=torch.float32, grad=True)
    bias = torch.randn(1, 300, 300, requires_grad=True)
    energy = Additive(16)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            a = attend_or_skip("cpp", q, k, v, mask=Causal(), bias=bias)
            b = attend_or_skip("cpp", q, k, v, energy=energy)
            grads = torch.autograd.grad(a.sum() + b.square().sum(), (q, k, v, bias, energy.v))
            results.append((a, b, *grads))
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_functions_run_on_the_reference_and_subclasses_in_tiles():
    q, k, v = qkv(1, 2, 300, 4, dtype=torch.float32)
    centred = lambda q, k: q @ (k - k.mean(-2, keepdim=True)).transpose(-1, -2)  # noqa: E731
    shared = lambda e: e.sigmoid() / e.shape[-1]  # noqa: E731
    for options in ({"energy": centred}, {"normalize": shared}):
        options["mask"] = Window.centered(20)
        assert regard.explain(q, k, v, **options).kernel == "reference"
        with pytest.raises(KernelError, match="a function may depend on the full matrix"):
            attend(q, k, v, kernel="tiled", **options)

    class Cubed(Energy):
        def __call__(self, query, key):
            return (query @ key.transpose(-1, -2)) ** 3

    a, b = (
        attend(q, k, v, energy=Cubed(), mask=Window.centered(20), kernel=kernel)
        for kernel in (None, "reference")
    )
    assert torch.allclose(a, b, atol=1e-5)
    assert regard.explain(q, k, v, energy=Cubed(), mask=Window.centered(20)).kernel == "tiled"


def test_functions_can_be_energies_biases_and_normalisers():
    q, k, v = qkv(1, 2, 5, 4)
    out = attend(
        q, k, v,
        energy=lambda q, k: q.sum(-1)[..., :, None] - k.sum(-1)[..., None, :],
        bias=lambda t, s: (t == s) * 2.0,
        normalize=lambda e: e.clamp(0, 1),
    )  # fmt: skip
    e = q.sum(-1)[..., :, None] - k.sum(-1)[..., None, :] + 2 * torch.eye(5)
    assert torch.allclose(out, e.clamp(0, 1) @ v)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("mask", [None, Causal()])
def test_repeated_calls_with_grouped_heads_equal_the_first(key_heads, mask):
    """The first call of a signature takes the full path, later ones the kernel's shortcut, also recorded."""
    q = torch.randn(2, 4, 5, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, key_heads, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    truth = attend(q, k, v, mask=mask, kernel="reference")

    def grads(out):
        first = torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=True)
        return [*first, *torch.autograd.grad(sum(x.square().sum() for x in first), (q, k, v))]

    true_grads = grads(truth)
    for _ in range(3):
        out = attend(q, k, v, mask=mask, kernel="sdpa")
        torch.testing.assert_close(out, truth)
        torch.testing.assert_close(grads(out), true_grads)
    with torch.no_grad(), regard.watch(torch.nn.Linear(2, 2)) as seen:  # intercepts nothing
        for _ in range(3):
            out = attend(q, k, v, mask=mask, kernel="sdpa")
            torch.testing.assert_close(out, truth.detach())
        expected = weights(q, k, mask=mask)
    assert list(seen) == ["attend.0", "attend.1", "attend.2"]
    torch.testing.assert_close(seen["attend.2"].weights(), expected)
