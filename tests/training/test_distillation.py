"""A student learns the translations of a teacher: cache, resuming, languages, targets, wrong teachers."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.attention.devices import pick_device
from regard.errors import DataError, FolderError, RecipeError
from regard.files.cache import cache_folder
from regard.pipelines import input as pipeline_input
from regard.pipelines.translate_file import TranslateJob
from regard.recipe.loading import load_recipe
from regard.training import distillation
from regard.training.display import Display
from regard.training.distillation import DistillationStopped, distilled_rows, write_distilled
from regard.training.estimate import estimate
from regard.training.trainer import resume, train
from tests.decoding.model_folders import language_model
from tests.training.tiny import recipe as tiny_recipe

CPU = pick_device("cpu")
TEACHER = ["training.steps=30", "training.validate_every=30", "training.save_every=30"]
SHORT = ["training.steps=4", "training.validate_every=2", "training.save_every=2", "schedule.warmup=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("distillation")


@pytest.fixture(scope="module")
def teacher(folder):
    """A translator that reverses short words, badly: it is trained for a few steps."""
    recipe = tiny_recipe(folder, schedule__kind="inverse-sqrt", schedule__patience=None)
    del recipe["schedule"]["patience"]
    return train(recipe, folder=folder / "teacher", overrides=TEACHER, quiet=True).folder


@pytest.fixture
def student(folder, teacher, tmp_path, monkeypatch):
    """A recipe of a student, with its own cache."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    recipe = tiny_recipe(folder)
    recipe["name"], recipe["model"]["dim"] = "student", 8
    recipe["distillation"] = {"teacher": str(teacher), "beam": 2}
    return recipe


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(pipeline_input, "CHUNK_LINES", 16)


def distil(recipe, *overrides):
    return distilled_rows(load_recipe(recipe, overrides), CPU, Display(quiet=True))


def sources_of(recipe):
    return read_lines(recipe["data"]["train"][0][0])


def read_lines(path):
    return Path(path).read_text(encoding="utf-8").splitlines()


def no_teacher(*args, **kwargs):
    raise AssertionError("the teacher translates again")


def test_a_student_trains_on_the_translations_and_is_scored_on_the_references(student, teacher, tmp_path):
    import regard

    run = train(student, folder=tmp_path / "run", overrides=SHORT, quiet=True)
    rows = list(distil(student))
    expected = regard.translate([s for s, _ in rows], str(teacher), beam=2)
    assert [t for _, t in rows] == [str(t) for t in expected]
    counts = run.report["data"]["distillation"]
    assert counts["sources"] == len(set(sources_of(student)))
    assert counts["kept"] == len({s for s, _ in rows})
    assert any(name.endswith("/pairs.jsonl") for name in run.report["data"]["files"])
    assert run.report["data"]["train"]["rows"] == len(rows)
    assert run.report["scores"]["validation"]["bleu"] >= 0


def test_a_second_run_uses_the_cached_translations(student, monkeypatch):
    first = list(distil(student))
    monkeypatch.setattr(distillation, "make_job", no_teacher)
    assert list(distil(student)) == first
    with pytest.raises(AssertionError, match="translates again"):
        distil(student, "distillation.beam=1")
    with pytest.raises(AssertionError, match="translates again"):
        distil(student, "data.limit=9")


