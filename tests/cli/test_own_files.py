"""Tests of recipe/own_files.py: `regard train classifier my.csv`, then the commands that it suggests.

Covers recipe/own_files.py.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

from regard.errors import DataError
from regard.models.folder import load as load_model
from regard.recipe.loading import load_recipe
from regard.recipe.own_files import recipe_for
from tests.models.tiny_bert import tiny_bert

pytestmark = pytest.mark.usefixtures("own_cache")

REVIEWS = [f"{'good' if i % 2 else 'bad'};a {'fine' if i % 2 else 'poor'} film, {i}" for i in range(60)]
FILES = {
    "my.csv": "\n".join(["stars;review", *REVIEWS]) + "\n",
    "my.conll": "".join(f"Ada\tB-PER\nis\tO\nin\tO\nTown{i}\tB-LOC\n\n" for i in range(40)),
    "my.tsv": "".join(f"one {i} two\teins {i} zwei\tCC\n" for i in range(60)),
    "my.txt": "".join(f"line {i} of a text\n" for i in range(60)),
}
SHORT = [
    "training.steps=4",
    "schedule.warmup=1",
    "training.validate_every=4",
    "training.save_every=4",
    "training.device=cpu",
]


@pytest.fixture
def regard(run_regard, monkeypatch, tmp_path):
    """`run_regard` in a folder with the files."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return run_regard


@pytest.mark.parametrize(("word", "name"), [("classifier", "my.csv"), ("tagger", "my.conll")])
def test_one_word_fine_tunes_what_model_pretrained_or_training_start_names(regard, tmp_path, word, name):
    bert = tiny_bert(
        tmp_path / "bert", [*"abcdefilmnoprstw", *(f"##{c}" for c in "abcdefilmnoprstw0123456789")]
    )
    code, out, err = regard("train", word, name, "model.pretrained=bert", "--run", "first", *SHORT)
    assert (
        code == 0 and "fine-tuning bert, 4 steps" in err and f"starting from {bert}; new weights: " in err
    ), out + err
    code, out, err = regard("train", word, name, "training.start=first", "--run", "second", *SHORT)
    assert code == 0 and "fine-tuning first, 4 steps" in err and "no weights are new" in err, out + err


@pytest.mark.parametrize(
    ("word", "name", "assumed", "scored"),
    [
        (
            "classifier",
            "my.csv",
            "semicolons, a header; text = column 2 'review', label = column 1 'stars'",
            "accuracy",
        ),
        ("tagger", "my.conll", "40 rows: a small model", "F1"),
        ("translator", "my.tsv", "tabs, no header; source = column 1, target = column 2", "BLEU"),
        ("language-model", "my.txt", "60 lines: a small model", "perplexity"),
    ],
)
def test_one_word_and_a_file_train_and_the_suggested_commands_work(regard, word, name, assumed, scored):
    code, out, err = regard("train", word, name, *SHORT)
    assert code == 0, err
    assert assumed in err and "4 steps, at most 10 minutes" in err
    evaluated, used, served = (shlex.split(line) for line in re.findall(r"^  regard (.+)", out, re.M))
    code, scores, err = regard(*evaluated)
    assert code == 0 and scored.lower() in scores.lower(), scores + err
    assert "WMT" not in scores and "trained with" in scores  # the published models only on request
    more = ["--max-length", "5"] if word == "language-model" else []
    code, out, err = regard(*used, *more)
    assert code == 0 and out.strip(), err
    assert load_model(served[1]).kind == word  # tests/cli/test_first_steps.py serves it


def test_files_that_cannot_be_trained_on_are_errors_of_one_sentence(regard, tmp_path):
    code, _, err = regard("train", "classifier")
    assert (
        code == 2 and "no file is given; name a file of your own, as `regard train classifier my.csv`" in err
    )
    code, _, err = regard("train", "classifier", "nowhere.csv")
    assert code == 2 and "there is no file nowhere.csv" in err
    (tmp_path / "h.csv").write_text("text,label\n", encoding="utf-8")
    code, _, err = regard("train", "classifier", "h.csv")
    assert code == 2 and err == "regard: h.csv has no rows, at most a header; give a file with text\n"
    assert regard("recipes", "classifier")[1].startswith("# regard train classifier my.csv")
    code, _, err = regard("train", "classifier", "my.csv", "data.source=0", "data.target=1")
    assert code == 2 and "counted from 1" in err


