"""The update of a beam as one Triton kernel: in the interpreter without a GPU, marked `cuda` with one.

test_cuda_engine.py tests it in complete searches on a GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.decoding.engine.cuda import engine
from regard.layers.fused_parts import use_parts
from tests.decoding.beam_cases import LAYERS, check_all_updates
from tests.models.small import make

ROOT = Path(__file__).parents[2]


def test_the_interpreted_kernel_equals_the_torch_code():
    pytest.importorskip("triton", reason="Triton is not installed")
    env = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.decoding.beam_cases"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@torch.inference_mode()
def test_the_kernel_equals_the_torch_code_on_a_gpu():
    assert check_all_updates(sentences=300, device="cuda")["continued"] > 1000


@pytest.mark.parametrize(
    ("parts", "expected"), [(["decoding", "beam"], True), (["decoding"], False), (["beam"], True)]
)
def test_the_kernel_runs_where_its_part_is_enabled_and_steps_are_fused(parts, expected):
    model = make(None, LAYERS).eval().float()
    with use_parts(*parts):
        assert engine(model, fused=True).fused_beam == expected
        assert not engine(model, fused=False).fused_beam and not engine(model).fused_beam
