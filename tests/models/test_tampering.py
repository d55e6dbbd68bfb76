"""Tampered folders: checksums detect a change, and without checksums each change is an error of one sentence.

Covers config.py.
"""

from __future__ import annotations

import os
import shutil

import pytest

from regard.errors import FolderError, OptionError, RegardError
from regard.files import checksums
from regard.files.atomic import write_folder
from regard.files.checksums import file_sha256
from regard.models import folder as folders
from regard.search import build_index
from regard.search.index import Index, IndexInfo
from tests.models.tampering import INDEX_TAMPERINGS, TAGGER_TAMPERINGS, TAMPERINGS, change, save, save_tagger
from tests.search.test_index import documents, flip, random_vectors


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """With checksums, as a trained model has them."""
    path = tmp_path_factory.mktemp("models") / "model"
    write_folder(path, save)
    return path


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tagger"
    save_tagger(path)
    return path


@pytest.fixture
def model(tmp_path, translator):
    return shutil.copytree(translator, tmp_path / "copy")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "card.json", "config.json"])
def test_a_flipped_bit_is_detected_in_every_file(model, name):
    folders.load(model)
    flip(model / name, -3)
    with pytest.raises(FolderError, match=f"{name} (is damaged: its SHA-256|cannot be read)"):
        folders.load(model)


def test_a_file_is_hashed_once_and_again_when_it_changed(model, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    hashed = []
    monkeypatch.setattr(checksums, "file_sha256", lambda path: hashed.append(path.name) or file_sha256(path))
    folders.load(model)
    assert sorted(hashed) == ["card.json", "config.json", "model.safetensors", "tokenizer.json"]
    folders.load(model)
    assert len(hashed) == 4
    os.utime(model / "card.json", (1, 1))
    folders.load(model)
    assert hashed[4:] == ["card.json"]


def test_a_checksum_cache_that_cannot_be_written_is_not_an_error(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    expected = folders.load(model).state_dict()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "cache"))
    loaded = folders.load(model).state_dict()
    assert all(loaded[name].equal(expected[name]) for name in expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinite_weights_are_refused(model, value):
    change(model, lambda tensors: next(iter(tensors.values())).view(-1).__setitem__(3, value))
    with pytest.raises(FolderError, match="holds NaN or infinity in '"):
        folders.load(model)


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_tampered_model_is_refused_with_a_sentence(model, tampering):
    if not tampering.startswith("checksums.json"):
        (model / "checksums.json").unlink()
    TAMPERINGS[tampering](model)
    message = error_message(lambda: folders.load(model))
    assert is_sentence(message, model), message


def error_message(call):
    """The message of the error that a call raises."""
    with pytest.raises(RegardError) as error:
        call()
    assert not isinstance(error.value.__cause__, Exception)
    return str(error.value)


def is_sentence(message, path):
    return str(path) in message and "\n" not in message and 40 < len(message) < 600


@pytest.mark.parametrize("tampering", TAGGER_TAMPERINGS)
def test_a_tampered_tagger_is_refused_with_a_sentence(tmp_path, tagger, tampering):
    path = shutil.copytree(tagger, tmp_path / "tagger")
    TAGGER_TAMPERINGS[tampering](path)
    message = error_message(lambda: folders.load(path))
    assert is_sentence(message, path), message


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    pytest.importorskip("usearch")
    path = tmp_path_factory.mktemp("index") / "index"
    build_index.create(path, IndexInfo("m", "f" * 64, 16))
    build_index.add(path, documents(30), random_vectors(30), min_graph_size=10, threads=1)
    return path


@pytest.mark.parametrize("tampering", INDEX_TAMPERINGS)
def test_a_tampered_index_is_refused_with_a_sentence(tmp_path, index, tampering):
    path = shutil.copytree(index, tmp_path / "index")
    for subfolder in (path / "part-000001", path / "graph-000001"):
        (subfolder / "checksums.json").unlink()
    INDEX_TAMPERINGS[tampering](path)

    def search():
        loaded = Index(path)
        loaded.nearest(random_vectors(1), 3, exact=True)
        loaded.nearest(random_vectors(1), 3)
        loaded.bm25_search("text number 3", 3)
        return [list(part.documents()) for part in loaded.segments], loaded.document(29)

    message = error_message(search)
    assert is_sentence(message, path), message


@pytest.mark.parametrize("value", [None, 7, b"x", "", "a\0b", ["x"]])
def test_a_folder_argument_that_is_not_a_path_is_refused(value):
    for call in (folders.load, Index):
        with pytest.raises(OptionError, match="folder is a path"):
            call(value)
