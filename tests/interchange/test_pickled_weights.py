"""Folders with pytorch_model.bin: tensors are read, code is never run."""

import os
import pickle

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import FolderError
from regard.interchange.import_model import import_model
from regard.interchange.pickled_weights import with_safetensors
from tests.interchange.marian_folders import save_marian


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("code-ran",)


def test_tied_tensors_are_stored_and_the_folder_is_unchanged(tmp_path):
    table = torch.randn(3, 2)
    torch.save({"a": table, "b": table}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    with with_safetensors(tmp_path) as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
        weights = load_file(folder / "model.safetensors")
    assert torch.equal(weights["a"], table) and torch.equal(weights["b"], table)
    assert not folder.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "pytorch_model.bin"]


def test_several_pickles_are_read_together(tmp_path):
    for i in (1, 2):
        torch.save({f"x{i}": torch.ones(i)}, tmp_path / f"pytorch_model-0000{i}-of-00002.bin")
    with with_safetensors(tmp_path) as folder:
        assert sorted(load_file(folder / "model.safetensors")) == ["x1", "x2"]


@pytest.mark.slow
def test_a_marian_folder_with_a_pickle_is_imported_like_one_with_safetensors(tmp_path):
    (tmp_path / "safe").mkdir()
    save_marian(tmp_path / "safe")
    import_model(tmp_path / "safe", tmp_path / "a")
    weights = load_file(tmp_path / "safe" / "model.safetensors")
    (tmp_path / "safe" / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "safe" / "pytorch_model.bin")
    import_model(tmp_path / "safe", tmp_path / "b")
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": RunsCode()}))
    with pytest.raises(FolderError, match="is not a file of tensors only"), with_safetensors(tmp_path):
        pass
    assert not (tmp_path / "code-ran").exists()
    torch.save({"a": torch.ones(1), "step": 3}, tmp_path / "pytorch_model.bin")
    with pytest.raises(FolderError, match="holds no table of named tensors"), with_safetensors(tmp_path):
        pass


def test_errors_name_the_folder_of_the_user(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(FolderError) as error, with_safetensors(tmp_path) as folder:
        raise FolderError(f"{folder} has no source.spm")
    assert str(error.value) == f"{tmp_path} has no source.spm"
