"""Tests of validation.py: predictions of several processes are merged."""

import pytest

from regard.tasks import Predictions
from regard.training.validation import merge_shards


@pytest.mark.parametrize("size", [1, 2, 3])
def test_outputs_of_all_processes_are_in_the_order_of_the_rows(size):
    rows = list(range(10))
    shards = [Predictions(float(rank), rank + 1, rows[rank::size]) for rank in range(size)]
    merged = merge_shards(shards)
    assert merged.outputs == rows
    assert (merged.nll, merged.count) == (sum(range(size)), sum(range(1, size + 1)))


def test_shards_without_outputs_are_merged():
    assert merge_shards([Predictions(1.0, 2, []), Predictions(3.0, 4, [])]) == Predictions(4.0, 6, [])
