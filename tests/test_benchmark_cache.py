"""benchmarks/gpu/cache.py: a small run in Triton's interpreter, and the bytes that it counts."""

import pytest
from benchmarks.gpu.cache import Step, StepCase

from tests import forked


def test_the_kernels_of_a_small_run_equal_the_torch_operations():
    pytest.importorskip("triton", reason="Triton is not installed")
    done = forked.run(code="from benchmarks.gpu.cache import main; main(['--tiny'])", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    steps = [row for row in rows if row[0] in ("self", "cross", "cross, lengths")]
    assert len(steps) == 3 * 2 * 2
    assert all(float(row[-1]) < 1e-2 for row in steps + [row for row in rows if "regard (" in row[2]])


def test_bytes_are_counted_once():
    vector = 2 * 16 * 2  # heads × head dim × bytes
    greedy = Step(StepCase("self", 3, 5, 1, 2, 16), "cpu")
    assert greedy.count_bytes() == (3 * 4 * 2 + 3 * 6) * vector
    beam = Step(StepCase("self", 4, 5, 2, 2, 16), "cpu")
    beam.buffers.past[:] = 0  # both rows of each sentence have the same ancestors
    assert beam.count_bytes() == (2 * 4 * 2 + 4 * 6) * vector + 4 * 4 * 2
    cross = Step(StepCase("cross, lengths", 4, 6, 2, 2, 16), "cpu")  # sentences of 3 and 6 tokens
    assert cross.count_bytes() == (2 * (3 + 6) + 2 * 4) * vector + 2 * 6 * 4
