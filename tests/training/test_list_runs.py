"""Summaries of runs, read from their files."""

import json
import shutil

import pytest

from regard.errors import FolderError
from regard.files.lock import RunLock
from regard.training.list_runs import list_runs, summarize_run
from regard.training.trainer import train
from tests.training import tiny


@pytest.fixture(scope="module")
def runs(tmp_path_factory, own_cache):
    """A folder with a finished, a stopped, a started and a damaged run."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = tiny.recipe(folder, training__steps=6, training__validate_every=3, training__save_every=3)
    train(recipe, folder=folder / "finished", quiet=True)
    for name in ("stopped", "started", "damaged"):
        shutil.copytree(folder / "finished", folder / name)
    for name in ("stopped", "started"):
        (folder / name / "report.json").unlink()
        shutil.rmtree(folder / name / "model")
    shutil.rmtree(folder / "started" / "checkpoints")
    (folder / "damaged" / "recipe.yaml").write_text("[", encoding="utf-8")
    return folder


def test_the_state_of_every_run_is_listed(runs):
    states = {summary.folder.rpartition("/")[2]: summary.state for summary in list_runs(runs)}
    assert states == {
        "finished": "finished",
        "stopped": "stopped",
        "started": "started",
        "damaged": "damaged",
    }


def test_a_finished_run_has_its_test_score_and_a_stopped_one_its_best_validation(runs):
    report = json.loads((runs / "finished" / "report.json").read_text(encoding="utf-8"))
    finished, stopped = summarize_run(runs / "finished"), summarize_run(runs / "stopped")
    assert (finished.score_split, finished.score) == ("test", report["scores"]["test"]["bleu"])
    assert (finished.step, finished.flops) == (6, report["flops"])
    best = max(event["bleu"] for event in tiny.log(runs / "stopped", "validation"))
    assert (stopped.score_split, stopped.score, stopped.step) == ("validation", best, 6)


def test_the_summary_of_a_damaged_run_has_its_problem(runs):
    summary = summarize_run(runs / "damaged")
    assert "recipe.yaml" in summary.problem and summary.as_dict()["state"] == "damaged"


def test_the_folder_of_a_run_is_listed_as_one_run_and_a_missing_folder_is_an_error(runs, tmp_path):
    assert [summary.state for summary in list_runs(runs / "finished")] == ["finished"]
    assert list_runs(tmp_path) == []
    with pytest.raises(FolderError, match="there is no folder"):
        list_runs(tmp_path / "missing")


def test_a_run_that_a_process_holds_is_running(runs, tmp_path):
    shutil.copytree(runs / "stopped", tmp_path / "held")
    lock = RunLock(tmp_path / "held")
    lock.acquire()
    assert summarize_run(tmp_path / "held").state == "running"
    lock.release()
    assert summarize_run(tmp_path / "held").state == "stopped"
