"""benchmarks/translator/curve.py: students of several sizes, trained tiny, and the sizes of the real ones."""

import json
from itertools import islice
from pathlib import Path

import pytest
from benchmarks.translator import curve, prepare

from regard.data import corpora
from regard.recipe.loading import load_recipe


@pytest.fixture
def data(tmp_path):
    rows = iter(corpora.find("tatoeba-sample").rows("train", "en", "de"))
    for language in ("de", "fr"):  # German sentences stand for French, too, but others
        pairs = list(islice(rows, 300))
        for corpus in ("tatoeba", "europarl"):
            for split in ("train", "validation"):
                chosen = pairs[: 20 if split == "validation" else None]
                prepare.write_pairs(tmp_path / "data", f"{corpus}-x", language, split, chosen)
    return tmp_path / "data"


def tiny(data, place, *models):
    """The arguments that train tiny models; the log is curve.json."""
    folders = f"--data {data} --work {place / 'work'} --out {place / 'curve.json'}"
    return ["--tiny", "--train-steps", "20", *folders.split(), "--models", *models]


def test_students_have_the_sizes_of_their_names():
    found = curve.sizes()
    for name, student in curve.STUDENTS.items():
        assert 0.93 * student.mebibytes < found[name] / 2**20 <= student.mebibytes, name
    bundled = sum(path.stat().st_size for path in curve.START.iterdir())
    assert found["en-de"] + found["en-fr"] == pytest.approx(bundled, rel=0.02)


def test_the_largest_student_is_the_bundled_model():
    recipe = load_recipe(curve.RECIPE)
    assert load_recipe(curve.RECIPE, curve.STUDENTS["23MiB"].overrides()).model == recipe.model


def test_students_are_trained_stored_and_scored(data, tmp_path, capsys):
    out = tmp_path / "curve.json"
    arguments = tiny(data, tmp_path, "4MiB", "en-fr")
    assert curve.main(arguments) == 0
    models = json.loads(out.read_text(encoding="utf-8"))["models"]
    assert list(models) == ["4MiB", "en-fr"] and models["4MiB"]["steps"] == 20
    assert list(models["en-fr"]["bleu"]) == [
        f"{corpus} {direction}" for corpus in ("tatoeba", "europarl") for direction in ("en-fr", "fr-en")
    ]
    assert len(models["4MiB"]["bleu"]) == 8 and models["4MiB"]["bytes"] > 10_000
    assert "| en-fr | " in capsys.readouterr().out
    assert curve.main(["train", *arguments]) == 0  # nothing is left to train
    assert "validation at" not in capsys.readouterr().out


def test_a_pair_validates_on_its_own_rows(data, tmp_path):
    made = curve.Curve(curve.Session(data, tmp_path / "work", tiny=True), 20, 1.0, 0.001, 10)
    made.session.prepare()
    recipe = made.recipe("en-fr")
    lines = Path(recipe.data.validation[0]).read_text(encoding="utf-8").splitlines()
    codes = {line.split(" ")[0] for line in lines}
    assert codes == {">>fr<<", ">>en<<"}
    assert all(".en-fr." in path or ".fr-en." in path for path in recipe.data.train)


@pytest.mark.slow
def test_students_train_side_by_side(data, tmp_path):
    out = tmp_path / "curve.json"
    arguments = [*tiny(data, tmp_path, "8MiB", "23MiB", "bundled"), "--jobs", "2"]
    assert curve.main(["prepare", "train", *arguments]) == 0
    models = json.loads(out.read_text(encoding="utf-8"))["models"]
    assert list(models) == ["8MiB", "23MiB", "bundled"]
    assert models["bundled"]["bytes"] > 20e6
