"""Checks no one here wrote: ONNX's test cases for its Attention and FlexAttention operators, run by `attend`. See docs/onnx.md."""

from __future__ import annotations

import os

import pytest
import torch

import regard
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
EVERYWHERE = (None, "reference")  # None is the default path
WHERE_THEY_CAN = ("sdpa", "tiled", "cpp")
# ONNX's arithmetic and torch's round to a short type in different places, so they differ by up to two of the type's own
# steps, 2⁻¹⁰ and 2⁻⁷. For every other type, and for atol always, it is the case's own: 1e-3 and 1e-7.
RTOL = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(scope="session")
def stored_cases():
    folder = stored()
    if folder is None:
        pytest.skip(f"ONNX's stored vectors are not here; in the root of the repository: {COMMAND}")
    return folder


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A function from the operator to the folder of its cases, one folder for all workers of a session."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return lambda op: generated(op, shared)


def check(case: Case) -> None:
    adapted = adapt(case)
    for kernel in (*EVERYWHERE, *WHERE_THEY_CAN):
        if kernel in EVERYWHERE or can(kernel, adapted):
            compare(case, adapted.run(kernel), kernel or "default")


def can(kernel: str, adapted: Adapted) -> bool:
    try:
        regard.explain(adapted.query, adapted.key, adapted.value, kernel=kernel, **adapted.options)
    except regard.KernelError:
        return False
    return True


def compare(case: Case, found: dict, kernel: str) -> None:
    assert "Y" in case.outputs
    for name, array in case.outputs.items():
        want, got, who = tensor(array), found[name], f"{name} by {kernel}"
        assert got.dtype == want.dtype, who
        limits = {"rtol": RTOL.get(want.dtype, case.rtol), "atol": case.atol}
        torch.testing.assert_close(got.double(), want.double(), **limits, msg=lambda text: f"{who}: {text}")


@pytest.mark.parametrize("name", STORED)
def test_a_stored_case_of_attention_gives_what_onnx_stored(name, stored_cases):
    check(read(stored_cases / folder_of("Attention", name)))


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_case_of_attention_gives_what_onnx_computes(name, made):
    check(read(made("Attention") / folder_of("Attention", name)))


@pytest.mark.parametrize("name", FLEX)
def test_a_generated_case_of_flex_attention_gives_what_onnx_computes(name, made):
    check(read(made("FlexAttention") / folder_of("FlexAttention", name)))


def test_no_stored_case_is_lost(stored_cases):
    found = names(stored_cases, "test_attention_")
    assert len(found) == len(STORED) == 64
    assert found == {folder_of("Attention", name) for name in STORED}


@pytest.mark.parametrize(("op", "count"), [("Attention", 93), ("FlexAttention", 11)])
def test_no_generated_case_is_lost(op, count, made):
    found = names(made(op), "test_")
    assert len(found) == len(LISTED[op]) == count
    assert found == {folder_of(op, name) for name in LISTED[op]}


@pytest.mark.parametrize(("op", "count"), [("Attention", 81), ("FlexAttention", 5)])
def test_sdpa_takes_as_many_generated_cases_as_the_page_says(op, count, made):
    assert sum(can("sdpa", adapt(read(made(op) / folder_of(op, name)))) for name in LISTED[op]) == count
