"""The folder of a run, and which keys may change."""

import json

import pytest

from regard.errors import FolderError, RecipeError
from regard.files.atomic import write_folder
from regard.recipe.loading import load_recipe
from regard.training.run_folder import RunFolder, check_unchanged
from tests.training import tiny


@pytest.fixture
def recipe(tmp_path):
    return load_recipe(tiny.recipe(tmp_path))


def test_a_created_run_returns_its_recipe(tmp_path, recipe):
    run = RunFolder(tmp_path / "runs" / "a")
    assert not run.exists()
    run.create(recipe, overwrite=False)
    assert run.exists() and run.read_recipe() == recipe
    assert run.read_recipe(("training.steps=7",)).training.steps == 7
    assert run.read_report() is None


def test_a_folder_with_only_hidden_leftovers_counts_as_empty(tmp_path, recipe):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".recipe.yaml.writing").write_text("na", encoding="utf-8")
    run = RunFolder(tmp_path / "a")
    run.create(recipe, overwrite=False)
    assert run.read_recipe() == recipe


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path, recipe):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FolderError, match="file"):
        RunFolder(tmp_path / "file" / "run").create(recipe, overwrite=False)


@pytest.mark.parametrize(
    "change",
    [
        "training.steps=99",
        "training.minutes=3",
        "training.validate_every=1",
        "decoding.validation_beam=3",
        "decoding.beam=9",
        "name=b",
    ],
)
def test_length_intervals_and_decoding_may_change(tmp_path, recipe, change):
    recipe = load_recipe(recipe, ["schedule={kind: constant}"])
    changed = load_recipe(recipe, [change])
    assert changed != recipe
    check_unchanged(recipe, changed, tmp_path)  # raises no error


@pytest.mark.parametrize(
    "change", ["training.validate_every=1", "decoding.validation_beam=3", "decoding.max_length=5"]
)
def test_validation_may_not_change_if_plateau_or_early_stopping_depends_on_it(tmp_path, recipe, change):
    key = change.partition("=")[0]
    with pytest.raises(
        RecipeError, match=rf"^{key} may not change .*: the plateau schedule counts .* put it back"
    ):
        check_unchanged(recipe, load_recipe(recipe, [change]), tmp_path)
    early = load_recipe(recipe, ["schedule={kind: constant}", "training.patience=3"])
    with pytest.raises(RecipeError, match=rf"^{key} may not change .*: early stopping"):
        check_unchanged(early, load_recipe(early, [change]), tmp_path)
    check_unchanged(early, load_recipe(early, [change, "training.patience=null"]), tmp_path)
    check_unchanged(recipe, load_recipe(recipe, ["decoding.beam=5", "training.save_every=3"]), tmp_path)


def test_a_missing_recipe_is_read_from_the_newest_checkpoint(tmp_path, recipe):
    folder = tmp_path / "a" / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"recipe": recipe.model_dump()}), encoding="utf-8")
    assert RunFolder(tmp_path / "a").read_recipe(("training.steps=7",)) == load_recipe(
        recipe, ["training.steps=7"]
    )


def test_overwriting_a_run_removes_only_its_own_files(tmp_path, recipe):
    run = RunFolder(tmp_path / "a")
    run.create(recipe, overwrite=False)
    for path in (run.best / "step-00000001", run.checkpoints / "step-00000002", run.model):
        write_folder(path, lambda folder: (folder / "x").write_text("ours", encoding="utf-8"))
    theirs = [
        run.best / "mine" / "x",
        run.checkpoints / "step-2-kept" / "x",
        run.model / "notes.txt",
        run.folder / "plan.txt",
    ]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs", encoding="utf-8")
    run.create(recipe, overwrite=True)
    assert sorted(p for p in run.folder.rglob("*") if p.is_file()) == sorted([*theirs, run.recipe])


@pytest.mark.parametrize(
    "change", ["seed=9", "model.dim=8", "optimizer.lr=1.0", "training.ema=0.5", "training.precision=bfloat16"]
)
def test_keys_that_affect_the_weights_may_not_change(tmp_path, recipe, change):
    with pytest.raises(RecipeError, match=rf"^{change.partition('=')[0]} is not what .*regard train"):
        check_unchanged(recipe, load_recipe(recipe, [change]), tmp_path)
