"""The folder of a run, and which keys may change."""

import pytest

from regard.errors import FolderError, RecipeError
from regard.training.recipe import load
from regard.training.run import Run, check_unchanged
from tests.training import tiny


@pytest.fixture
def recipe(tmp_path):
    return load(tiny.recipe(tmp_path))


def test_a_begun_run_gives_its_recipe_back(tmp_path, recipe):
    run = Run(tmp_path / "runs" / "a")
    assert not run.exists()
    run.begin(recipe, overwrite=False)
    assert run.exists() and run.read_recipe() == recipe
    assert run.read_recipe(("training.steps=7",)).training.steps == 7
    assert run.read_report() is None


def test_a_folder_with_nothing_but_left_overs_of_a_kill_may_be_taken(tmp_path, recipe):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".recipe.yaml.writing").write_text("na", encoding="utf-8")
    Run(tmp_path / "a").begin(recipe, overwrite=False)


def test_a_folder_that_cannot_be_made_is_named(tmp_path, recipe):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FolderError, match="file"):
        Run(tmp_path / "file" / "run").begin(recipe, overwrite=False)


@pytest.mark.parametrize(
    "change", ["training.steps=99", "training.minutes=3", "training.validate_every=1", "decoding.beam=9", "name=b"]
)
def test_how_long_and_how_often_may_change(tmp_path, recipe, change):
    check_unchanged(recipe, load(recipe, [change]), tmp_path)


@pytest.mark.parametrize("change", ["seed=9", "model.dim=8", "optimizer.lr=1.0", "training.ema=0.5", "training.precision=bfloat16"])
def test_what_is_learned_may_not_change_and_the_key_is_named(tmp_path, recipe, change):
    with pytest.raises(RecipeError, match=rf"^{change.partition('=')[0]} is not what .*regard train"):
        check_unchanged(recipe, load(recipe, [change]), tmp_path)
