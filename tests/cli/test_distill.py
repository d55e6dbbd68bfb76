"""`regard distill`: the options, the file of translations, a teacher that is killed."""

import shutil
import signal
import subprocess
import sys

import pytest

from regard.recipe.loading import dump_yaml
from regard.training.trainer import train
from tests.training.tiny import recipe as tiny_recipe

TEACHER = ["training.steps=30", "training.validate_every=30", "training.save_every=30"]
SHORT = ["training.steps=4", "training.validate_every=4", "training.save_every=4", "schedule.warmup=2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a recipe, student.yaml, and a trained model, teacher."""
    folder = tmp_path_factory.mktemp("distill")
    made = tiny_recipe(folder, name="student")
    (folder / "student.yaml").write_text(dump_yaml(made))
    train(made, folder=folder / "teacher", overrides=TEACHER, quiet=True)
    return folder


@pytest.fixture
def regard(run_regard, monkeypatch, tmp_path):
    """`run_regard` in an empty folder with an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return run_regard


def test_a_teacher_a_student_and_the_file_of_translations(regard, place, tmp_path):
    command = ["distill", place / "teacher", place / "student.yaml", *SHORT]
    code, out, err = regard(*command, "--only-translate", "-o", "distilled.tsv")
    assert code == 0, err
    rows = [line.split("\t") for line in (tmp_path / "distilled.tsv").read_text("utf-8").splitlines()]
    assert out == f"distilled.tsv: {len(rows):,} pairs\n"
    assert rows and all(len(row) == 2 for row in rows)
    assert "distinct sources by" in err
    assert not (tmp_path / "runs").exists()

    code, out, err = regard(*command)
    assert code == 0, err
    assert "the model is in runs/student/model" in out
    assert "distinct sources by" in err

    own = ["data.train=[distilled.tsv]", "--run", "again", "-q"]
    code, out, err = regard("train", place / "student.yaml", *SHORT, *own)
    assert code == 0, err
    assert "translations by" in regard("cache", "--json")[1]


def test_keys_of_distillation_for_an_included_student(regard, place):
    code, out, err = regard("distill", place / "teacher", "small-student", "distillation.beam=2", "--dry-run")
    assert code == 0, err
    assert "parameters" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.tsv"], "add --only-translate"),
        (["--only-translate", "-o", "x.txt"], "a file that ends in .tsv, got x.txt"),
        ([], "distillation.teacher: there is no folder"),
        (["--dry-run"], "distillation.teacher: there is no folder"),
        (["--only-translate"], "distillation.teacher: there is no folder"),
    ],
)
def test_wrong_arguments_are_errors(regard, arguments, message):
    code, out, err = regard("distill", "nowhere", "small-student", *arguments)
    assert (code, out) == (2, "")
    assert message in err


KILLED_IN_THE_THIRD_CHUNK = """
import os, signal, sys
from regard.cli import main
from regard.pipelines import input
from regard.pipelines.translate_file import TranslateJob

input.CHUNK_LINES = 20
translate = TranslateJob.translate
def killed(self, chunk):
    if chunk.first == 40:
        os.kill(os.getpid(), signal.SIGKILL)
    return translate(self, chunk)
TranslateJob.translate = killed
sys.argv = ["regard", *sys.argv[1:]]
main.run()
"""


@pytest.mark.slow
def test_ray_gives_the_same_translations(regard, place, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = ["distill", place / "teacher", place / "student.yaml", *SHORT, "--only-translate"]
    assert regard(*command, "-o", "here.tsv")[0] == 0
    for folder in (tmp_path / "cache/distilled").iterdir():
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    ray = ["distillation.ray=true", "-o", "ray.tsv"]
    subprocess.run([sys.executable, "-m", "regard", *map(str, command), *ray], cwd=tmp_path, check=True)
    assert (tmp_path / "ray.tsv").read_bytes() == (tmp_path / "here.tsv").read_bytes()


@pytest.mark.slow
def test_a_killed_teacher_resumes(regard, place, tmp_path, monkeypatch):
    command = ["distill", place / "teacher", place / "student.yaml", *SHORT, "--only-translate"]
    process = [sys.executable, "-c", KILLED_IN_THE_THIRD_CHUNK, *map(str, command)]
    killed = subprocess.run(process, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    code, _, err = regard(*command, "-o", "resumed.tsv")
    assert code == 0, err
    assert "resuming the teacher after 40 of " in err
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "other"))
    assert regard(*command, "-o", "uninterrupted.tsv")[0] == 0
    assert (tmp_path / "resumed.tsv").read_bytes() == (tmp_path / "uninterrupted.tsv").read_bytes()
