"""ONNX's own test cases for its Attention and FlexAttention operators, run by `attend`. See docs/onnx.md."""

from __future__ import annotations

import os

import pytest
import torch

import regard
from regard.errors import KernelError
from tests.attention.onnx_adapter import Adapted, adapt, tensor
from tests.attention.onnx_cases import (
    COMMAND,
    FLEX,
    GENERATED,
    STORED,
    Case,
    folder_of,
    generated,
    names,
    read,
    stored,
)

LISTED = {"Attention": GENERATED, "FlexAttention": FLEX}
ALWAYS = (None, "reference")  # None is the automatic choice
IF_POSSIBLE = ("sdpa", "tiled", "cpp")
# ONNX and torch round to a half-precision type in different places, so they differ by up to two steps of the
# type, 2⁻¹⁰ and 2⁻⁷. Every other type, and atol, has the tolerance of the case: 1e-3 and 1e-7.
RTOL = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(scope="session")
def stored_cases():
    folder = stored()
    if folder is None:
        pytest.skip(f"ONNX's stored cases are not downloaded; run in the root of the repository: {COMMAND}")
    return folder


@pytest.fixture(scope="session")
def generated_cases(tmp_path_factory):
    """A function from an operator to the folder of its cases, shared by all workers of a session."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return lambda op: generated(op, shared)


def wrong_outputs(case: Case) -> list[str]:
    """The outputs that differ from ONNX's, over all kernels that accept the case."""
    adapted = adapt(case)
    kernels = [kernel for kernel in (*ALWAYS, *IF_POSSIBLE) if kernel in ALWAYS or accepts(kernel, adapted)]
    return [
        f"{name} by {kernel or 'default'}"
        for kernel in kernels
        for name in differing(case, adapted.run(kernel))
    ]


def accepts(kernel: str, adapted: Adapted) -> bool:
    try:
        regard.explain(adapted.query, adapted.key, adapted.value, kernel=kernel, **adapted.options)
    except KernelError:
        return False
    return True


def differing(case: Case, result: dict) -> list[str]:
    """Names of the outputs with another dtype, shape or value than expected."""
    names = [] if "Y" in case.outputs else ["missing Y"]
    for name, array in case.outputs.items():
        expected, actual = tensor(array), result[name]
        limits = {"rtol": RTOL.get(expected.dtype, case.rtol), "atol": case.atol}
        same_kind = actual.dtype == expected.dtype and actual.shape == expected.shape
        if not (same_kind and torch.allclose(actual.double(), expected.double(), **limits)):
            names.append(name)
    return names


@pytest.mark.parametrize("name", STORED)
def test_a_stored_case_of_attention_gives_what_onnx_stored(name, stored_cases):
    assert wrong_outputs(read(stored_cases / folder_of("Attention", name))) == []


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_case_of_attention_gives_what_onnx_computes(name, generated_cases):
    assert wrong_outputs(read(generated_cases("Attention") / folder_of("Attention", name))) == []


@pytest.mark.parametrize("name", FLEX)
def test_a_generated_case_of_flex_attention_gives_what_onnx_computes(name, generated_cases):
    assert wrong_outputs(read(generated_cases("FlexAttention") / folder_of("FlexAttention", name))) == []


def test_all_stored_cases_are_listed(stored_cases):
    result = names(stored_cases, "test_attention_")
    assert len(result) == len(STORED) == 64
    assert result == {folder_of("Attention", name) for name in STORED}


@pytest.mark.parametrize(("op", "count"), [("Attention", 93), ("FlexAttention", 11)])
def test_all_generated_cases_are_listed(op, count, generated_cases):
    result = names(generated_cases(op), "test_")
    assert len(result) == len(LISTED[op]) == count
    assert result == {folder_of(op, name) for name in LISTED[op]}


@pytest.mark.parametrize(("op", "count"), [("Attention", 81), ("FlexAttention", 5)])
def test_sdpa_accepts_as_many_generated_cases_as_the_documentation_says(op, count, generated_cases):
    assert (
        sum(accepts("sdpa", adapt(read(generated_cases(op) / folder_of(op, name)))) for name in LISTED[op])
        == count
    )
