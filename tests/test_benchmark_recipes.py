"""benchmarks/recipes.py: the table, resuming, failures and stopping of `python -m benchmarks.recipes`."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from benchmarks import recipes
from benchmarks.recipes import ACCURACY, CommandError, Recipe, Run, Runner

from regard.errors import OptionError

TINY = Recipe("trec", (1, 2, 3, 5), ACCURACY, 1)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", (TINY,))
    return [Run(TINY, number, tmp_path, []) for number in TINY.numbers]


def store(run, validation, test):
    scores = {"validation": {"accuracy": validation}, "test": {"accuracy": test}}
    run.save(cpu_seconds=90.0, versions={"regard": "0.5.0"}, date="2026-11-18", evaluations=scores)


def test_the_table_has_mean_and_deviation_of_finished_runs_and_names_the_others(runs, tmp_path, capsys):
    for run, test in zip(runs[:2], (0.90, 0.92), strict=True):
        store(run, 0.85, test)
    runs[2].save(failure="regard: no space left (exit code 2)")
    assert recipes.main(["trec", "--out", str(tmp_path), "--table"]) == 1
    text = capsys.readouterr().out
    row = "| `trec` | accuracy | seed 1–2 | 85.00 ± 0.00 | 91.00 ± 1.41 | 1.5 | 0.5.0 | 2026-11-18 |"
    notes = "- trec-3 failed: regard: no space left (exit code 2)\n- trec: seed 5 not finished\n"
    assert text.split("\n", 2)[2] == f"{row}\n\n{notes}"
    assert (tmp_path / "results.md").read_text(encoding="utf-8") == text
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["recipes"]["trec"]["figures"]["accuracy"]["test"]["values"] == [90.0, 92.0]
    assert results["runs"]["trec-3"]["failure"].startswith("regard: no space")


def test_a_table_has_a_row_for_every_test_set(tmp_path):
    recipe = next(recipe for recipe in recipes.RECIPES if recipe.name == "multi30k-en-de")
    run = Run(recipe, 1, tmp_path, [])
    splits = dict(zip(recipe.evaluations, (40.0, 41.0, 33.0, 29.0), strict=True))
    evaluations = {split: {"none": {"bleu": bleu}} for split, bleu in splits.items()}
    run.save(cpu_seconds=60.0, versions={"regard": "0.5.0"}, date="2026-11-18", evaluations=evaluations)
    text = recipes.write_results(tmp_path, [run])
    assert "| BLEU | seed 1 | 40.00 | 41.00 |" in text
    assert "| BLEU, test 2017 | seed 1 | – | 33.00 |" in text
    assert "| BLEU, COCO | seed 1 | – | 29.00 |" in text


def test_recipes_for_a_gpu_are_trained_only_if_they_are_named(tmp_path):
    groups = {recipe.name: recipe.group for recipe in recipes.RECIPES}
    assert groups["wikitext-2"] == "gpu"
    for words, group in (([], "cpu"), (["gpu"], "gpu")):
        names = {run.recipe.name for run in recipes.chosen(tmp_path, recipes.parse(words))}
        assert names == {name for name in groups if groups[name] == group}
    assert "training.device=cuda" in Run(recipes.RECIPES[-1], 1, tmp_path, []).training_command()


def test_a_finished_run_is_not_trained_again_and_a_failed_one_is(runs, tmp_path, monkeypatch, capsys):
    calls = []

    def call(runner, run, arguments, count_time=False):
        calls.append((run.name, arguments[1]))
        if len(calls) == 1:
            raise CommandError("broken")
        report = dict.fromkeys(("parameters", "steps", "seconds", "flops"), 1)
        report["versions"] = {"regard": "0.5.0"}
        run.folder.mkdir(exist_ok=True)
        (run.folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
        return json.dumps({"scores": {"accuracy": 0.5}})

    monkeypatch.setattr(Runner, "_call", call)
    for run in runs[:3]:
        store(run, 0.5, 0.5)
    assert recipes.main(["--jobs", "2", "--out", str(tmp_path)]) == 1
    assert "trec-5 failed: broken" in capsys.readouterr().out
    assert recipes.main(["--jobs", "2", "--out", str(tmp_path)]) == 0
    assert "| seed 1–3, 5 | 50.00 ± 0.00 |" in capsys.readouterr().out
    assert calls == [("trec-5", what) for what in ("train", "train", "evaluate", "evaluate")]


def test_runs_with_other_overrides_are_not_mixed(runs, tmp_path):
    store(runs[0], 0.5, 0.5)
    with pytest.raises(OptionError, match="trec-1 was trained with no --set; give the same"):
        recipes.main(["--out", str(tmp_path), "--set", "training.epochs=1"])


def test_an_interrupted_run_is_resumed(runs):
    assert runs[0].training_command()[:4] == ["regard", "train", "trec", "seed=1"]
    (runs[0].folder / "checkpoints" / "step-00000010").mkdir(parents=True)
    assert runs[0].training_command() == ["regard", "resume", str(runs[0].folder)]


def test_stopping_ends_the_processes_and_is_no_failure(runs, monkeypatch):
    sleep = ["timeit", "-n1", "-r1", "import time; time.sleep(60)"]
    monkeypatch.setattr(Run, "training_command", lambda run: sleep)
    runner = Runner(1)
    thread = threading.Thread(target=runner.run, args=(runs[0],))
    thread.start()
    while not runner.processes:
        time.sleep(0.01)
    runner.stop(signal.SIGINT)
    thread.join(timeout=20)
    assert not thread.is_alive() and runs[0].record["failure"] is None
    runner.run(runs[1])  # starts nothing
    assert not runs[1].log.exists() or not runs[1].log.read_text(encoding="utf-8")


def test_a_failure_is_the_last_line_of_the_log(runs, monkeypatch):
    monkeypatch.setattr(Run, "training_command", lambda run: ["no_such_module"])
    Runner(1).run(runs[0])
    assert runs[0].record["failure"].endswith("No module named no_such_module (exit code 1)")


@pytest.mark.slow
def test_a_recipe_is_trained_and_evaluated(tmp_path, monkeypatch, capsys):
    data = Path(os.environ.get("REGARD_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (data / "trec-qc").is_dir():
        pytest.skip("the corpus trec-qc is not here; set REGARD_DATA to the folder that has it")
    monkeypatch.setenv("REGARD_DATA", str(data))
    monkeypatch.setattr(recipes, "RECIPES", (Recipe("trec", (1,), ACCURACY, 1),))
    values = ["data.hold_out=0.1", "training.epochs=null", "training.steps=5", "schedule.warmup=2"]
    options = [word for value in values for word in ("--set", value)]
    assert recipes.main(["trec", "--out", str(tmp_path), *options]) == 0
    assert "| `trec` | accuracy | seed 1 |" in capsys.readouterr().out
