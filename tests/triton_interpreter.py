"""Run scripts of test cases in Triton's interpreter, which needs no GPU."""

import os

import pytest

from tests import forked


def run_interpreted(script, *arguments, timeout=600):
    """Run a Python script with Triton's interpreter switched on; return the finished process."""
    pytest.importorskip("triton", reason="Triton is not installed")
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    environment = os.environ | {"TRITON_INTERPRET": "1"}  # Triton, which reads it, is not imported before
    return forked.run(*arguments, code=code, env=environment, timeout=timeout)
