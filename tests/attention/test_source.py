"""Static checks of the source of `regard.attention` against common defects."""

import ast
from pathlib import Path

import pytest

import regard

FOLDER = Path(regard.__file__).parent / "attention"
CREATED = {
    "zeros",
    "ones",
    "full",
    "empty",
    "arange",
    "tensor",
    "as_tensor",
    "eye",
    "linspace",
    "rand",
    "randn",
    "randint",
}
NEEDS_DTYPE = {"zeros", "ones", "full", "empty", "eye"}


def calls(path):
    """(line, name, keywords) of every torch.name(...)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "torch"
        ):
            yield node.lineno, node.func.attr, {k.arg for k in node.keywords}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: p.name)
def test_new_tensors_name_their_device_and_dtype(path):
    """A default dtype or device must not change results. Parameters follow the defaults, as in torch."""
    lines = path.read_text(encoding="utf-8").splitlines()
    created = [
        (line, name, keywords)
        for line, name, keywords in calls(path)
        if name in CREATED and "nn.Parameter(" not in lines[line - 1]
    ]
    assert [(line, name) for line, name, keywords in created if "device" not in keywords] == []
    needs_dtype = [(line, name) for line, name, keywords in created if "dtype" not in keywords]
    assert [(line, name) for line, name in needs_dtype if name in NEEDS_DTYPE] == []


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: p.name)
def test_no_backward_pass_is_differentiable_only_once(path):
    """once_differentiable raises only if the incoming gradient requires grad; after a sum it is silently
    wrong.
    """
    assert "once_differentiable" not in path.read_text(encoding="utf-8")
