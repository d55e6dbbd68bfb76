"""The Triton kernels without a GPU, by Triton's interpreter on the CPU. On a GPU: test_cuda.py.

Covers triton_band.py, triton_launch.py.
"""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard import ALiBi, Causal, Padding, ScaledDot, Sparsemax, Window
from regard.attention import Documents, Dot, Sigmoid, kernel_inputs
from regard.attention.call import make_call
from regard.attention.kernels import sdpa, short, triton
from regard.attention.machine import Machine
from regard.attention.plan import make_plan
from tests.triton_interpreter import run_interpreted

HOPPER = Machine("cuda", (9, 0))


def test_the_interpreted_kernel_equals_the_reference_with_nan_in_unseen_positions():
    process = run_interpreted(Path(__file__).with_name("triton_cases.py"))
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(triton, "is_installed", lambda: True)


def plan(dtype=torch.bfloat16, T=600, D=64, **options):
    q, k, v = (torch.empty(2, 4, T, D, dtype=dtype) for _ in range(3))
    return make_plan(make_call(q, k, v, **options), machine=HOPPER)


def test_bands_and_padding_in_half_precision_use_triton_on_a_gpu():
    lengths = torch.tensor([5, 600])
    for options in (
        {"mask": Window(9, 9)},
        {"mask": Window(9, 9) & Causal()},
        {"mask": Padding(lengths)},
        {"mask": Causal() & Padding(lengths)},
        {"mask": Causal(), "bias": ALiBi(4)},
        {"bias": ALiBi(4)},
    ):
        assert plan(**options).kernel == "triton", options


def test_sigmoid_uses_triton_also_where_sdpa_is_faster_for_a_softmax():
    lengths = torch.tensor([5, 600])
    for options in ({}, {"mask": Causal()}, {"mask": Padding(lengths)}, {"bias": ALiBi(4)}):
        assert plan(normalize=Sigmoid(), **options).kernel == "triton", options
    short = plan(T=16, normalize=Sigmoid())
    assert short.kernel == "triton" and "softmax only" in short.not_used["triton-short"]
    assert plan(dtype=torch.float32, normalize=Sigmoid()).kernel != "triton"


class MySigmoid(Sigmoid):
    def rows(self, scores):
        return torch.sigmoid(2 * scores)


def test_a_subclass_of_sigmoid_is_not_taken_for_it():
    assert "not by MySigmoid" in plan(normalize=MySigmoid()).not_used["triton"]


def test_there_is_no_shortcut_for_a_scale_that_is_not_positive():
    tensors = [torch.empty(2, 4, 60, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    for scale, expected in ((0.3, True), (-0.3, False), (0.0, False)):
        call = make_call(*tensors, mask=Window(9, 9), energy=Dot(scale))
        assert (kernel_inputs.plain_scale(call) is not None) == expected
        for kernel in (triton.Triton(), short.TritonShort(), sdpa.Sdpa()):
            call.mask = None if kernel.name == "sdpa" else call.mask
            assert (kernel.shortcut(call, HOPPER) is not None) == expected, kernel.name


def test_padded_batches_in_training_use_sdpa_unless_a_cuda_graph_is_captured():
    q, k, v = (torch.empty(2, 4, 60, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    call = make_call(q, k, v, mask=Padding(torch.tensor([5, 60])))
    assert make_plan(call, machine=HOPPER).kernel == "sdpa"
    assert make_plan(call, machine=replace(HOPPER, capturing=True)).kernel == "triton"


def test_calls_that_triton_cannot_run_use_another_kernel_with_a_reason():
    for options, reason in (
        ({"mask": Documents(torch.arange(600) // 100)}, "band of keys and padding"),
        ({"mask": Causal(), "bias": torch.zeros(600, 600)}, "the only bias it supports is ALiBi"),
        ({"mask": Causal(), "softcap": 5.0}, "no soft cap"),
        ({"dtype": torch.float32, "mask": Window(9, 9)}, "bfloat16 and float16"),
        ({"D": 512, "mask": Window(9, 9)}, "at most 256"),
        ({"energy": ScaledDot(), "normalize": Sparsemax()}, "softmax or sigmoid, not by Sparsemax"),
        ({"mask": Documents(torch.arange(600) // 100), "normalize": Sigmoid()}, "band of keys and padding"),
        ({"mask": Causal()}, "SDPA has fused kernels for plain and causal"),
    ):
        choice = plan(**options)
        assert choice.kernel != "triton"
        assert reason in choice.not_used["triton"]


def test_a_band_is_found_in_combined_masks():
    call = make_call(*(torch.empty(2, 4, 30, 8) for _ in range(3)))
    lengths = torch.tensor([3, 4])
    result = triton.band_of(Window(9, 2) & (Causal() & Padding(lengths)), call)
    assert result is not None
    assert (result.low, result.high) == (-9, 0)
    assert result.lengths is lengths
    assert triton.band_of(Window(9, 2) | Causal(), call) is None
    assert triton.band_of(Padding(lengths) & Padding(lengths), call) is None
    assert triton.band_of(Causal(offset=lengths), call) is None


def test_lengths_of_a_band_follow_the_merged_batch_axes():
    call = make_call(*(torch.empty(2, 3, 4, 30, 8) for _ in range(3)))
    for lengths, expected in (
        (torch.tensor([5, 6, 7]), [5, 6, 7, 5, 6, 7]),
        (torch.tensor([[5], [6]]), [5, 5, 5, 6, 6, 6]),
        (torch.tensor(9), [9] * 6),
    ):
        for mask in (Padding(lengths), Causal() & Padding(lengths)):
            result = triton.band_of(mask, call)
            assert result is not None and result.lengths is not None
            assert result.lengths.tolist() == expected


def test_a_cached_training_shortcut_keeps_no_tensor_of_the_call_that_made_it():
    tensors = [torch.randn(2, 4, 60, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    call = make_call(*(x * 1 for x in tensors), mask=Window(9, 9))
    references = [weakref.ref(x) for x in (call.query, call.key, call.value)]
    shortcut = triton.Triton().shortcut(call, HOPPER)
    assert shortcut is not None
    del call
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
