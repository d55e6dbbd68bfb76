"""Tests of average.py: the mean of model folders and checkpoints."""

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import FolderError
from regard.files.checksums import verify_complete
from regard.models.folder import load
from regard.training.average import average
from regard.training.step_folders import step_folders
from regard.training.trainer import train
from tests.models.multilingual import TRANSFORMER, multilingual
from tests.training import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("average")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        steps = {"training__steps": 6, "training__validate_every": 2, "training__save_every": 3}
        recipe = tiny.recipe(folder, **steps, training__keep=3, training__average=1)
        return train(recipe, folder=folder / "run", quiet=True).folder


def mean_of(files, prefix=""):
    states = [load_file(file) for file in files]
    names = [name for name in states[0] if name.startswith(prefix)]
    return {
        name.removeprefix(prefix): torch.stack([f[name].double() for f in states]).mean(0).float()
        for name in names
    }


def test_the_mean_of_model_folders_is_a_model_folder(run, tmp_path):
    best = step_folders(run / "best")
    assert len(best) == 3
    average(best[:2], tmp_path / "mean")
    expected = mean_of([f / "model.safetensors" for f in best[:2]])
    model = load(tmp_path / "mean")
    assert all(torch.equal(p, expected[name]) for name, p in model.named_parameters())
    assert len(model.card["average_of"]) == 2


def test_averaging_a_run_averages_its_best_checkpoints(run, tmp_path):
    average([run], tmp_path / "mean")
    expected = mean_of([f / "model.safetensors" for f in step_folders(run / "best")])
    assert all(torch.equal(p, expected[name]) for name, p in load(tmp_path / "mean").named_parameters())


def test_averaging_checkpoints_uses_the_evaluated_weights(run, tmp_path):
    last = step_folders(run / "checkpoints")
    average(last, tmp_path / "mean")
    expected = mean_of([f / "tensors.safetensors" for f in last], "ema.")
    assert all(torch.equal(p, expected[name]) for name, p in load(tmp_path / "mean").named_parameters())


def test_folders_that_cannot_be_averaged_are_errors(run, tmp_path):
    best = step_folders(run / "best")
    with pytest.raises(FolderError, match="nothing to average"):
        average([], tmp_path / "mean")
    with pytest.raises(FolderError, match="neither a model folder nor a checkpoint"):
        average([tmp_path], tmp_path / "mean")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("", encoding="utf-8")
    with pytest.raises(FolderError, match="already exists; give another folder, or --overwrite"):
        average(best, tmp_path / "mine")
    with pytest.raises(FolderError, match="is not a model folder that regard wrote"):
        average(best, tmp_path / "mine", overwrite=True)
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["x"]


def test_overwrite_replaces_an_average_and_keeps_other_files(run, tmp_path):
    best = step_folders(run / "best")
    average(best[:1], tmp_path / "mean")
    (tmp_path / "mean" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FolderError, match="already exists"):
        average(best, tmp_path / "mean")
    average(best, tmp_path / "mean", overwrite=True)
    assert len(load(tmp_path / "mean").card["average_of"]) == 3
    assert (tmp_path / "mean" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_an_input_is_never_overwritten(run, monkeypatch):
    best = step_folders(run / "best")
    monkeypatch.chdir(run)
    for out in (best[0], best[0] / "mean", run / "best", run / "." / "best" / best[1].name, "best"):
        with pytest.raises(FolderError, match="which is averaged; give another folder"):
            average(best, out, overwrite=True)
    with pytest.raises(FolderError, match="which is averaged"):
        average([run], best[2], overwrite=True)
    with pytest.raises(FolderError, match="which is averaged"):
        average([run, run], run, overwrite=True)
    for folder in best:
        verify_complete(folder)


def test_models_of_another_shape_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))
    recipe = tiny.recipe(run.parent, training__steps=5, model__dim=8)
    other = train(recipe, folder=tmp_path / "run", quiet=True).folder
    with pytest.raises(
        FolderError, match=r"are different models|do not have the same|give checkpoints of one model"
    ):
        average([run / "model", other / "model"], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_folders_in_int8_are_refused(tmp_path):
    folders = [
        multilingual(tmp_path / name, layer=TRANSFORMER | {"inner": 512}, precision="int8")
        for name in ("a", "b")
    ]
    with pytest.raises(FolderError, match="a is stored in int8; average the models, then `regard quantize`"):
        average(folders, tmp_path / "mean")
