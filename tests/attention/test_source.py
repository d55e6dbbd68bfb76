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
    parameters = path.read_text(encoding="utf-8").splitlines()
    for line, name, keywords in calls(path):
        if name not in CREATED or "nn.Parameter(" in parameters[line - 1]:
            continue
        assert "device" in keywords, f"{path.name}:{line} torch.{name} without device="
        assert "dtype" in keywords or name not in NEEDS_DTYPE, (
            f"{path.name}:{line} torch.{name} without dtype="
        )


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: p.name)
def test_no_backward_pass_is_differentiable_only_once(path):
    """once_differentiable raises only if the incoming gradient requires grad; after a sum it is silently
    wrong.
    """
    assert "once_differentiable" not in path.read_text(encoding="utf-8")
