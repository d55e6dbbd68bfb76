"""The examples in docstrings run and print what they show; `+SKIP` marks those that need data or training."""

import doctest
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
