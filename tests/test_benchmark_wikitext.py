"""benchmarks/wikitext.py: the candidates are valid recipes; a tiny run, its table and its test score."""

import json

import pytest
from benchmarks import wikitext
from benchmarks.wikitext import CANDIDATES

from regard.errors import OptionError
from regard.optimization import ScheduleContext
from regard.recipe.loading import load_recipe


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_is_a_valid_change_of_the_recipe(name):
    recipe = load_recipe("wikitext-2", CANDIDATES[name].arguments(2000))
    assert recipe.training.steps == 2000
    assert recipe.model.decoder.activation_penalty == (2.0 if name in ("penalties", "awd") else 0.0)
    assert recipe.optimizer.decay_embeddings == (name != "matrices")
    context = ScheduleContext(recipe.optimizer.lr, recipe.training.steps)
    rates = [recipe.schedule.rate(step, context) for step in (280, 560, 1280, 2000)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0025, 5e-8], rel=1e-3)


def test_a_tiny_run_reads_only_the_validation_set_until_it_is_told_to_test(tmp_path, capsys):
    arguments = ["onecycle", "--tiny", "--out", str(tmp_path)]
    with pytest.raises(OptionError, match="onecycle is not trained yet"):
        wikitext.main([*arguments, "--test"])
    assert wikitext.main(arguments) == 0
    table = capsys.readouterr().out
    assert (
        "| `onecycle` | one cycle, weight decay of all matrices | 4 |" in table and table.count("| – |") == 1
    )
    report = json.loads((tmp_path / "onecycle" / "report.json").read_text(encoding="utf-8"))
    assert list(report["scores"]) == ["validation"] and report["recipe"]["data"]["test"] == []
    assert wikitext.main([*arguments, "--test"]) == 0
    perplexity = json.loads((tmp_path / "onecycle-test.json").read_text(encoding="utf-8"))["perplexity"]
    assert f"| {perplexity:.2f} | 0." in capsys.readouterr().out
    changed = (tmp_path / "onecycle.log").stat().st_mtime_ns
    assert wikitext.main(arguments) == 0  # nothing is left to train
    assert (tmp_path / "onecycle.log").stat().st_mtime_ns == changed
    with pytest.raises(OptionError, match="was trained for 4 steps; give --steps 4, or another --out"):
        wikitext.main([*arguments, "--steps", "5"])


def test_a_failed_run_is_named_and_the_exit_code_is_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wikitext, "TINY", (*wikitext.TINY, "model.dimm=8"))
    assert wikitext.main(["penalties", "--tiny", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "penalties failed: " in captured.err and "'dimm'" in captured.err
    assert "| `penalties` | one cycle, penalties | 0 | – |" in captured.out


def test_the_test_set_is_for_one_candidate(capsys):
    with pytest.raises(SystemExit):
        wikitext.main(["--test"])
    assert (
        "--test scores the candidate that was chosen on the validation set; name one"
        in capsys.readouterr().err
    )
