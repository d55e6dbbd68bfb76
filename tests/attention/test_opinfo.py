"""torch's own samples for scaled_dot_product_attention, on every kernel and in every dtype: see opinfo.py."""

import subprocess
import sys

import pytest


def test_torchs_own_samples_on_every_kernel():
    pytest.importorskip("expecttest")
    done = subprocess.run(
        [sys.executable, "-m", "tests.attention.opinfo"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    taken = {
        (kernel, dtype): (int(n), int(of))
        for kernel, dtype, n, of in (line.split() for line in done.stdout.splitlines())
    }
    assert all(of > 20 for _, of in taken.values())
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        n, of = taken["None", dtype]
        assert n > of / 2  # the others have dropout
        assert all(taken[kernel, dtype][0] > 0 for kernel in ("reference", "sdpa", "tiled"))
