"""The settings of the tests themselves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAW = """
from hypothesis import given, settings, strategies as st

drawn = []

@settings(max_examples=15)
@given(st.integers(0, 10**9))
def test_own_number_of_examples(x):
    drawn.append(x)

def test_print():
    print("drawn", len(drawn), sorted(drawn))
"""


@pytest.mark.slow  # starts pytest four times
@pytest.mark.parametrize("long", [False, True])
def test_examples_are_the_same_on_every_run_unless_the_long_profile_is_chosen(tmp_path, long):
    (tmp_path / "conftest.py").write_text(
        Path(__file__).with_name("conftest.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "test_drawn.py").write_text(DRAW, encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if k not in ("CI", "REGARD_LONG")} | (
        {"REGARD_LONG": "1"} if long else {}
    )
    options = "-q -s -p no:cacheprovider -p no:xdist".split()
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    outputs = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(
            next(line[line.index("drawn") :] for line in done.stdout.splitlines() if "drawn" in line)
        )
    assert all(line.startswith(f"drawn {150 if long else 15} ") for line in outputs)
    assert (outputs[0] == outputs[1]) != long
