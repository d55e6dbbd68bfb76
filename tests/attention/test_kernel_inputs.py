"""Inputs of any stride, shape and dtype on every kernel. Covers kernel_inputs.py."""

import warnings

import pytest
import torch

from regard import (
    ALiBi,
    Causal,
    Padding,
    Window,
    attend,
)
from regard.attention import (
    Dense,
    Documents,
    Prefix,
)
from regard.errors import KernelError, OptionError, ShapeError
from tests.attention.every_kernel import CHECKED, close, grads, inputs, runs


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
