"""Logs that lessons read."""

import pytest

from regard.errors import DataError
from regard.lessons import read_log


def test_a_missing_log_names_the_command_that_makes_it():
    with pytest.raises(
        DataError, match=r"nowhere\.json is missing; make it .* `python -m benchmarks\.nowhere`"
    ):
        read_log("nowhere", "python -m benchmarks.nowhere")
