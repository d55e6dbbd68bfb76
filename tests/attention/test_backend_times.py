"""The measured choice between torch's GPU backends; timing itself needs a GPU (test_cuda.py)."""

import json
from dataclasses import replace

import pytest
import torch

from regard import Causal
from regard.attention.call import make_call
from regard.attention.kernels import backend_times, sdpa
from regard.attention.kernels.backend_times import Kind, fastest_first, read_times, stored_or_measured
from regard.attention.machine import Machine

H200 = Machine("cuda", (9, 0))
GPU = "NVIDIA H200, torch 2.11"
KIND = Kind(torch.bfloat16, 128, 2048, causal=True, training=False)


def call(T=2048, D=64, **options):
    q, k, v = (torch.empty(4, 16, T, D, dtype=torch.bfloat16, device="meta") for _ in range(3))
    return make_call(q, k, v, **options)


def test_the_faster_backend_comes_first_and_flash_if_they_are_equal():
    assert fastest_first({"FLASH_ATTENTION": 2.0, "CUDNN_ATTENTION": 1.0})[0] == "CUDNN_ATTENTION"
    assert fastest_first({"FLASH_ATTENTION": 1.0, "CUDNN_ATTENTION": 2.0})[0] == "FLASH_ATTENTION"
    assert fastest_first({"FLASH_ATTENTION": 1.04, "CUDNN_ATTENTION": 1.0})[0] == "FLASH_ATTENTION"


def test_a_backend_that_cannot_run_is_not_tried():
    assert fastest_first({"CUDNN_ATTENTION": 1.0}) == ["CUDNN_ATTENTION"]
    assert fastest_first({"FLASH_ATTENTION": 1.0}) == ["FLASH_ATTENTION"]
    assert fastest_first({}) == []


def test_calls_of_one_power_of_two_share_a_kind():
    assert Kind.of(call(T=2048)) == Kind.of(call(T=4095))
    assert Kind.of(call(T=2048)) != Kind.of(call(T=2047))
    assert Kind.of(call(T=4096)) == Kind.of(call(T=30000))
    assert Kind.of(call(mask=Causal())).causal
    assert Kind.of(call(D=64)) != Kind.of(call(D=128))


TIMES = {"FLASH_ATTENTION": 0.5, "CUDNN_ATTENTION": 0.25}


def test_times_are_measured_once_and_kept_for_each_gpu_and_kind(tmp_path):
    path, other = tmp_path / "cache" / "backends.json", replace(KIND, training=True)
    slower = {"FLASH_ATTENTION": 9.0}
    assert stored_or_measured(path, GPU, KIND, lambda: TIMES) == TIMES
    assert stored_or_measured(path, GPU, other, lambda: slower) == slower
    assert stored_or_measured(path, "another GPU", KIND, lambda: slower) == slower
    assert stored_or_measured(path, GPU, KIND, lambda: pytest.fail("measured again")) == TIMES
    assert read_times(path, GPU) == {str(KIND): TIMES, str(other): slower}


def test_without_memory_nothing_is_stored(tmp_path):
    path = tmp_path / "backends.json"
    assert stored_or_measured(path, GPU, KIND, lambda: None) is None
    assert not path.exists()


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", json.dumps({GPU: {str(KIND): {"FLASH": "fast"}}})])
def test_a_damaged_file_is_measured_again(tmp_path, content):
    path = tmp_path / "backends.json"
    path.write_text(content, encoding="utf-8")
    assert stored_or_measured(path, GPU, KIND, lambda: TIMES) == TIMES
    assert read_times(path, GPU) == {str(KIND): TIMES}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    path = tmp_path / "file" / "backends.json"
    path.parent.write_text("a file where the folder should be", encoding="utf-8")
    assert stored_or_measured(path, GPU, KIND, lambda: TIMES) == TIMES


def test_calls_without_a_gpu_are_not_timed():
    assert backend_times.backend_times(call(), H200) is None


def test_sdpa_uses_and_explains_the_measured_choice(monkeypatch):
    times = {"FLASH_ATTENTION": 0.25, "CUDNN_ATTENTION": 0.5}
    monkeypatch.setattr(sdpa, "backend_times", lambda call, machine: times)
    kernel = sdpa.Sdpa()
    assert sdpa.backends(call(mask=Causal()), H200)[0] == "FLASH_ATTENTION"
    said = kernel.describe(call(mask=Causal()), H200)
    assert "backend FLASH_ATTENTION (measured once on this GPU: FLASH_ATTENTION 0.25 ms, CUDNN" in said
    times["CUDNN_ATTENTION"] = 0.1
    assert sdpa.backends(call(), H200)[0] == "CUDNN_ATTENTION"


@pytest.mark.parametrize("options", [{"T": 256}, {"D": 256}, {"mask": Causal(offset=-1)}])
def test_short_wide_and_masked_calls_are_not_timed(options, monkeypatch):
    monkeypatch.setattr(sdpa, "backend_times", lambda call, machine: pytest.fail("timed"))
    assert sdpa.backends(call(**options), H200)