@pytest.mark.usefixtures("small_chunks")
def test_an_interrupted_teacher_resumes(student, monkeypatch, tmp_path):
    uninterrupted = list(distil(student))
    shutil.rmtree(cache_folder())
    translated, translate = [], TranslateJob.translate

    def interrupted(self, chunk):
        if len(translated) == 2:
            raise KeyboardInterrupt
        translated.append(len(chunk.rows))
        return translate(self, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(TranslateJob, "translate", interrupted)
        with pytest.raises(DistillationStopped, match=r"after 32 of \d+ sources, which are kept; rerun"):
            distil(student)
    row_counts = []
    monkeypatch.setattr(
        TranslateJob, "translate", lambda s, c: row_counts.append(len(c.rows)) or translate(s, c)
    )
    assert list(distil(student)) == uninterrupted
    assert sum(row_counts) == len(set(sources_of(student))) - 32


def test_a_student_can_train_on_translations_and_references(student):
    teacher_only, both = list(distil(student)), list(distil(student, "distillation.targets=both"))
    references = [(word, word[::-1]) for word in sources_of(student)]
    assert sorted(both) == sorted(teacher_only + references)
    assert len(list(cache_folder().glob("distilled/*/meta.json"))) == 1  # one translation serves both


def test_empty_and_truncated_translations_are_dropped_and_counted(student, monkeypatch):
    translate = TranslateJob.translate

    def changed(self, chunk):
        results = translate(self, chunk)
        for i, result in enumerate(results):
            hypothesis = result.translations[0].hypotheses[0]
            hypothesis.ended = i != 0
            hypothesis.text = " " if i in (1, 2) else "x"
        return results

    monkeypatch.setattr(TranslateJob, "translate", changed)
    rows = distil(student)
    counts = rows.translations.counts
    assert (counts["truncated"], counts["empty"], counts["long"]) == (1, 2, 0)
    assert counts["kept"] == counts["sources"] - 3
    dropped = set(list(dict.fromkeys(sources_of(student)))[:3])
    assert {source for source, _ in rows} == set(sources_of(student)) - dropped


def test_sources_that_are_too_long_for_the_teacher_are_not_translated(student, monkeypatch):
    monkeypatch.setattr(distillation, "max_source_length", lambda model: 4)
    rows = distil(student)
    assert {len(source) for source, _ in rows} <= {2, 3, 4}
    assert rows.translations.counts["long"] == sum(len(s) > 4 for s in set(sources_of(student)))


def test_a_full_disk_is_noticed_before_the_teacher_starts(student, monkeypatch):
    monkeypatch.setattr(distillation.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    monkeypatch.setattr(TranslateJob, "translate", no_teacher)
    with pytest.raises(DataError, match=r"has 0.0 MB free and the translations need about .* REGARD_CACHE"):
        distil(student)


def test_a_resumed_student_has_the_same_weights(student, tmp_path):
    uninterrupted = train(student, folder=tmp_path / "uninterrupted", overrides=SHORT, quiet=True)
    train(student, folder=tmp_path / "cut", overrides=[*SHORT, "training.steps=2"], quiet=True)
    shutil.rmtree(cache_folder())  # the teacher translates again
    resume(tmp_path / "cut", overrides=["training.steps=4"], quiet=True)
    uninterrupted_weights, resumed_weights = (
        (f / "model/model.safetensors").read_bytes() for f in (uninterrupted.folder, tmp_path / "cut")
    )
    assert uninterrupted_weights == resumed_weights


@pytest.mark.slow
def test_a_run_is_not_resumed_with_other_translations(student, teacher, tmp_path, monkeypatch):
    train(student, folder=tmp_path / "run", overrides=[*SHORT, "training.steps=2"], quiet=True)
    shutil.rmtree(cache_folder())
    monkeypatch.setattr(
        distillation, "_why_dropped", lambda record: "empty" if "a" in record["input"] else None
    )
    with pytest.raises(DataError, match=f"training set of .* is not the one of its checkpoint.*{teacher}"):
        resume(tmp_path / "run", overrides=["training.steps=4"], quiet=True)


def test_the_distilled_set_can_be_written_to_a_file(student, tmp_path):
    path = tmp_path / "distilled.tsv"
    count = write_distilled(load_recipe(student), path, CPU, Display(quiet=True))
    written = [tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()]
    assert written == list(distil(student))
    assert len(written) == count


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (["distillation.teacher=nowhere"], FolderError, r"there is no folder .*nowhere; give the folder"),
        (["distillation.teacher=."], FolderError, "config.json"),
        (["distillation.to=de"], RecipeError, "has no language tokens; leave distillation.to out"),
    ],
)
def test_wrong_teachers_are_refused_before_any_translation(
    student, tmp_path, monkeypatch, changes, error, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        train(student, folder="run", overrides=changes, quiet=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(error, match=message):
        estimate(student, changes)


def test_a_model_of_another_kind_is_refused(student, tmp_path):
    other_teacher = language_model(tmp_path / "other")
    with pytest.raises(FolderError, match="other is a language model, and a teacher is a translator"):
        distil(student, f"distillation.teacher={other_teacher}")


def test_a_teacher_of_other_languages_is_refused(student, teacher, tmp_path):
    other_teacher = shutil.copytree(teacher, tmp_path / "other")
    card = json.loads((other_teacher / "model/card.json").read_text())
    card["recipe"]["data"] |= {"source": "en", "target": "de"}
    (other_teacher / "model/card.json").write_text(json.dumps(card))
    student["data"] |= {"source": "en", "target": "fr"}
    with pytest.raises(RecipeError, match="data.target is 'fr', and the target language of the teacher"):
        distil(student, f"distillation.teacher={other_teacher}")


def test_keys_of_the_distillation_block_are_validated(student):
    with pytest.raises(RecipeError, match=r"distillation.beam is given, and there is no teacher"):
        load_recipe(student, ["distillation.teacher=null"])
    with pytest.raises(RecipeError, match="distillation.teacher is given, and the task is language"):
        load_recipe("shakespeare", ["distillation.teacher=x"])
    with pytest.raises(RecipeError, match="must be one of teacher, both"):
        load_recipe(student, ["distillation.targets=all"])


# Multilingual teachers


@pytest.fixture(scope="module")
def multilingual(folder):
    """A teacher that copies a word after >>same<< and reverses it after >>back<<, and its recipe."""
    folder = folder / "multilingual"
    folder.mkdir()
    recipe = tiny_recipe(folder)
    for split in ("train", "validation", "test"):
        source, target = recipe["data"][split][0]
        words = read_lines(source)
        with open(source, "w") as x, open(target, "w") as y:
            for i, word in enumerate(words):
                x.write(f">>{('same', 'back')[i % 2]}<< {word}\n")
                y.write((word, word[::-1])[i % 2] + "\n")
    recipe["tokenizer"]["languages"] = ["same", "back"]
    run = train(recipe, folder=folder / "run", overrides=SHORT, quiet=True)
    return run.folder, recipe


def test_sources_of_a_multilingual_teacher_start_with_a_language_token(multilingual, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    folder, recipe = multilingual
    rows = distil(recipe, f"distillation.teacher={folder}")
    sources = [source for source, _ in rows]
    assert sources and all(source.startswith((">>same<< ", ">>back<< ")) for source in sources)
    assert not any("<<" in translation for _, translation in rows)


def test_rows_without_a_language_need_one(multilingual, student):
    folder, _ = multilingual
    teacher = f"distillation.teacher={folder}"
    with pytest.raises(DataError, match=r"train.x line 1: the row begins with no language token.*same, back"):
        distil(student, teacher)
    with pytest.raises(RecipeError, match="distillation.to is 'de', and the teacher .* into same, back"):
        distil(student, teacher, "distillation.to=de")
    rows = distil(student, teacher, "distillation.to=back")
    assert {source for source, _ in rows} <= set(sources_of(student))


def test_a_teacher_without_language_tokens_does_not_get_any(multilingual, teacher, tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    _, recipe = multilingual
    with pytest.raises(DataError, match="begins with >>same<<, and the teacher .* knows no language tokens"):
        distil(recipe, f"distillation.teacher={teacher}")
