"""Taggers on CoNLL files: training, bit-exact resuming, and errors in recipes and data."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from regard.errors import DataError, RecipeError
from regard.evaluation.evaluate import data_section, evaluate
from regard.models.folder import load
from regard.models.tagger import Tagger
from regard.recipe.loading import load_recipe
from regard.training.estimate import estimate
from regard.training.trainer import resume, train
from tests.training import tiny

FIRST, LAST, PLACE = ("Ada", "Bob", "Cyd", "Dan"), ("Lee", "Kay", "May"), ("Ulm", "Rom", "Bonn", "Graz")
pytestmark = pytest.mark.usefixtures("own_cache")
MODEL = {
    "dim": 24,
    "dropout": 0.1,
    "word_dropout": 0.1,
    "characters": {"dim": 6, "width": 8},
    "encoder": {"kind": "recurrent", "cell": "lstm"},
}


def conll(folder: Path, rows: int = 60) -> dict[str, Any]:
    """Write files of sentences with persons and places."""
    draw, result = random.Random(1), {}
    for split, count in (("train", rows), ("validation", 12), ("test", 12)):
        text = "".join(
            f"{draw.choice(FIRST)}\tB-PER\n{draw.choice(LAST)}\tI-PER\nmet\tO\n"
            f"{draw.choice(FIRST)}\tB-PER\nin\tO\n{draw.choice(PLACE)}\tB-LOC\n\n"
            for _ in range(count)
        )
        (folder / f"{split}.conll").write_text(text, encoding="utf-8")
        result[split] = [str(folder / f"{split}.conll")]
    return result


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "task": "tag", "data": conll(folder), "tokenizer": {"kind": "word-characters", "lowercase": True},
        "model": MODEL, "batch": {"tokens": 400}, "decoding": {},
        "training__steps": 40, "training__save_every": 20, "training__validate_every": 20,
    }  # fmt: skip
    return tiny.recipe(folder, **{**settings, **changes})


def test_a_tagger_is_trained_saved_loaded_and_evaluated(tmp_path: Path) -> None:
    result = train(recipe(tmp_path), folder=tmp_path / "run", quiet=True)
    assert result.scores["test"]["f1"] > 0.95
    model = load(result.folder)
    assert isinstance(model, Tagger)
    assert model.tag([["Bob", "May", "in", "Graz"]]) == [["B-PER", "I-PER", "O", "B-LOC"]]
    evaluation = evaluate(model, data_section(model.card))
    assert evaluation.metrics is not None
    assert evaluation.metrics.as_dict()["micro"]["f1"] == result.scores["test"]["f1"]
    assert evaluation.predictions[0] == "B-PER I-PER O B-PER O B-LOC"


@pytest.mark.parametrize("scheme", ["iobes", "io"])
def test_another_tagging_scheme_has_the_same_scores(tmp_path: Path, scheme: str) -> None:
    changed_recipe = recipe(tmp_path)
    changed_recipe["data"]["scheme"] = scheme
    result = train(changed_recipe, folder=tmp_path / "run", quiet=True)
    model: Any = load(result.folder)
    assert model.scheme.name == scheme.upper()
    assert result.scores["test"]["f1"] > 0.95


def test_resuming_is_exact_with_word_dropout(tmp_path: Path) -> None:
    uninterrupted = train(recipe(tmp_path), folder=tmp_path / "uninterrupted", quiet=True)
    train(recipe(tmp_path, training__steps=20), folder=tmp_path / "half", quiet=True)
    resume(tmp_path / "half", overrides=["training.steps=40"], quiet=True)
    assert tiny.differences(tmp_path / "half", uninterrupted.folder) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"kind": "bpe"}}, "each word has one tag; choose word-characters"),
        (
            {"tokenizer": {"kind": "word"}},
            "tokenizer.kind is word and model.characters needs the characters of words",
        ),
        (
            {"model": {**MODEL, "characters": None}},
            "tokenizer.kind is word-characters and model.characters is null",
        ),
        ({"model": {**MODEL, "dim": 8}}, "leaves nothing of dim 8 for the word"),
        ({"training__smoothing": 0.1}, "for taggers without a CRF"),
        ({"model": {**MODEL, "crf": False, "constrain": True}}, "model.constrain needs a CRF"),
    ],
)
def test_contradicting_keys_are_errors_of_one_sentence(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        train(recipe(tmp_path, **changes), folder=tmp_path / "run", quiet=True)


def test_character_features_and_no_smoothing_are_the_defaults(tmp_path: Path) -> None:
    result: Any = load_recipe({"task": "tag", "data": conll(tmp_path)})
    assert result.tokenizer.kind == "word-characters"
    assert result.model.characters is not None
    assert result.training.smoothing == 0
    plain: Any = load_recipe({"task": "tag", "data": conll(tmp_path), "tokenizer": {"kind": "word"}})
    assert plain.model.characters is None


def test_invalid_tags_are_an_error_and_repaired_on_request(tmp_path: Path) -> None:
    changed_recipe = recipe(tmp_path, training__steps=6, training__validate_every=6)
    path = tmp_path / "train.conll"
    path.write_text(path.read_text(encoding="utf-8").replace("B-LOC", "I-LOC", 1), encoding="utf-8")
    with pytest.raises(DataError, match="line 6, column 2 of .*train.conll: I-LOC cannot follow O in BIO"):
        train(changed_recipe, folder=tmp_path / "run", quiet=True)
    changed_recipe["data"]["repair"] = True
    assert train(changed_recipe, folder=tmp_path / "repaired", quiet=True).finished


def test_a_tagger_is_estimated(tmp_path: Path) -> None:
    changed_recipe = recipe(tmp_path)
    changed_recipe["model"] = {**MODEL, "recall": 1.0, "constrain": True}
    estimated = estimate(changed_recipe)
    assert set(estimated.parameters) == {"source", "characters", "encoder", "output", "crf"}
    assert estimated.flops_per_token > 0
