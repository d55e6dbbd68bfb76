"""`explain` estimates the memory that a call allocates: measured with torch's profiler on the CPU."""

import itertools

import pytest
import torch

from regard import ALiBi, Causal, Padding, attend, explain
from regard.attention import Dense, Documents
from regard.attention.call import make_call
from regard.attention.kernels import native
from regard.attention.kernels.cpp import Cpp
from regard.attention.machine import Machine


def measured_memory(run):
    """Bytes that torch allocates at the peak of `run`, besides its result."""
    run()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        out = run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(itertools.accumulate(sizes)) - out.nbytes


T, HEADS = 640, 4
DENSE = torch.rand(T, T, generator=torch.Generator().manual_seed(0)) < 0.5
MEMORY_CASES = {
    "no options": {},
    "causal": {"mask": Causal()},
    "padding": {"mask": Padding([400, 640])},
    "documents": {"mask": Documents.of_lengths([340, 300])},
    "dense": {"mask": Dense(DENSE)},
    "dense, one per sequence": {"mask": Dense(torch.stack([DENSE, ~DENSE])[:, None])},
    "ALiBi": {"bias": ALiBi(HEADS)},
    "ALiBi from an offset": {"bias": ALiBi(HEADS).with_offset(0)},
    "ALiBi and causal": {"bias": ALiBi(HEADS), "mask": Causal()},
    "ALiBi and dense": {"bias": ALiBi(HEADS), "mask": Dense(DENSE)},
    "bias of all heads": {"bias": DENSE.float()},
    "bias of each head": {"bias": DENSE.float().expand(HEADS, T, T).contiguous()},
    "bias and dense": {"bias": DENSE.float(), "mask": Dense(~DENSE)},
    "bias and dense of each sequence": {
        "bias": DENSE.float().expand(HEADS, T, T).contiguous(),
        "mask": Dense(torch.stack([DENSE, ~DENSE])[:, None]),
    },
}


@pytest.mark.parametrize("kernel", ["cpp", "sdpa", "reference"])
@pytest.mark.parametrize("case", MEMORY_CASES)
def test_explain_estimates_the_memory_that_a_call_allocates(case, kernel):
    """Within a factor of 2.2; below 3 MiB the copies of inputs count."""
    if kernel == "cpp" and native.unavailable():
        pytest.skip(native.unavailable())
    options, qkv = MEMORY_CASES[case], torch.randn(3, 2, HEADS, T, 16)
    estimate = explain(*qkv, kernel=kernel, **options).memory
    measured = measured_memory(lambda: attend(*qkv, kernel=kernel, **options))
    assert measured <= 2.2 * estimate + (3 << 20)
    assert estimate <= 2.2 * measured + (3 << 20)


def test_explain_says_whether_the_cpp_kernel_skips_masked_keys():
    if native.unavailable():
        pytest.skip(native.unavailable())
    why = lambda **options: Cpp().describe(make_call(*torch.randn(3, 1, 2, 64, 8), **options), Machine("cpu"))  # noqa: E731
    assert why(mask=Causal()).endswith("masked keys skipped")
    assert why(mask=Dense(torch.rand(64, 64) < 0.5)).endswith("the mask as a dense bias")
    assert why().endswith("C++ compiled for this CPU")
