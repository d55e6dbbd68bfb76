"""Every path against the reference in float64, outputs and all gradients, by one rule:

    error(path) ≤ 2 · (error of the reference run in the path's own dtype + eps · max|reference|)

For gradients the last term counts the size of the energies too, eps · max|reference| · (1 + max|energy|): a fused backward pass
rebuilds a weight as exp(energy − log Σ exp), and rounding numbers of that size costs so much. torch's own SDPA needs it.
max|reference| is that of the weighted |values|, since values of size 1 may cancel to almost nothing, and of all gradients.
"""

from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.attention.kernels import additive, tiled
from regard.attention.mask import Padding
from regard.attention.plan import KERNELS
from tests.attention.drawn import Drawn, calls

PATHS = [name for name in KERNELS if name not in ("reference", "flex")]


def allowed(drawn: Drawn, kernel: str | None, dtype: torch.dtype) -> bool:
    inputs, options = drawn.at(dtype)
    try:
        regard.explain(*inputs.values(), **options, kernel=kernel)
    except regard.KernelError:
        return False
    return True


def check(drawn: Drawn, kernel: str | None, dtype: torch.dtype, grad: torch.Tensor) -> None:
    truth, plain, path = (drawn.run(k, d, grad) for k, d in (("reference", torch.float64), ("reference", dtype), (kernel, dtype)))
    moved = drawn.nudged(torch.finfo(dtype).eps).run("reference", torch.float64, grad)
    size = drawn.largest_energy()
    truth_of_sizes = drawn.sizes().run("reference", torch.float64)["out"].abs().max().item() if truth["out"].numel() else 0.0
    largest = max(truth_of_sizes, *(x.abs().max().item() for x in truth.values() if x.numel()))
    for name, true in truth.items():
        if not true.numel():
            continue
        error, base, condition = ((x[name].double() - true).abs().max().item() for x in (path, plain, moved))
        slack = torch.finfo(dtype).eps * largest * allowance(drawn, true, dtype) * (1 if name == "out" else 1 + size)
        bound = 2 * (max(base, condition) + slack)
        assert error <= bound, f"{kernel} {name}: {error:.3g} against {base:.3g}, {condition:.3g} + {slack:.3g}"


def allowance(drawn: Drawn, true: torch.Tensor, dtype: torch.dtype) -> float:
    """How many eps · max|reference| stand beside the reference's own error.

    One, as the rule says, where that error is a fair sample. In a tensor of a few numbers, or over a few keys, it can be 0 by
    luck (so the change of the truth when every input moves by eps counts too), and in float64 the reference is the truth itself:
    rounding in another order has to be allowed for.
    """
    if dtype == torch.float64:
        return 500
    many = true.numel() >= 256 and drawn.tensors["query"].shape[-1] >= 4 and drawn.tensors["key"].shape[-2] >= 8
    return 1 if many else 8


@pytest.mark.parametrize("kernel", [*PATHS, None])
@settings(max_examples=200)
@given(
    drawn=calls(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64]),
    small=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_path_is_as_exact_as_the_reference_in_its_own_dtype(kernel, drawn, dtype, small, seed):
    if isinstance(drawn.options["normalize"], regard.Hard):
        dtype = torch.float64  # it jumps between nearly equal energies
    if not allowed(drawn, kernel, dtype):
        return
    q, v = drawn.tensors["query"], drawn.tensors["value"]
    grad = torch.randn(*q.shape[:-1], v.shape[-1], generator=torch.Generator().manual_seed(seed))
    with small_tiles() if small else nullcontext():
        check(drawn, kernel, dtype, grad)


@contextmanager
def small_tiles():
    """Tiles of a few rows, computed again in the backward pass, as for calls far larger than these."""
    with (
        mock.patch.object(tiled, "KEPT", 0),
        mock.patch.object(tiled, "CACHE", {"cpu": 2048, "cuda": 2048}),
        mock.patch.object(additive, "BLOCK", 512),
    ):
        yield


def test_a_sound_padding_gives_what_padding_gives_and_costs_no_passes():
    q, k, v = (torch.randn(3, 2, 6, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    lengths = torch.tensor([1, 4, 6])
    found = [regard.attend(q, k, v, mask=Padding(lengths, finite=finite), kernel="sdpa") for finite in (True, False)]
    torch.testing.assert_close(*found)
    for a, b in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in found), strict=True):
        torch.testing.assert_close(a, b)
    names = [{node.name() for node in _nodes(out.grad_fn)} for out in found]
    assert any("MaskedFill" in name for name in names[1]) and not any("MaskedFill" in name for name in names[0])


def _nodes(node):
    return {node, *(x for before, _ in node.next_functions if before is not None for x in _nodes(before))}
