"""The kernel for short sequences without a GPU, by Triton's interpreter on the CPU. On a GPU: test_cuda.py.

Covers short.py, triton_short.py.
"""

import gc
import weakref
from pathlib import Path

import pytest
import torch

from regard import ALiBi, Causal, Padding, ScaledDot, Softmax, Sparsemax, Window
from regard.attention.call import make_call
from regard.attention.kernels import triton
from regard.attention.kernels.short import TritonShort
from regard.attention.machine import Machine
from regard.attention.plan import make_plan
from tests.triton_interpreter import run_interpreted

HOPPER = Machine("cuda", (9, 0))


def test_the_interpreted_kernel_equals_the_reference_with_nan_in_unseen_positions():
    process = run_interpreted(Path(__file__).with_name("triton_short_cases.py"))
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(triton, "is_installed", lambda: True)


def plan(dtype=torch.bfloat16, B=256, Tq=12, Tk=12, D=64, **options):
    q, k, v = (torch.empty(B, 8, T, D, dtype=dtype, requires_grad=True) for T in (Tq, Tk, Tk))
    return make_plan(make_call(q, k, v, **options), machine=HOPPER)


def test_batches_of_sentences_use_it_on_a_gpu():
    lengths = torch.full((256,), 5)
    for options in (
        {},
        {"mask": Causal()},
        {"mask": Padding(lengths)},
        {"mask": Causal() & Padding(lengths)},
        {"mask": Padding(lengths), "Tq": 64, "Tk": 50},
        {"normalize": Softmax(0.5)},
    ):
        assert plan(**options).kernel == "triton-short", options


def test_calls_that_it_cannot_run_use_another_kernel_with_a_reason():
    for options, reason in (
        ({"Tk": 65}, "at most 64 queries and keys"),
        ({"B": 10}, "do not fill a GPU"),
        ({"D": 256}, "at most 128 components"),
        ({"bias": ALiBi(8)}, "no bias"),
        ({"softcap": 5.0}, "no soft cap"),
        ({"dropout": 0.1}, "dropout"),
        ({"dtype": torch.float32}, "bfloat16 and float16"),
        ({"energy": ScaledDot(), "normalize": Sparsemax()}, "softmax only"),
        ({"mask": Window(1, 1) & Window(1, 1, offset=5)}, "not a band"),
        ({"mask": torch.ones(12, 12, dtype=torch.bool).tril()}, "band of keys and padding"),
    ):
        choice = plan(**options)
        assert choice.kernel != "triton-short"
        assert reason in choice.not_used["triton-short"], options


def test_a_cached_shortcut_keeps_no_tensor_of_the_call_that_made_it():
    tensors = [torch.randn(256, 8, 12, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    call = make_call(*(x * 1 for x in tensors), mask=Causal())
    references = [weakref.ref(x) for x in (call.query, call.key, call.value)]
    shortcut = TritonShort().shortcut(call, HOPPER)
    assert shortcut is not None
    del call
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
