"""The examples in the docstrings of the operator's functions run and print what they show."""

import doctest

import pytest
import torch

import regard


@pytest.mark.parametrize("name", ["attend", "explain", "lookup", "watch", "weights"])
def test_the_example_prints_what_it_shows(name):
    function = getattr(regard, name)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    (example,) = finder.find(
        getattr(function, "__wrapped__", function), name, globs={"torch": torch, "regard": regard}
    )
    assert example.examples
    assert runner.run(example).failed == 0
