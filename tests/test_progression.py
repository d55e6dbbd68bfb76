"""benchmarks/progression.py: every step of the progression is compared with the one before."""

import json

import pytest
from benchmarks import align, progression
from benchmarks.progression import TASKS, compared


def store(folder, **systems):
    for name, lines in systems.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: {"title": name} for name in systems}


def test_a_step_has_its_difference_in_bleu_and_p_values(tmp_path):
    """By hand: all right is 100 BLEU, all wrong 0; 64 sentences cannot be so different by chance."""
    references = [f"a{i} b{i} c{i} d{i}" for i in range(64)]
    wrong = ["x y z w"] * 64
    models = store(tmp_path, none=wrong, raw=references, softmax=references)
    first, second, third = compared(models, tmp_path, references, TASKS["tatoeba"]).values()
    assert "before" not in first
    step = second["before"]
    assert step["model"] == "none" and step["difference"] == pytest.approx(100) and step["significant"]
    assert step["p_bootstrap"] < 0.01 and step["p_randomization"] < 0.01
    same = third["before"]
    assert same["model"] == "raw" and same["difference"] == 0 and not same["significant"]


def test_the_line_of_a_model_names_the_step(tmp_path):
    record = {
        "bleu": 30.0, "validation_bleu": 31.0, "by_length": [], "flops": 1e12, "minutes": 1.0,
        "before": {"model": "raw", "difference": 6.5, "p_bootstrap": 0.001},
    }  # fmt: skip
    assert "+6.50 to raw, p = 0.001" in progression.line("softmax", record)


def test_the_committed_log_has_the_significance_of_every_step():
    log = json.loads((progression.RESULTS / "progression-tatoeba.json").read_text(encoding="utf-8"))
    before = [record.get("before", {}).get("model") for record in log["models"].values()]
    assert before == [None, *list(log["models"])[:-1]]


@pytest.mark.slow
def test_a_tiny_run_trains_models_side_by_side_and_resumes(tmp_path, capsys):
    if not (align.data_folder() / "europarl-en-fr").is_dir():
        pytest.skip("needs Europarl in REGARD_DATA")
    arguments = ["--corpus", "europarl", "--tiny", "--models", "none", "softmax", "--runs", str(tmp_path)]
    assert progression.main([*arguments, "--jobs", "2"]) == 0
    log = json.loads((tmp_path / "tiny" / "progression-europarl.json").read_text(encoding="utf-8"))
    assert list(log["models"]) == ["none", "softmax"] and log["test_lines"] == 12
    assert [model["steps"] for model in log["models"].values()] == [3, 3]
    assert log["models"]["softmax"]["before"]["model"] == "none"
    assert "alignment" in log["models"]["softmax"] and "faithfulness" in log["models"]["softmax"]
    capsys.readouterr()
    assert progression.main(arguments) == 0  # nothing is left to train
    assert "training in" not in capsys.readouterr().out
