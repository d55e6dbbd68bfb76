"""benchmarks/recipes.py: the table, resuming, failures and stopping of `python -m benchmarks.recipes`."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from benchmarks import decoding_choice, recipes
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


def compared(run, *bleu):
    """Scores of a run on the validation set with length penalties 0.6, 1 and 2."""
    labels = [f"decoding.length_penalty={value}" for value in ("0.6", "1", "2")]
    scores = {label: {"none": {"bleu": x}} for label, x in zip(labels, bleu, strict=True)}
    run.save(compared=scores, cpu_seconds=60.0, versions={"regard": "0.5.0"}, date="2026-11-18")


def test_the_setting_with_the_best_mean_over_the_seeds_is_chosen_and_kept(tmp_path):
    recipe = next(recipe for recipe in recipes.RECIPES if recipe.name == "multi30k-en-de")
    runs = [Run(recipe, number, tmp_path, []) for number in recipe.numbers]
    compared(runs[0], 40.0, 41.0, 42.0)
    compared(runs[1], 40.0, 43.5, 42.0)
    runs[2].save(failure="regard: no space left (exit code 2)")  # it has no say, and no part
    settings = decoding_choice.parse_settings(["decoding.length_penalty=0.6,1,2"])
    recipes.choose_settings(tmp_path, runs, settings)
    assert [run.record["decoding"] for run in runs] == [{"decoding.length_penalty": "1"}] * 2 + [{}]
    assert [run.record["evaluations"]["validation"]["none"]["bleu"] for run in runs[:2]] == [41.0, 43.5]
    # The third seed is better with another setting, but the test sets were evaluated with this one.
    compared(runs[2], 50.0, 40.0, 60.0)
    runs[2].save(failure=None)
    recipes.choose_settings(tmp_path, runs, settings)
    assert runs[2].record["decoding"] == {"decoding.length_penalty": "1"}
    text = (
        "decoding.length_penalty=0.6 40.00, decoding.length_penalty=1 42.25, decoding.length_penalty=2 42.00"
    )
    assert f"decoding.length_penalty=1 chosen on the validation set; mean BLEU of 2 runs: {text}" in (
        recipes.write_results(tmp_path, runs)
    )


def test_another_choice_is_not_mixed_with_that_of_a_folder(tmp_path):
    recipe = next(recipe for recipe in recipes.RECIPES if recipe.name == "multi30k-en-de")
    run, path = Run(recipe, 1, tmp_path, []), recipes.choice_file(tmp_path, recipe)
    settings = decoding_choice.parse_settings(["decoding.beam=4,5"])
    scores = {"decoding.beam=4": 40.0, "decoding.beam=5": 41.0}
    decoding_choice.write_choice(path, decoding_choice.choose(settings, {run.name: scores}, "BLEU"))
    recipes.check_choices(tmp_path, [run], settings)
    for others in (["decoding.beam=4,6"], []):
        with pytest.raises(
            OptionError, match="has a choice among decoding.beam=4, decoding.beam=5; give the"
        ):
            recipes.check_choices(tmp_path, [run], decoding_choice.parse_settings(others))
    path.unlink()
    run.save(evaluations={"validation": {}})
    with pytest.raises(OptionError, match="was evaluated without --choose; leave it out"):
        recipes.check_choices(tmp_path, [run], settings)


def test_two_settings_are_compared_in_all_combinations():
    settings = decoding_choice.parse_settings(["decoding.beam=4,5", "decoding.length_penalty=1,2,2"])
    assert [decoding_choice.label(setting) for setting in settings] == [
        f"decoding.beam={beam} decoding.length_penalty={penalty}" for beam in (4, 5) for penalty in (1, 2)
    ]
    assert decoding_choice.evaluate_options(settings[1]) == ["--beam", "4", "--length-penalty", "2"]
    assert decoding_choice.parse_settings([]) == []


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            ["training.steps=1,2"],
            "--choose takes decoding.beam or decoding.length_penalty, got 'training.ste",
        ),
        (["decoding.beam=4,x"], "--choose decoding.beam: 'x' is not a number"),
        (["decoding.beam="], "--choose decoding.beam: '' is not a number"),
        (["decoding.length_penalty=-1"], "length_penalty must be"),
        (["decoding.length_penalty=nan"], "length_penalty must be"),
        (["decoding.beam=4", "decoding.beam=5"], "--choose decoding.beam is given twice"),
    ],
)
def test_a_wrong_choice_is_an_error_before_any_training(choices, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        decoding_choice.parse_settings(choices)


def test_settings_are_chosen_for_translators_only(tmp_path):
    with pytest.raises(OptionError, match="--choose applies to translators, and trec is none"):
        recipes.main(["trec", "--out", str(tmp_path), "--choose", "decoding.beam=1,2"])


@pytest.mark.slow
def test_models_are_decoded_with_each_setting_and_tested_once_with_the_chosen_one(
    tmp_path, monkeypatch, capsys
):
    figure = recipes.Figure("BLEU", ("13a", "bleu"), 1)
    monkeypatch.setattr(recipes, "RECIPES", (Recipe("small", (1, 2), (figure,), 1),))
    values = (
        *("data.limit=200", "tokenizer.size=300", "model.dim=32", "training.steps=4", "schedule.warmup=1"),
        *("decoding.max_length=10", "training.validate_every=4"),
    )
    options = [word for value in values for word in ("--set", value)]
    options += ["--out", str(tmp_path), "--jobs", "1", "--choose", "decoding.length_penalty=0,3"]
    assert recipes.main(["small", *options]) == 0
    assert "small: decoding.length_penalty=" in capsys.readouterr().out
    choice = json.loads((tmp_path / "small.choice.json").read_text(encoding="utf-8"))
    for number in (1, 2):
        record = json.loads((tmp_path / f"small-{number}.json").read_text(encoding="utf-8"))
        assert list(record["compared"]) == ["decoding.length_penalty=0", "decoding.length_penalty=3"]
        assert record["decoding"] == choice["chosen"] and set(record["evaluations"]) == {"validation", "test"}
    written = (tmp_path / "small-1.json").stat().st_mtime_ns
    assert recipes.main(["small", *options]) == 0  # nothing is left
    assert (tmp_path / "small-1.json").stat().st_mtime_ns == written
