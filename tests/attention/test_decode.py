"""The kernel for few queries against a cache without a GPU, by Triton's interpreter. On a GPU: test_cuda.py.

Covers decode.py, triton_decode.py.
"""

import gc
import weakref
from pathlib import Path

import pytest
import torch

from regard import ALiBi, Causal, Padding, Softmax, Sparsemax, Window
from regard.attention import Bilinear, Sigmoid
from regard.attention.call import make_call
from regard.attention.kernels import decode, triton
from regard.attention.kernels.decode import TritonCache
from regard.attention.machine import Machine
from regard.attention.plan import make_plan
from tests.triton_interpreter import run_interpreted

HOPPER = Machine("cuda", (9, 0))


def test_the_interpreted_kernel_equals_the_reference_with_nan_in_unseen_positions():
    process = run_interpreted(Path(__file__).with_name("triton_decode_cases.py"))
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(triton, "is_installed", lambda: True)


def plan(dtype=torch.bfloat16, B=8, H=32, Hk=8, Tq=1, Tk=1200, D=64, grad=False, **options):
    shapes = (B, H, Tq, D), (B, Hk, Tk, D), (B, Hk, Tk, D)
    q, k, v = (torch.empty(s, dtype=dtype, requires_grad=grad) for s in shapes)
    return make_plan(make_call(q, k, v, **options), machine=HOPPER)


def test_decoding_with_a_cache_uses_it_on_a_gpu():
    lengths = torch.full((8,), 500)
    for options in (
        {},
        {"mask": Causal()},
        {"mask": Causal(), "Tq": 4},
        {"mask": Window(200)},
        {"mask": Padding(lengths)},
        {"mask": Padding(torch.tensor([20])), "B": 1, "Tk": 50},
        {"mask": Window(200) & Padding(lengths)},
        {"normalize": Softmax(0.5), "Hk": 1, "Tk": 9000},
        {"Hk": 32, "D": 256, "dtype": torch.float16},
    ):
        assert plan(**options).kernel == "triton-cache", options


def test_calls_that_it_cannot_run_use_another_kernel_with_a_reason():
    for options, reason in (
        ({"Tq": 5}, "at most 4 queries"),
        ({"grad": True}, "no gradient"),
        ({"Tq": 4, "Hk": 1}, "at most 64 queries for each key head"),
        ({"B": 1, "Tk": 1000}, "less host time"),
        ({"D": 512}, "at most 256 components"),
        ({"bias": ALiBi(32)}, "no bias"),
        ({"softcap": 5.0}, "no soft cap"),
        ({"dropout": 0.1}, "dropout"),
        ({"dtype": torch.float32}, "bfloat16 and float16"),
        ({"normalize": Sparsemax()}, "softmax only"),
        ({"normalize": Sigmoid()}, "softmax only"),
        ({"normalize": Softmax(sinks=torch.zeros(32))}, "without sinks"),
        ({"mask": Causal(offset=torch.arange(8))}, "band of keys and padding"),
        ({"mask": torch.ones(1, 1200, dtype=torch.bool).tril(5)}, "band of keys and padding"),
    ):
        choice = plan(**options)
        assert choice.kernel != "triton-cache"
        assert reason in choice.not_used["triton-cache"], options


def test_keys_are_split_until_the_gpu_is_full_and_the_memory_of_the_parts_is_counted():
    assert plan(B=256, Tk=512).memory == 0
    assert plan(B=64, Tk=2048).memory == 64 * 32 * 2 * (64 + 1) * 4  # 2 splits
    assert plan(B=1, Tk=1 << 17).memory == 32 * 66 * (64 + 1) * 4
    assert plan(B=1, H=4, Hk=1, Tk=1 << 20).memory == 4 * decode.MAX_SPLITS * (64 + 1) * 4
    assert plan(B=1, Tk=1 << 17, mask=Window(599)).memory == 32 * 2 * (64 + 1) * 4  # it sees 600 keys


def test_repeated_calls_take_a_shortcut_for_tensors_with_the_same_strides():
    shapes = (8, 32, 1, 64), (8, 8, 600, 64), (8, 8, 600, 64)
    q, k, v = (torch.empty(s, dtype=torch.bfloat16) for s in shapes)
    call = make_call(q, k, v, mask=Padding(torch.full((8,), 500)))
    assert TritonCache().shortcut(call, HOPPER) is not None
    one_length = make_call(q, k, v, mask=Padding(torch.tensor([500])))
    bilinear = make_call(q, k, v, energy=Bilinear(64))
    for other in (one_length, bilinear):
        assert TritonCache().shortcut(other, HOPPER) is None
    launch = decode.PreparedCache(q, k, v, 1.0, triton.Band(-1, 600))
    assert not launch.accepts(q, torch.empty(8, 600, 8, 64, dtype=torch.bfloat16).transpose(1, 2), v, None)
    assert not launch.accepts(q, k, v, torch.zeros(16, dtype=torch.long)[::2])
    assert not launch.accepts(q, k, v, torch.zeros(9, dtype=torch.long)[1:])


def test_a_cached_shortcut_keeps_no_tensor_of_the_call_that_made_it():
    tensors = [
        torch.randn(s, dtype=torch.bfloat16) for s in ((8, 32, 1, 64), (8, 8, 600, 64), (8, 8, 600, 64))
    ]
    call = make_call(*(x * 1 for x in tensors), mask=Padding(torch.full((8,), 500)))
    references = [weakref.ref(x) for x in (call.query, call.key, call.value, call.mask.lengths)]
    shortcut = TritonCache().shortcut(call, HOPPER)
    assert shortcut is not None
    del call
    gc.collect()
    assert [reference() for reference in references] == [None] * 4
