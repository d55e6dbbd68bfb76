"""Which model a call uses (an object, a folder or the default), and the order of arguments."""

import os
import shutil

import numpy as np
import pytest

import regard
from regard.errors import FolderError, OptionError
from regard.models import catalog, default
from regard.models.default import as_model, default_model
from regard.models.folder import load, save
from tests.decoding import model_folders
from tests.search.small import TEXTS, embedder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with one model for each call, named after it."""
    folder = tmp_path_factory.mktemp("models")
    for name, write in (
        ("translate", model_folders.translator), ("generate", model_folders.language_model),
        ("classify", model_folders.classifier), ("tag", model_folders.tagger),
    ):  # fmt: skip
        write(folder / name)
    shutil.copytree(folder / "translate", folder / "align")
    model = embedder()
    save(folder / "embed", model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    return folder


CALLS = {
    "translate": (["hello world", "b"],),
    "classify": (["hello world", "b"],),
    "tag": (["ada met Babbage", "the Tower"],),
    "generate": (["Tom is", "b"],),
    "embed": (TEXTS[:2],),
    "align": (["a b", "b"], ["c d e", "f"]),
}


def equal(one, other):
    return np.allclose(one, other, atol=2e-6) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize("name", CALLS)
def test_a_folder_a_path_an_object_and_the_default_give_equal_results(name, models, monkeypatch):
    call, folder = getattr(regard, name), models / name
    expected = call(*CALLS[name], load(folder))
    assert len(expected) == 2
    for model in (folder, str(folder)):
        assert equal(call(*CALLS[name], model), expected)
        assert equal(call(*CALLS[name], model=model), expected)
    monkeypatch.setenv("REGARD_MODEL", str(folder))
    assert equal(call(*CALLS[name]), expected)


@pytest.mark.parametrize("name", CALLS)
def test_one_text_has_one_result(name, models):
    call, model = getattr(regard, name), load(models / name)
    expected = call(*CALLS[name], model)
    result = call(*(texts[0] for texts in CALLS[name]), model)
    assert type(result) is type(expected[0])
    assert equal(result, expected[0])


@pytest.mark.parametrize("name", CALLS)
def test_without_a_model_the_error_says_how_to_name_or_train_one(name, monkeypatch, tmp_path):
    monkeypatch.delenv("REGARD_MODEL", raising=False)
    monkeypatch.setattr(catalog, "BUNDLED", tmp_path)
    with pytest.raises(
        OptionError,
        match=rf"none is bundled yet to {name}; name a folder with --model .* train one with `regard train",
    ):
        getattr(regard, name)(*CALLS[name])


@pytest.mark.parametrize("name", CALLS)
def test_swapped_arguments_are_refused_with_the_right_order(name, models):
    with pytest.raises(OptionError, match="texts come first|the model comes second"):
        getattr(regard, name)(load(models / name), *CALLS[name])


def test_a_folder_before_its_texts_is_refused(models):
    with pytest.raises(
        OptionError,
        match=r"model is a folder or a loaded model, got \['b'\]; texts come first: regard.translate",
    ):
        regard.translate(str(models / "translate"), ["b"])
    with pytest.raises(FolderError, match="there is no folder"):
        regard.translate("b", models / "none")


def test_a_folder_is_cached_until_it_changes(models, tmp_path, monkeypatch):
    folder, loads = tmp_path / "run", []
    shutil.copytree(models / "translate", folder / "model")
    monkeypatch.setattr(default, "load", lambda path: loads.append(path) or load(path))
    first = as_model(folder, "translate")
    for path in (str(folder / "model"), folder / "." / "model"):
        assert as_model(path, "translate") is first
    assert len(loads) == 1
    model_folders.translator(folder / "model", seed=9)
    reloaded = as_model(folder, "translate")
    assert reloaded is not first and len(loads) == 2
    assert (
        regard.translate("hello", folder)
        == regard.translate("hello", load(folder))
        != regard.translate("hello", first)
    )
    for name in ("classify", "generate"):
        as_model(models / name, name)
    assert len(default._loaded) == default.MAX_LOADED
    as_model(folder, "translate")
    assert len(loads) == 5


def test_the_default_model_is_a_folder_and_a_loaded_model_is_returned_unchanged(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_MODEL", os.fspath(tmp_path))
    assert default_model("classify") == tmp_path
    model = object()
    assert as_model(model, "classify") is model


@pytest.mark.parametrize(
    ("target", "to", "message"),
    [
        ("de", "fr", "translates into 'de' only, got to='fr'"),
        (None, "de", "does not say which language it translates into, so to='de' cannot be checked"),
        ("2", "de", "does not say which language"),  # a column number, not a language
        ("de", "", "to is the name of a language, such as 'de', got ''"),
    ],
)
def test_a_target_language_other_than_that_of_the_model_is_refused(models, target, to, message):
    model = load(models / "translate")
    model.card = {"recipe": {"data": {"target": target}}}
    with pytest.raises(OptionError, match=message):
        regard.translate("hello", model, to)
    with pytest.raises(OptionError, match=message):
        regard.translate("hello", regard.Ensemble([model]), to=to)


def test_the_target_language_of_the_model_is_accepted(models):
    model = load(models / "translate")
    model.card = {"recipe": {"data": {"target": "de"}}}
    assert regard.translate("hello", model, to="DE") == regard.translate("hello", model)
