"""Run scripts of test cases in Triton's interpreter, which needs no GPU."""

import os
import subprocess
import sys

import pytest


def run_interpreted(script, *arguments, timeout=600):
    """Run a Python script with Triton's interpreter switched on; return the finished process."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
