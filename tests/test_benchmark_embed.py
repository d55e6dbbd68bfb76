"""benchmarks/gpu/embed.py with a small model on the CPU, and the placeholders of its peer."""

import importlib
import sys

import pytest
from benchmarks.gpu import embed
from benchmarks.peers import placeholders

from regard.errors import OptionError
from regard.models import bert


def test_the_table_has_equal_vectors_of_each_system_and_precision(tmp_path, capsys):
    pytest.importorskip("transformers", reason="transformers is not installed (regard[transformers])")
    try:
        bert.minilm_folder()
    except OptionError as error:
        pytest.skip(str(error))
    assert embed.main(["--tiny", "--folder", str(tmp_path)]) == 0
    table = capsys.readouterr().out.split("| texts | precision |")[1]
    rows = [
        line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith(("| mul", "| eu"))
    ]
    assert {(row[0], row[1]) for row in rows} == {
        (name, precision) for name in embed.SETS for precision in ("float32", "bfloat16")
    }
    for row in rows:
        assert float(row[-2]) < (1e-5 if row[1] == "float32" else 0.03)
        assert float(row[-1]) > (0.99999 if row[1] == "float32" else 0.999)


def test_a_placeholder_can_be_imported_and_not_called(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert placeholders.add_placeholders(["json", "regard_missing"]) == ["regard_missing"]
    module = importlib.import_module("regard_missing.inner")
    with pytest.raises(ImportError, match="inner.score was called"):
        module.score(1)
    for name in ("regard_missing", "regard_missing.inner"):
        del sys.modules[name]
