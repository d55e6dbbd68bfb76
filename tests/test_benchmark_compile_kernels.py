"""All Triton kernels compile for an H200 without a GPU, and additive energies stay in registers."""

import json
import os

import pytest

from tests import forked

# In a process of its own: the driver that compiles without a GPU is Triton's for the whole process.
SCRIPT = """
import json
from dataclasses import asdict
from benchmarks.gpu.compile_kernels import GROUPS, compile_groups
kernels = compile_groups(GROUPS)
print(json.dumps([{**asdict(k), "programs": k.programs} for k in kernels]))
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_a_hopper_gpu_and_energies_are_not_spilled():
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = forked.run(code=SCRIPT, env=environment, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    kernels = json.loads(done.stdout.splitlines()[-1])
    assert all(kernel["programs"] >= 1 for kernel in kernels)
    masks = {k["case"]: k["spilled"] for k in kernels if k["name"] == "energies"}
    assert masks == {"additive, no mask": 0, "additive, ranges": 0, "additive, dense mask": 0}
    names = {kernel["name"] for kernel in kernels}
    assert {"cache_forward", "cache_merge", "short_backward", "backward_keys", "extend"} <= names
