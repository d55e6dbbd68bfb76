"""Bit-exact resumption: processes killed at random moments, damaged checkpoints, full disks, signals."""

import json
import os
import random
import shutil
import signal
import time

import pytest
from safetensors.torch import load_file

from regard.training.average import average
from regard.training.step_folders import step_folders
from tests.training import tiny


def train(folder, name="run", **changes):
    """Train without interruption; return the run folder and the seconds."""
    begin = time.monotonic()
    tiny.start(folder, "train", tiny.recipe(folder, **changes), folder / name).finish()
    return folder / name, time.monotonic() - begin


def kill_repeatedly(folder, reference, seconds, kills, draw, **changes):
    """Kill the run at random moments `kills` times; whenever it ends, compare it and start a new one.

    Returns the number of kills and of runs that ended.
    """
    killed = runs = 0
    while killed < kills or runs == 0:
        run = folder / "killed"
        begun = (run / "recipe.yaml").is_file()
        process = tiny.start(
            folder, "resume" if begun else "train", None if begun else tiny.recipe(folder, **changes), run
        )
        if killed < kills and process.wait(draw.uniform(0, 0.7 * seconds)) is None and process.kill():
            killed += 1
            continue
        process.finish()
        assert tiny.differences(run, reference) == []
        runs += 1
        os.rename(run, folder / f"finished-{runs}")
    return killed, runs


@pytest.mark.slow  # tests/test_attack.py kills a few times in the quick tests
def test_after_four_random_kills_the_run_is_identical(tmp_path):
    reference, seconds = train(tmp_path)
    assert kill_repeatedly(tmp_path, reference, seconds, 4, random.Random(1))[0] == 4


@pytest.mark.slow
def test_after_fifty_random_kills_the_run_is_identical(tmp_path):
    changes = {"training__steps": 150}
    reference, seconds = train(tmp_path, **changes)
    killed, runs = kill_repeatedly(tmp_path, reference, seconds, 50, random.Random(2), **changes)
    assert killed == 50
    print(f"{killed} kills over {runs} runs, each bit-identical to the uninterrupted one")


PENALTIES = {"activation_penalty": 2.0, "temporal_penalty": 1.0}
DECODER = {"kind": "recurrent", "cell": "lstm", "layers": 2, **PENALTIES}
LANGUAGE = {
    "task": "language",
    "model": {"dim": 12, "dropout": 0.2, "decoder": DECODER},
    "batch": {"mode": "stream", "length": 9, "sentences": 3, "accumulate": 2},
    "schedule": {"kind": "cosine", "warmup": 3},
}


def language_data(folder):
    draw = random.Random(3)
    for split, lines in (("train", 60), ("validation", 12)):
        text = "\n".join(" ".join(draw.choices("ab cd ef gh".split(), k=5)) for _ in range(lines))
        (folder / f"{split}.txt").write_text(text + "\n", encoding="utf-8")
    return {split: [str(folder / f"{split}.txt")] for split in ("train", "validation")}


@pytest.mark.slow
def test_a_stream_resumes_with_its_recurrent_state(tmp_path):
    changes = {**LANGUAGE, "data": language_data(tmp_path)}
    reference, seconds = train(tmp_path, **changes)
    assert kill_repeatedly(tmp_path, reference, seconds, 2, random.Random(4), **changes)[0] == 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    train(folder)
    return folder


@pytest.fixture
def broken(finished, tmp_path):
    """A copy of a finished run without model and report, as if it had been killed."""
    shutil.copytree(finished / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    (tmp_path / "run" / "report.json").unlink()
    return tmp_path


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(finished, broken, damage):
    last = step_folders(broken / "run" / "checkpoints")[-1] / "tensors.safetensors"
    if damage == "cut":
        os.truncate(last, 1000)
    else:
        content = bytearray(last.read_bytes())
        content[len(content) // 2] ^= 16
        last.write_bytes(content)
    output = tiny.start(finished, "resume", None, broken / "run").finish()
    assert "damaged" in output and "the checkpoint before it is used" in output
    assert tiny.differences(broken / "run", finished / "run") == []


def test_resuming_a_finished_run_ends_at_once(finished, broken):
    output = tiny.start(finished, "resume", None, broken / "run").finish()
    assert "resuming after step 60" in output
    assert tiny.differences(broken / "run", finished / "run") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_the_resumed_run_is_identical(finished, tmp_path, number):
    process = tiny.start(finished, "train", tiny.recipe(finished), tmp_path / "run")
    while not step_folders(tmp_path / "run" / "checkpoints"):
        time.sleep(0.005)
    process.send(number)
    output = process.finish()
    result = json.loads(output[output.index("{") : output.index("}") + 1])
    assert result["finished"] is False and result["reason"] == "interrupted" and 7 <= result["steps"] < 60
    assert result["signal"] == number and "stopping after this step" in output
    validated = bool(step_folders(tmp_path / "run" / "best"))
    assert (tmp_path / "run" / "model").exists() == validated and (tmp_path / "run" / "curves.png").is_file()
    tiny.start(finished, "resume", None, tmp_path / "run").finish()
    assert tiny.differences(tmp_path / "run", finished / "run") == []


def test_a_finished_run_that_is_continued_and_stopped_has_its_best_model_so_far(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    process = tiny.start(finished, "resume", None, run, "training.steps=100000")
    while step_folders(run / "checkpoints")[-1].name == "step-00000060":
        time.sleep(0.005)
    process.send(signal.SIGINT)
    output = process.finish()
    card = json.loads((run / "model" / "card.json").read_text(encoding="utf-8"))
    assert card["finished"] is False and f'"steps": {card["steps"]}' in output and card["steps"] > 60
    average([run], tmp_path / "average")
    assert tiny.same_tensors(tiny.weights(run), load_file(tmp_path / "average" / "model.safetensors"))


def test_two_signals_stop_at_once(finished, tmp_path):
    process = tiny.start(finished, "train", tiny.recipe(finished, training__steps=100_000), tmp_path / "run")
    while not step_folders(tmp_path / "run" / "checkpoints"):
        time.sleep(0.005)
    process.send(signal.SIGSTOP)  # so that both signals are pending
    process.send(signal.SIGINT)
    process.send(signal.SIGTERM)
    process.send(signal.SIGCONT)
    assert process.wait() == 1 and "StopNow" in process.printed()


def test_a_full_disk_is_a_clear_error_and_the_run_can_be_resumed(finished, tmp_path):
    """A limit on file sizes that only the checkpoints' tensors exceed."""
    process = tiny.start(finished, "train", tiny.recipe(finished), tmp_path / "run", largest_file=20_000)
    assert process.wait() == 2, process.printed()
    assert "cannot be written (File too large); free some space" in process.printed()
    assert "Traceback" not in process.printed()
    assert list((tmp_path / "run").rglob(".*")) == []  # no temporary file is left
    tiny.start(finished, "resume", None, tmp_path / "run").finish()
    assert tiny.differences(tmp_path / "run", finished / "run") == []
