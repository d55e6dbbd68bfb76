"""Tests of trainer.py, loop.py, training_data.py, finish.py, nonfinite.py and tensorboard.py."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import DataError, DeviceError, FolderError, RecipeError, RegardError
from regard.files.checksums import file_sha256
from regard.models.folder import load
from regard.training.step_folders import step_folders
from regard.training.trainer import resume, train
from tests.training import tiny

SHORT = {
    "training__steps": 6,
    "training__validate_every": 3,
    "training__save_every": 2,
    "training__log_every": 1,
}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def run(folder, name="run", **changes):
    return train(tiny.recipe(folder, **{**SHORT, **changes}), folder=folder / name, quiet=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, shared by several tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        folder = tmp_path_factory.mktemp("done")
        return run(folder)


def test_a_finished_run_has_its_files_and_report(finished):
    names = {f.name for f in finished.folder.iterdir()}
    assert names == {"recipe.yaml", "log.jsonl", "checkpoints", "best", "model", "report.json", "curves.png"}
    assert [f.name for f in step_folders(finished.folder / "checkpoints")] == [
        "step-00000004",
        "step-00000006",
    ]
    assert len(step_folders(finished.folder / "best")) == 2
    assert finished.finished and finished.reason == "steps" and finished.steps == 6
    report = json.loads((finished.folder / "report.json").read_text(encoding="utf-8"))
    assert report["scores"] == finished.scores and set(finished.scores) == {"validation", "test"}
    assert {"loss", "perplexity", "bleu"} <= set(finished.scores["test"])
    assert report["flops"] > 0 and report["seconds"] > 0 and len(report["data"]["files"]) == 4


def test_the_log_has_every_step_and_validation(finished):
    assert [e["step"] for e in tiny.log(finished.folder)] == [1, 2, 3, 4, 5, 6]
    assert [e["step"] for e in tiny.log(finished.folder, "validation")] == [3, 6]
    for event in tiny.log(finished.folder):
        assert math.isfinite(event["loss"]) and event["nll"] < event["loss"] + 1 and event["norm"] > 0


def test_the_final_model_is_the_mean_of_the_best(finished):
    best = [load_file(f / "model.safetensors") for f in step_folders(finished.folder / "best")]
    model = load_file(finished.model_folder / "model.safetensors")
    for name, x in model.items():
        expected = torch.stack([b[name].double() for b in best]).mean(0).float()
        assert torch.equal(x, expected), name
    assert load(finished.folder).card["averaged_steps"] in ([3, 6], [6, 3])


def test_flops_are_three_forward_passes_of_every_sentence(finished):
    """Six steps of two batches are three epochs over 80 pairs."""
    model = load(finished.folder)
    last = tiny.log(finished.folder)[-1]
    epochs = last["epochs"]
    lengths = (finished.folder.parent / "train.x").read_text(encoding="utf-8").split()
    forward_flops = sum(3 * model.flops(len(w) + 1, len(w) + 1) for w in lengths)
    assert epochs == 3.0 and finished.flops == 3 * forward_flops
    assert last["tokens"] == 3 * sum(len(w) + 1 for w in lengths)


def test_the_same_seed_gives_the_same_weights(finished, tmp_path):
    repeated = run(finished.folder.parent, name=tmp_path / "repeated")
    other = run(finished.folder.parent, name=tmp_path / "other", seed=8)
    assert tiny.differences(repeated.folder, finished.folder) == []
    assert any(
        not x.equal(tiny.weights(other.folder)[name]) for name, x in tiny.weights(finished.folder).items()
    )


def test_training_does_not_change_the_callers_random_state_and_threads(tmp_path):
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(tmp_path, training__threads=2)
    assert torch.equal(torch.rand(3), expected) and torch.get_num_threads() == threads


def test_the_frequency_of_validation_does_not_change_the_weights(finished, tmp_path):
    same = {"schedule": {"kind": "constant"}, "training__keep": 1, "training__average": 1}
    often = run(tmp_path, name="often", **same, training__validate_every=1)
    seldom = run(
        tmp_path,
        name="seldom",
        **same,
        training__validate_every=6,
        training__save_every=5,
        training__log_every=4,
    )
    a, b = (
        load_file(step_folders(r.folder / "checkpoints")[-1] / "tensors.safetensors") for r in (often, seldom)
    )
    assert all(a[name].equal(b[name]) for name in a)


def test_accumulated_batches_are_one_large_batch(tmp_path):
    """The loss is normalized by the tokens of the step, so batches of unequal size are weighted by tokens."""
    same = {
        "model__dropout": 0.0,
        "training__ema": 0.0,
        "schedule": {"kind": "constant"},
        "optimizer__clip": None,
    }
    parts = run(tmp_path, name="parts", **same, batch={"tokens": 400, "accumulate": 4, "sentences": 20})
    single = run(tmp_path, name="single", **same, batch={"tokens": 1000, "accumulate": 1, "sentences": 80})
    losses = [[e["loss"] for e in tiny.log(r.folder)] for r in (parts, single)]
    assert [e["tokens"] for e in tiny.log(parts.folder)] == [e["tokens"] for e in tiny.log(single.folder)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_learns(tmp_path, precision):
    result = run(tmp_path, training__precision=precision, training__steps=20, training__validate_every=20)
    losses = [e["loss"] for e in tiny.log(result.folder)]
    assert losses[-1] < losses[0] - 0.3


def test_float16_resumes_with_its_loss_scale(tmp_path):
    changes = {"training__precision": "float16", "training__steps": 10, "training__ema": 0.0}
    uninterrupted = run(tmp_path, **changes)
    half = run(tmp_path, name="half", **{**changes, "training__steps": 6})
    resume(half.folder, overrides=["training.steps=10"], quiet=True)
    a, b = (
        load_file(r.folder / "checkpoints" / "step-00000010" / "tensors.safetensors")
        for r in (uninterrupted, half)
    )
    assert all(a[name].equal(b[name]) for name in a)


def test_a_resumed_longer_run_equals_one_that_was_long_from_the_start(finished, tmp_path):
    long = run(finished.folder.parent, name=tmp_path / "long", training__steps=9)
    short = run(finished.folder.parent, name=tmp_path / "short")
    result = resume(short.folder, overrides=["training.steps=9"], quiet=True)
    assert result.steps == 9
    assert tiny.differences(short.folder, long.folder) == []


def test_epochs_minutes_and_patience_end_a_run(tmp_path):
    assert run(tmp_path, name="epochs", training__steps=None, training__epochs=2.0).steps == 4
    assert run(tmp_path, name="minutes", training__steps=None, training__minutes=1e-4).reason == "minutes"
    without_progress = {
        "training__steps": 99,
        "training__patience": 2,
        "training__validate_every": 1,
        "optimizer__lr": 1e-30,
        "training__ema": 0.0,
    }
    result = run(tmp_path, name="patience", **without_progress)
    assert result.reason == "patience" and result.steps == 3


def test_minutes_count_over_resumptions(tmp_path):
    first = run(tmp_path, training__steps=None, training__minutes=1e-4)
    assert resume(first.folder, quiet=True).steps <= first.steps + 1


def test_an_existing_run_is_not_overwritten(finished):
    recipe = tiny.recipe(finished.folder.parent, **SHORT)
    with pytest.raises(FolderError, match="regard resume .* or replace it with --overwrite"):
        train(recipe, folder=finished.folder, quiet=True)


def test_overwrite_starts_a_new_run(tmp_path):
    first = run(tmp_path)
    second = train(
        tiny.recipe(tmp_path, **SHORT),
        folder=first.folder,
        overwrite=True,
        overrides=["training.steps=5"],
        quiet=True,
    )
    assert second.steps == 5 and [e["step"] for e in tiny.log(second.folder)] == [1, 2, 3, 4, 5]


def test_a_folder_that_is_not_a_run_is_never_changed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(FolderError, match="is not a run"):
            train(tiny.recipe(tmp_path, **SHORT), folder=tmp_path / "mine", overwrite=overwrite, quiet=True)
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_missing_gpu_is_an_error_before_the_folder_is_created(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceError, match="cuda"):
        run(tmp_path, training__device="cuda")
    assert not (tmp_path / "run").exists()


def test_missing_files_are_an_error_before_the_folder_is_created(tmp_path):
    recipe = tiny.recipe(tmp_path, **SHORT)
    (tmp_path / "train.y").unlink()
    with pytest.raises(DataError, match="train.y"):
        train(recipe, folder=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_resuming_with_a_changed_recipe_names_the_keys(finished):
    with pytest.raises(
        RecipeError,
        match=r"batch.tokens, optimizer.lr are not what .* put them back to resume, or start a run",
    ):
        resume(finished.folder, overrides=["optimizer.lr=0.5", "batch.tokens=99"], quiet=True)


def test_an_edited_recipe_file_is_detected(tmp_path):
    first = run(tmp_path)
    file = first.folder / "recipe.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("seed: 7", "seed: 8"), encoding="utf-8")
    with pytest.raises(RecipeError, match="seed is not what"):
        resume(first.folder, quiet=True)


def test_a_cosine_schedule_cannot_become_longer(tmp_path):
    first = run(tmp_path, schedule={"kind": "cosine", "warmup": 2})
    with pytest.raises(RecipeError, match=r"training.steps"):
        resume(first.folder, overrides=["training.steps=9"], quiet=True)


def test_changed_training_data_is_detected(tmp_path):
    first = run(tmp_path)
    tiny.write_pairs(tmp_path, seed=99)
    with pytest.raises(
        RegardError,
        match=r"the training set of .* is not the one of its checkpoint .*train.x, .*train.y back",
    ):
        resume(first.folder, overrides=["training.steps=9"], quiet=True)


def test_changed_validation_data_is_detected(tmp_path):
    first = run(tmp_path)
    file = tmp_path / "validation.y"
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace(before[0], "a" if before[0] != "a" else "b", 1), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"the validation set of .* is not the one of its checkpoint .*validation.y"
    ):
        resume(first.folder, overrides=["training.steps=9"], quiet=True)
    file.write_text(before, encoding="utf-8")
    assert resume(first.folder, overrides=["training.steps=9"], quiet=True).steps == 9


def test_a_cosine_by_epochs_keeps_its_rates(tmp_path, monkeypatch):
    """The length in steps is computed from epochs, and differs on another number of processes."""
    from regard.training.step_iterator import StepIterator

    changes = {"schedule": {"kind": "cosine", "warmup": 2}, "training__steps": None, "training__epochs": 3.0}
    first = run(tmp_path, **changes)
    rates = [(e["step"], e["rate"]) for e in tiny.log(first.folder)]
    shutil.rmtree(step_folders(first.folder / "checkpoints")[-1])
    count = StepIterator.steps_in
    monkeypatch.setattr(StepIterator, "steps_in", lambda self, epochs: 2 * count(self, epochs))
    resume(first.folder, quiet=True)
    assert [(e["step"], e["rate"]) for e in tiny.log(first.folder)] == rates and len(rates) == 6


@pytest.fixture
def stopped(finished, tmp_path):
    """A copy of a finished run without its last checkpoint, model and report."""
    copy = tmp_path / "run"
    shutil.copytree(finished.folder, copy)
    for path in (copy / "model", step_folders(copy / "checkpoints")[-1]):
        shutil.rmtree(path)
    (copy / "report.json").unlink()
    return copy


@pytest.mark.parametrize(
    "missing", [["log.jsonl"], ["recipe.yaml"], ["best"], ["log.jsonl", "recipe.yaml", "best", "curves.png"]]
)
def test_the_checkpoint_alone_is_enough_to_resume(finished, stopped, missing, capsys):
    for name in missing:
        shutil.rmtree(stopped / name) if (stopped / name).is_dir() else (stopped / name).unlink()
    result = resume(stopped)
    assert result.finished and result.steps == 6
    last = [
        load_file(folder / "checkpoints" / "step-00000006" / "tensors.safetensors")
        for folder in (stopped, finished.folder)
    ]
    assert all(last[0][name].equal(last[1][name]) for name in last[1])
    if "log.jsonl" in missing:
        assert "log.jsonl is missing; its 0 complete lines" in capsys.readouterr().err
        assert [e["step"] for e in tiny.log(stopped)] == [5, 6]


def edit_state(folder, change):
    """Change state.json of a checkpoint and its checksum."""
    file = folder / "state.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    change(state)
    file.write_text(json.dumps(state), encoding="utf-8")
    checksums = json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
    (folder / "checksums.json").write_text(
        json.dumps({**checksums, "state.json": file_sha256(file)}), encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("threads"), "threads in state.json is None"),
        (lambda s: s.update(processes=0), "processes in state.json is 0"),
        (lambda s: s.update(processes=2), "rank-00001"),
        (lambda s: s.update(trainer_state=[]), r"trainer_state in state.json is \[\]"),
        (lambda s: s["trainer_state"].update(step=3), "state.json is that of step 3"),
        (lambda s: s["trainer_state"].update(step="4"), "trainer_state.step in state.json is '4'"),
        (lambda s: s["trainer_state"].update(speed=1), "unknown trainer_state.speed"),
        (lambda s: s["trainer_state"].update(best=[3]), "trainer_state.best in state.json holds 3"),
        (lambda s: s.update(schedule={}), "memory"),
        (lambda s: s.update(log_position="x"), "log_position in state.json is 'x'"),
        (lambda s: s.update(recipe={}), "recipe in state.json: data names neither"),
        (lambda s: s.update(data_checksums=[]), r"data_checksums in state.json is \[\]"),
    ],
)
def test_an_invalid_state_is_an_error_of_one_sentence(stopped, change, message):
    edit_state(step_folders(stopped / "checkpoints")[-1], change)
    with pytest.raises(RegardError, match=message):
        resume(stopped, quiet=True)


def test_an_invalid_older_checkpoint_is_ignored(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "run")
    first, _ = step_folders(tmp_path / "run" / "checkpoints")
    edit_state(first, lambda s: s["trainer_state"].update(best=[{"step": "x"}]))
    assert resume(tmp_path / "run", overrides=["training.steps=7"], quiet=True).steps == 7


def test_resuming_another_folder_is_an_error(tmp_path):
    with pytest.raises(FolderError, match="does not exist"):
        resume(tmp_path / "nowhere", quiet=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match="is not the folder of a run"):
        resume(tmp_path / "empty", quiet=True)


def test_a_non_finite_loss_is_an_error_with_the_saved_batch(tmp_path):
    with pytest.raises(RegardError, match=r"of step \d+ is not finite \(rows [\d, ]+.* saved in") as error:
        run(
            tmp_path,
            optimizer__lr=1e30,
            optimizer__clip=None,
            training__steps=50,
            training__log_every=5,
            schedule={"kind": "constant"},
        )
    file = next((tmp_path / "run").glob("not-finite-step-*.json"))
    assert str(file) in str(error.value)
    saved = json.loads(file.read_text(encoding="utf-8"))
    batch = saved["batches"][0]
    words = (tmp_path / "train.x").read_text(encoding="utf-8").split()
    assert [row["text"] for row in batch["source"]] == [words[i] for i in batch["rows"]]
    for folder in step_folders(tmp_path / "run" / "checkpoints"):  # only finite tensors were saved
        tensors = load_file(folder / "tensors.safetensors")
        assert all(bool(torch.isfinite(x).all()) for x in tensors.values())


def test_the_tensorboard_log_is_written(tmp_path):
    pytest.importorskip("tensorboard")
    result = run(tmp_path, training__tensorboard=True)
    assert list((result.folder / "tensorboard").glob("events.out.tfevents.*"))


def test_progress_is_printed_without_a_terminal(tmp_path, capsys):
    train(tiny.recipe(tmp_path, **SHORT), folder=tmp_path / "run")
    printed = capsys.readouterr().err
    assert "validation at step 3: loss" in printed and "BLEU" in printed


@pytest.mark.parametrize(
    ("mode", "decoder"),
    [
        ("crops", {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32}),
        ("lines", {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32}),
        ("stream", {"kind": "recurrent", "cell": "gru"}),
    ],
)
def test_language_models_train_in_every_batch_mode(tmp_path, mode, decoder):
    text = "".join(f"{'abcdefgh'[i % 8] * 3} {'hgfedcba'[i % 8] * 2}\n" for i in range(60))
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    files = {split: [str(tmp_path / f"{split}.txt")] for split in ("train", "validation", "test")}
    batch = {"mode": mode, "length": 12, "sentences": 4, "tokens": 100}
    recipe = {
        **tiny.recipe(tmp_path, **SHORT),
        "task": "language",
        "data": files,
        "model": {"dim": 16, "decoder": decoder},
        "batch": batch,
    }
    recipe["training"] |= {"steps": 30, "validate_every": 15, "smoothing": 0.0}
    result = train(recipe, folder=tmp_path / "run", quiet=True)
    scores = result.scores["test"]
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"])) and scores["perplexity"] < 12
    assert scores["bits_per_character"] > 0 and "bleu" not in scores
    assert result.flops > 0


def test_cache_entries_name_their_recipe(tmp_path, monkeypatch):
    from regard.data import prepared_cache

    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    run(tmp_path, training__steps=5)
    notes = {entry.made_by for entry in prepared_cache.entries() if entry.kind == "data"}
    assert any(note.startswith("training set of") and note.endswith("recipe tiny") for note in notes)
    assert any(note.startswith("validation set of") for note in notes) and any(
        note.startswith("test set of") for note in notes
    )
