"""Operations of a decoder step: the fused kernels in Triton's interpreter, and which operations run.

Covers step_operations.py, step_kernels.py. test_cuda_engine.py tests them in complete searches on a GPU.
"""

from pathlib import Path

import torch

from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.step_operations import FusedOperations, TorchOperations
from tests.models.small import make
from tests.triton_interpreter import run_interpreted

LAYERS = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32}


def test_the_interpreted_kernels_equal_the_torch_operations():
    done = run_interpreted(Path(__file__).with_name("step_cases.py"))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_an_engine_on_a_cpu_uses_torch_operations_and_a_benchmark_can_choose():
    model = make(LAYERS, LAYERS).eval().float()
    assert type(engine(model).operations) is TorchOperations
    chosen = engine(model, torch.float32, fused=True)
    assert type(chosen.operations) is FusedOperations and chosen.decoder.fused_relu
