"""benchmarks/gpu/entmax.py: a small run in Triton's interpreter."""

import pytest

from tests import forked


def test_a_small_run_has_every_row_and_small_errors():
    pytest.importorskip("triton", reason="Triton is not installed")
    done = forked.run(code="from benchmarks.gpu.entmax import main; main(['--tiny'])", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    passes = [row for row in rows if row[2] in ("forward", "backward") and len(row) == 8]
    assert [(row[0], row[2]) for row in passes] == [
        (name, mode) for name in ("sparsemax", "entmax 1.5") for mode in ("forward", "backward")
    ]
    assert all(float(row[-1]) < 1e-5 for row in passes)
    assert len([row for row in rows if len(row) == 6 and row[0] in ("sparsemax", "entmax 1.5")]) == 4
