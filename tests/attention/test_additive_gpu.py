"""Additive attention by Triton, without a GPU: the kernels in Triton's interpreter, and when they run.

Covers additive_gpu.py, one_query.py, triton_additive.py, triton_one_query.py. On a GPU: test_cuda.py.
"""

from pathlib import Path

import pytest
import torch

from regard import Additive, ALiBi, Causal, Padding, Sparsemax, Window, attend, explain
from regard.attention import Dense, Documents
from regard.attention.call import make_call
from regard.attention.kernels import additive_gpu, triton
from regard.attention.machine import Machine
from regard.attention.plan import make_plan
from regard.errors import KernelError
from tests.triton_interpreter import run_interpreted

HOPPER = Machine("cuda", (9, 0))


def interpreted(what):
    """Run a part of the cases in Triton's interpreter."""
    return run_interpreted(Path(__file__).with_name("triton_additive_cases.py"), what, timeout=1800)


def test_the_interpreted_kernel_equals_the_reference_with_nan_in_unseen_positions():
    done = interpreted("quick")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
def test_masks_dropout_dtypes_large_values_and_chunks_in_the_interpreter():
    done = interpreted("all")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
def test_the_conformance_suite_in_the_interpreter():
    done = interpreted("conformance")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(triton, "is_installed", lambda: True)


def call(dtype=torch.float32, T=70, **options):
    q, k, v = (torch.empty(2, 4, T, 8, dtype=dtype) for _ in range(3))
    return make_call(q, k, v, **{"energy": Additive(8, heads=4).to(dtype), **options})


@pytest.mark.usefixtures("installed")
def test_it_is_chosen_on_a_gpu_unless_there_are_few_queries():
    for options in ({}, {"mask": Causal()}, {"dropout": 0.1}, {"dtype": torch.bfloat16}):
        assert make_plan(call(**options), machine=HOPPER).kernel == "triton-additive"
    q, k = torch.empty(2, 4, 1, 8), torch.empty(2, 4, 70, 8)
    one = make_call(q, k, k, energy=Additive(8, heads=4))
    assert make_plan(one, machine=HOPPER).kernel == "triton-additive"
    few = make_plan(call(T=8), machine=HOPPER)
    assert few.kernel != "triton-additive" and "64 queries, too many for 8" in few.not_used["triton-additive"]
    assert make_plan(call(T=8), "triton-additive", HOPPER).kernel == "triton-additive"


@pytest.mark.usefixtures("installed")
def test_calls_that_it_cannot_run_get_a_reason():
    for options, reason in (
        ({"bias": ALiBi(4)}, "no bias, soft cap or gate"),
        ({"softcap": 5.0}, "no bias, soft cap or gate"),
        ({"normalize": Sparsemax()}, "softmax only"),
        ({"dtype": torch.float64}, "not in float64"),
    ):
        with pytest.raises(KernelError, match=reason):
            make_plan(call(**options), "triton-additive", HOPPER)
    q = torch.empty(2, 4, 70, 8)
    assert (
        "computes Additive energies"
        in make_plan(make_call(q, q, q), machine=HOPPER).not_used["triton-additive"]
    )


def test_on_a_cpu_it_refuses():
    q = torch.randn(1, 1, 5, 8)
    with pytest.raises(KernelError, match="for NVIDIA GPUs"):
        attend(q, q, q, energy=Additive(8), kernel="triton-additive")
    assert "NVIDIA GPUs" in explain(q, q, q, energy=Additive(8)).not_used["triton-additive"]


def test_masks_become_ranges_of_keys_or_a_tensor_of_pairs():
    documents = Documents(torch.arange(70) // 30)
    random = torch.rand(2, 1, 70, 70) < 0.5
    for mask, is_range in (
        (Causal() & Padding(torch.tensor([20, 70])), True),
        (documents, True),
        (Dense(random), False),
        (~Causal(), True),
        (~Window(3, 3), False),
    ):
        visible = additive_gpu._visible_keys(call(mask=mask))
        assert (visible.start is not None) == is_range
        dense = visible.dense(70)
        assert dense is not None
        expected = mask.dense(70, 70).expand(2, 1, 70, 70)
        assert torch.equal(dense.expand(2, 1, 70, 70), expected)
    assert additive_gpu._visible_keys(call()).dense(70) is None


@pytest.mark.usefixtures("installed")
def test_memory_is_linear_in_the_number_of_positions():
    sizes = [make_plan(call(T=T), "triton-additive", HOPPER).memory for T in (1 << 14, 1 << 15, 1 << 16)]
    assert sizes[2] - sizes[1] <= 2.1 * (sizes[1] - sizes[0])