def test_the_recipe_is_an_ordinary_one_and_small(regard, tmp_path):
    raw, _ = recipe_for("translator", ["my.tsv"])
    recipe = load_recipe(raw)
    assert (recipe.name, recipe.data.source, recipe.data.target, recipe.data.hold_out) == (
        "my",
        "1",
        "2",
        0.05,
    )
    assert recipe.model.dim == 128 and recipe.training.steps == 300 and recipe.training.minutes == 10
    (tmp_path / "a.en").write_text("one\n", encoding="utf-8")
    (tmp_path / "a.de").write_text("eins\n", encoding="utf-8")
    assert recipe_for("translator", ["a.en", "a.de"])[0]["data"]["train"] == [["a.en", "a.de"]]
    with pytest.raises(DataError, match="one table or two line-aligned files, got 3"):
        recipe_for("translator", ["a.en", "a.de", "my.tsv"])


def test_a_run_in_a_folder_with_a_space_gets_commands_that_work(regard):
    code, out, err = regard("train", "classifier", "my.csv", *SHORT, "--run", "my runs/first try")
    assert code == 0, err
    commands = [shlex.split(line) for line in re.findall(r"^  regard (.+)", out, re.M)]
    assert [words[0] for words in commands] == ["evaluate", "classify", "serve"]
    assert all("my runs/first try" in words for words in commands)
    assert regard(*commands[0])[0] == 0
    code, _, err = regard("train", "classifier", "my.csv", *SHORT, "--run", "my runs/first try")
    assert code == 2 and "`regard resume 'my runs/first try'`" in err
    card = json.loads((Path("my runs/first try/report.json")).read_text(encoding="utf-8"))
    assert (
        card["command"] == "regard train 'my runs/first try/recipe.yaml'"
        and Path("my runs/first try/recipe.yaml").is_file()
    )


def test_evaluating_on_the_training_file_or_without_a_test_set_is_a_warning(regard):
    assert regard("train", "classifier", "my.csv", *SHORT, "--quiet")[0] == 0
    code, _, err = regard("evaluate", "runs/my", "--data", "my.csv")
    assert code == 0 and "warning: the model was trained on my.csv" in err
    code, _, err = regard("evaluate", "runs/my", "--split", "test")
    assert (
        code == 2
        and err == "regard: this model was trained on files without a test set; name a file with --data\n"
    )
    code, _, err = regard("evaluate", "runs/my", "--cost-table")
    assert code == 2 and "--cost-table compares translators, and this model is a classifier" in err


def test_a_folder_named_like_a_recipe_is_not_in_its_way(regard, tmp_path):
    for name in ("small", "classifier", "notes"):
        (tmp_path / name).mkdir()
    assert load_recipe("small").name == "small"
    assert regard("train", "classifier", "my.csv", *SHORT, "--quiet")[0] == 0
    code, _, err = regard("train", "runs/my")
    assert code == 2 and "runs/my is a run, not a recipe; `regard resume runs/my` continues it" in err
    code, _, err = regard("train", "notes")
    assert code == 2 and "notes is a folder, and a recipe is a file" in err


def test_the_last_validation_is_at_the_last_step(regard, tmp_path):
    rows = "".join(f"{'a word or two ' * 5}{i},{i % 2}\n" for i in range(1010))
    (tmp_path / "many.csv").write_text("text,label\n" + rows, encoding="utf-8")
    training = recipe_for("classifier", ["many.csv"])[0]["training"]
    steps, every = training["steps"], training["validate_every"]
    assert steps % 6 and len({*range(every, steps + 1, every), steps}) == 6


def test_rows_that_are_all_held_out_are_no_empty_file(regard, tmp_path):
    (tmp_path / "one.txt").write_text("Tom likes the dog . " * 50, encoding="utf-8")
    code, _, err = regard("train", "language-model", "one.txt")
    assert code == 2 and "one.txt has no row left for training, since some are held out" in err
