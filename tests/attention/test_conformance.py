"""Every kernel on every class of the conformance suite. The automatic choice never refuses a call.

Covers additive.py, cpp.py, distances.py, flex.py, kernel.py, reference.py, sdpa.py, tiled.py.
"""

import functools
import os
import random

import pytest
import torch

import regard
from regard import Causal, Padding
from regard.attention.kernels import additive, native, tiled
from regard.conformance import CLASSES, Refused, case, check
from regard.conformance import backends as b
from regard.conformance.cases import _draw_inputs

LONG = os.environ.get("REGARD_LONG") == "1"
# Number of cases of the slow classes.
FEW = {"compile": 3, "export": 8, "threads": 15, "second derivative": 25, "long sequences": 20}
KERNELS = [name for name in b.KERNEL_BACKENDS if name != "flex"]  # flex compiles for every kind


@functools.cache
def kernel_verdict(name, seed, kernel):
    """The verdict on a case and its description; two tests need those of the first cases."""
    result = check(case(name, seed), b.KERNEL_BACKENDS[kernel])
    return result.verdict, f"{result.case}: {result.verdict}, {result.detail}"


def seeds(name, cases):
    """The numbers of the cases of a class that are drawn."""
    count = min(cases, FEW.get(name, cases))
    first, count = (random.randrange(10**9), 10 * count) if LONG else (0, count)
    return range(first, first + count)


def failures(name, backend, cases, refusals=True):
    """The drawn cases of a class that a backend gets wrong or, without `refusals`, refuses."""
    results = [check(case(name, seed), backend) for seed in seeds(name, cases)]
    assert results, f"no cases of {name!r}"
    accepted = {"pass", "refused"} if refusals else {"pass"}
    return [f"{r.case}: {r.verdict}, {r.detail}" for r in results if r.verdict not in accepted]


@pytest.mark.parametrize("name", CLASSES)
def test_the_automatic_choice_is_right_on_every_input_and_never_refuses(name):
    refusals = name == "in-place change"  # there a refusal is the right answer
    assert failures(name, b.regard, 50, refusals) == []


@pytest.mark.parametrize("name", CLASSES)
def test_the_automatic_choice_without_a_compiler_is_right_and_never_refuses(name, monkeypatch):
    monkeypatch.setattr(native, "unavailable", lambda: "no C++ compiler was found")
    regard.attention.plan.PREPARED.clear()
    assert failures(name, b.regard, 15, name == "in-place change") == []
    regard.attention.plan.PREPARED.clear()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", CLASSES)
def test_a_kernel_is_right_or_refuses(kernel, name):
    drawn = seeds(name, 6 if kernel == "reference" else 18)  # the reference is also the truth of all others
    verdicts = [kernel_verdict(name, seed, kernel) for seed in drawn]
    assert verdicts and [text for verdict, text in verdicts if verdict not in ("pass", "refused")] == []


@pytest.mark.parametrize(
    "name", ["all options", "masks", "batch axes", "second derivative", "masked NaN", "in-place change"]
)
def test_small_tiles_that_are_recomputed_in_the_backward_pass_are_right(name, monkeypatch):
    monkeypatch.setattr(tiled, "MAX_SAVED_PAIRS", 0)
    monkeypatch.setattr(tiled, "TILE_ELEMENTS", {"cpu": 2048, "cuda": 2048})
    monkeypatch.setattr(additive, "BLOCK", 512)
    for kernel in ("tiled", "additive"):
        assert failures(name, b.KERNEL_BACKENDS[kernel], 25) == []


# Refusals among 6 cases of each class; these numbers may only fall.
REFUSED = {"reference": 0, "tiled": 22, "sdpa": 46, "cpp": 92, "additive": 143}


@pytest.mark.parametrize("kernel", REFUSED)
def test_a_kernel_refuses_no_more_cases_than_before(kernel):
    if kernel == "cpp" and native.unavailable() is not None:
        pytest.skip(f"the C++ kernel cannot be used: {native.unavailable()}")
    classes = [name for name in CLASSES if name not in ("compile", "export", "threads", "in-place change")]
    result = sum(kernel_verdict(name, seed, kernel)[0] == "refused" for name in classes for seed in range(6))
    assert result <= REFUSED[kernel], f"{kernel} refuses {result} of {6 * len(classes)} cases"


def test_the_suite_detects_broken_functions():
    def ignores_the_last_key(query, key, value, mask=None):
        return (
            regard.attend(query, key[..., :-1, :], value[..., :-1, :])
            if mask is None
            else regard.attend(query, key, value, mask=mask)
        )

    def reads_rows_as_if_contiguous(query, key, value, mask=None):
        flat = (
            torch.as_strided(key, key.shape, key.contiguous().stride())
            if key.stride(-1) != 1 and key.numel()
            else key
        )
        return regard.attend(query, flat, value, mask=mask)

    def forgets_second_derivatives(query, key, value, **options):
        return _Constant.apply(query, key, value)

    verdicts = [check(case("plain", seed), ignores_the_last_key).verdict for seed in range(10)]
    assert "wrong" in verdicts
    verdicts = [check(case("strides", seed), reads_rows_as_if_contiguous).verdict for seed in range(40)]
    assert "wrong" in verdicts
    twice = _draw_inputs(random.Random(0), torch.float64)
    twice.action = "differentiate twice"
    assert check(twice, forgets_second_derivatives).verdict == "wrong"


class _Constant(torch.autograd.Function):
    """Like kernels whose backward pass is once_differentiable: after a sum, gradients are constants."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return regard.attend(q, k, v)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            return torch.autograd.grad(regard.attend(*inputs), inputs, grad)


def test_a_missing_option_and_an_exception_are_refusals_with_a_reason():
    def plain(query, key, value):
        return regard.attend(query, key, value)

    masked = next(c for c in (case("plain", seed) for seed in range(20)) if "mask" in c.options)
    result = check(masked, plain)
    assert (result.verdict, result.detail) == ("refused", "it has no option mask")

    def none(query, key, value, mask=None):
        raise Refused("not today")

    assert check(masked, none).detail == "not today"


def test_a_case_is_reproducible_and_does_not_change_torchs_generator():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    a, c = case("all options", 7), case("all options", 7)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert str(a) == str(c)
    assert all(torch.equal(x, y) for x, y in zip(a.leaves.values(), c.leaves.values(), strict=True))


def test_finite_padding_equals_plain_padding():
    q, k, v = (torch.randn(3, 2, 6, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    lengths = torch.tensor([1, 4, 6])
    result = [
        regard.attend(q, k, v, mask=Padding(lengths, finite=finite), kernel="sdpa")
        for finite in (True, False)
    ]
    torch.testing.assert_close(*result)
    for x, y in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in result), strict=True):
        torch.testing.assert_close(x, y)


def test_a_reused_padding_notices_that_its_lengths_changed():
    q, k, v = (torch.randn(2, 2, 6, 8) for _ in range(3))
    lengths = torch.tensor([2, 6])
    mask = Padding(lengths, finite=True)
    for _ in range(2):
        first = regard.attend(q, k, v, mask=mask)
    lengths.fill_(5)
    second = regard.attend(q, k, v, mask=mask)
    torch.testing.assert_close(second, regard.attend(q, k, v, mask=Padding([5, 5]), kernel="reference"))
    assert not torch.allclose(first, second)
    torch.testing.assert_close(
        regard.attend(q, k[..., :4, :], v[..., :4, :], mask=Padding([3, 3])),
        regard.attend(q, k, v, mask=Padding([3, 3])),
    )
    assert regard.attend(q, k, v, mask=mask & Causal()).shape == q.shape
