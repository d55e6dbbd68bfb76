"""torch's own samples for scaled_dot_product_attention, on every kernel and in every dtype: see opinfo.py."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_torchs_own_samples_on_every_kernel():
    pytest.importorskip("expecttest")
    done = subprocess.run(
        [sys.executable, "-m", "tests.attention.opinfo"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    accepted = {
        (kernel, dtype): (int(n), int(total))
        for kernel, dtype, n, total in (line.split() for line in done.stdout.splitlines())
    }
    assert all(total > 20 for _, total in accepted.values())
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        n, total = accepted["None", dtype]
        assert n > total / 2  # the others have dropout
        assert all(accepted[kernel, dtype][0] > 0 for kernel in ("reference", "sdpa", "tiled"))
