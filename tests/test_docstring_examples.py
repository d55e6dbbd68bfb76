"""Docstrings: their examples run and print what they show, except those marked `+SKIP`, which need data or
training; and their parameters exist.
"""

import ast
import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

import regard

PACKAGE = Path(regard.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8"))
PUBLIC = {id(getattr(regard, name)) for name in regard.__all__}


def examples(path):
    """The doctests of a module. Those of a top-level name of regard get `torch` and `regard` alone."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = import_module(".".join(parts).removesuffix(".__init__"))
    for test in doctest.DocTestFinder().find(module, module.__name__, globs={}):
        documented = getattr(module, test.name.removeprefix(f"{module.__name__}.").split(".")[0], None)
        test.globs = ({} if id(documented) in PUBLIC else dict(vars(module))) | {
            "torch": torch,
            "regard": regard,
        }
        yield test


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_examples_print_what_they_show(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # examples may write files
    torch.manual_seed(0)
    tests = [test for test in examples(path) if test.examples]
    assert tests
    for test in tests:
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
        assert result.failed == 0, capsys.readouterr().out


def test_every_name_at_the_top_level_has_an_example():
    without = {name for name in regard.__all__ if ">>>" not in (getattr(regard, name).__doc__ or "")}
    assert without == {"huggingface"}  # a package; its function needs transformers


def documented_parameters(docstring):
    """The names in the section Args of a docstring, as the API reference reads them."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    return re.findall(r"^    (\S.*?):(?: |$)", section[1], re.MULTILINE) if section else []


def parameters(node):
    """The parameters of a function, or of a class: those of its methods and its fields."""
    if isinstance(node, ast.ClassDef):
        fields = {x.target.id for x in node.body if isinstance(x, ast.AnnAssign)}
        return fields.union(*(parameters(x) for x in node.body if isinstance(x, ast.FunctionDef)))
    given = node.args
    several = [x for x in (given.vararg, given.kwarg) if x is not None]
    return {x.arg for x in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)}


def test_documented_parameters_exist():
    """`make docs` is strict, and reads "a, b: …" as one parameter of that name."""
    wrong, checked = [], 0
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = documented_parameters(ast.get_docstring(node) or "")
                checked += len(names)
                known = parameters(node)
                wrong += [
                    f"{path.name}: {node.name}: {name}" for name in names if name.lstrip("*") not in known
                ]
    assert not wrong and checked > 300
