"""Operations of a decoder step: the fused kernels in Triton's interpreter, and which operations run.

Covers step_operations.py, step_kernels.py. test_cuda_engine.py tests them in complete searches on a GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.step_operations import FusedOperations, TorchOperations
from tests.models.small import make

ROOT = Path(__file__).parents[2]
LAYERS = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32}


def test_the_interpreted_kernels_equal_the_torch_operations():
    pytest.importorskip("triton", reason="Triton is not installed")
    env = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.decoding.step_cases"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_an_engine_on_a_cpu_uses_torch_operations_and_a_benchmark_can_choose():
    model = make(LAYERS, LAYERS).eval().float()
    assert type(engine(model).operations) is TorchOperations
    chosen = engine(model, torch.float32, fused=True)
    assert type(chosen.operations) is FusedOperations and chosen.decoder.fused_relu
