"""Tests of task.py, text_task.py, text_classification.py, text_embedding.py, machine_translation.py and
language_modeling.py: classifiers from recipe to evaluation, and user-defined tasks.
"""

import copy
import random

import numpy as np
import pytest
from safetensors.torch import load_file

from regard.errors import DataError, RecipeError
from regard.evaluation.evaluate import data_section, evaluate
from regard.models.classifier import predict
from regard.models.options import Block
from regard.recipe.loading import load_recipe
from regard.tasks import TASKS, get_task
from regard.tasks.text_classification import Classify
from regard.training.estimate import estimate
from regard.training.list_runs import summarize_run
from regard.training.run_log import read_log
from regard.training.trainer import resume, train

RECIPE = {
    "name": "small", "task": "classify", "seed": 3,
    "tokenizer": {"kind": "word", "size": 100},
    "model": {
        "dim": 8, "dropout": 0.1, "word_dropout": 0.1,
        "encoder": {"kind": "text-cnn", "width": 8, "kernels": [2, 3]},
    },
    "batch": {"tokens": 120}, "optimizer": {"lr": 0.02}, "schedule": {"kind": "constant"},
    "training": {
        "steps": 40, "validate_every": 10, "save_every": 7, "log_every": 5, "keep": 2, "ema": 0.9,
        "device": "cpu", "threads": 1, "smoothing": 0.0,
    },
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("own_cache")


def texts(count, seed):
    """The label depends on the order of `good` and `bad`, not on the words alone."""
    draw = random.Random(seed)
    for _ in range(count):
        filler = [draw.choice("uvwxyz") for _ in range(draw.randint(0, 3))]
        pair = ["good", "bad"] if draw.random() < 0.5 else ["bad", "good"]
        yield " ".join([*filler, *pair, "end"]), "good first" if pair[0] == "good" else "bad first"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for seed, (split, count) in enumerate((("train", 120), ("validation", 30), ("test", 40))):
        lines = ["text\tlabel", *("\t".join(row) for row in texts(count, seed))]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {split: [str(folder / f"{split}.tsv")] for split in ("train", "validation", "test")}


def recipe(files, **changes):
    result = copy.deepcopy({**RECIPE, "data": {**files, "source": "text", "target": "label"}})
    for path, value in changes.items():
        block, _, key = path.partition("__")
        result[block][key] = value
    return result


@pytest.fixture(scope="module")
def run(files, tmp_path_factory, own_cache):
    return train(recipe(files), folder=tmp_path_factory.mktemp("runs") / "small", quiet=True)


def test_a_classifier_learns_from_the_order_of_words(run):
    assert run.scores["test"]["accuracy"] > 0.95
    assert set(run.scores["test"]) == {"loss", "accuracy", "macro_f1"}
    assert run.report["best"]["accuracy"] == run.scores["validation"]["accuracy"]
    model = run.load()
    assert model.labels == ("bad first", "good first")
    labels, probabilities = predict(model, ["u good bad end", "good bad u end", "x bad good end"])
    assert labels == ["good first", "good first", "bad first"] and probabilities.shape == (3, 2)


def test_losses_are_means_over_texts(run):
    first = next(e for e in read_log(run.folder / "log.jsonl") if e["event"] == "train")
    assert 0.4 < first["loss"] < 1.2  # log 2 = 0.69 a text


def test_the_run_is_listed_with_the_metric_of_its_task(run):
    summary = summarize_run(run.folder)
    assert (summary.task, summary.score_name, summary.score) == (
        "classify",
        "accuracy",
        run.scores["test"]["accuracy"],
    )
    assert (run.folder / "curves.png").is_file()


def test_a_stopped_classifier_resumes_exactly(run, files, tmp_path):
    stopped = train(recipe(files, training__steps=17), folder=tmp_path / "run", quiet=True)
    resumed = resume(stopped.folder, overrides=["training.steps=40"], quiet=True)
    a, b = (load_file(folder / "model" / "model.safetensors") for folder in (run.folder, resumed.folder))
    assert a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def test_evaluate_has_the_scores_of_training_and_accepts_other_files(run, files, tmp_path):
    model = run.load()
    evaluation = evaluate(model, data_section(model.card))
    assert evaluation.metrics is not None
    assert evaluation.metrics.as_dict()["accuracy"] == run.scores["test"]["accuracy"]
    assert list(evaluation.predictions[:3]) == predict(model, [text for text, _ in texts(40, 2)][:3])[0]
    other = tmp_path / "other.tsv"
    other.write_text("text\tlabel\ngood bad end\tgood first\nbad good\tno idea\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"other.tsv line 3, column 2: the label 'no idea' is not one of the training"
    ):
        evaluate(model, data_section(model.card, [str(other)]))


def test_a_fraction_of_the_training_rows_can_be_held_out(files, tmp_path):
    data = {"train": files["train"], "source": "text", "target": "label", "hold_out": 0.2}
    result = train({**recipe(files, training__steps=5), "data": data}, folder=tmp_path / "run", quiet=True)
    assert "validation" in result.scores and "test" not in result.scores
    assert result.report["data"]["train"]["rows"] == 95  # about 0.8 · 120; equal texts are held out together


def test_a_classifier_is_estimated(files):
    estimated = estimate(recipe(files))
    assert estimated.vocabulary[1] == 6 and estimated.rows == {"training": 120, "validation": 30, "test": 40}
    assert estimated.parameters["head"] == 2 * 16 + 2


def vectors(path, words, width=8):
    """Write word vectors in text format; those of word i are all i + 1."""
    rows = [f"{word} {' '.join([str(i + 1)] * width)}" for i, word in enumerate(words)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def test_word_vectors_are_loaded_and_can_be_frozen(files, tmp_path):
    frozen = recipe(
        files,
        training__steps=6,
        model__vectors=vectors(tmp_path / "v.txt", ["good", "bad"]),
        model__freeze_vectors=True,
    )
    model = train(frozen, folder=tmp_path / "run", quiet=True).load()
    token_id = model.source_tokenizer.vocabulary
    table = model.source.table.weight.detach().numpy()
    np.testing.assert_array_equal(table[[token_id["good"], token_id["bad"]]], [[1.0] * 8, [2.0] * 8])
    learned = train(
        recipe(files, training__steps=6, model__vectors=frozen["model"]["vectors"]),
        folder=tmp_path / "free",
        quiet=True,
    )
    assert (learned.load().source.table.weight.detach().numpy()[token_id["good"]] != 1.0).any()


def test_word_vectors_of_another_width_or_language_are_refused(files, tmp_path):
    wrong = vectors(tmp_path / "wide.txt", ["good"], width=5)
    with pytest.raises(RecipeError, match=r"wide.txt are 5 wide and model.dim is 8; set model.dim=5"):
        train(recipe(files, model__vectors=wrong), folder=tmp_path / "run", quiet=True)
    foreign = vectors(tmp_path / "foreign.txt", ["gut"])
    with pytest.raises(RecipeError, match="has a vector for none of the"):
        train(recipe(files, model__vectors=foreign), folder=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"decoder": {}}}, "model of kind classifier has no key 'decoder' .autoregressive has it."),
        ({"model": {"kind": "autoregressive"}},
         "model.kind is autoregressive, and task classify trains a classifier"),
        ({"model": {"poling": "max"}}, "did you mean model.pooling"),
        ({"model": {"pooling": "median"}},
         "model.pooling.kind is 'median', and must be one of mean, sum, max"),
        ({"model": {"pooling": {"kind": "attention", "heads": 7}}},
         "heads is 7, which does not divide the width 300"),
        ({"model": {"freeze_vectors": True}}, "model.freeze_vectors is true and model.vectors names no file"),
        ({"model": {"vectors": "v.txt"}, "tokenizer": {"kind": "bpe"}},
         "vectors of words, and tokenizer.kind is bpe"),
        ({"batch": {"mode": "crops"}}, "batch.mode is crops, and task classify learns from lines"),
        ({"tokenizer": {"kind": "bpe", "min_count": 2}}, "tokenizer.min_count is about words"),
        ({"data": {"train": ["a.tsv"]}}, "or data.hold_out, as 0.1"),
        ({"data": {"corpus": "sst2", "fold": 3, "folds": 2}}, "data.fold is 3 and there are 2 folds"),
        ({"task": "clasify"}, "task is 'clasify', and must be .* did you mean 'classify'"),
    ],
)  # fmt: skip
def test_keys_that_the_task_does_not_support_are_errors_of_one_sentence(changes, message):
    with pytest.raises(RecipeError, match=message.replace("?", r"\?")):
        load_recipe(
            {"task": "classify", "data": {"corpus": "sst2"}, "tokenizer": {"kind": "word"}, **changes}
        )


def test_the_model_block_of_a_recipe_follows_from_its_task():
    kinds = {name: load_recipe({"task": name, "data": {"corpus": data}}).model.kind for name, data in (
        ("translate", "multi30k"), ("language", "wikitext-2"), ("classify", "sst2"), ("tag", "wnut17"),
        ("embed", "stsb-en-de-fr"),
    )}  # fmt: skip
    assert kinds == {name: task.model_block for name, task in TASKS.items()}


@pytest.fixture
def _first_label():
    """A user-defined task, registered during a test."""

    class Options(Block):
        """Options of the task below."""

        label: str = "good first"

    @TASKS.add("first-label")
    class FirstLabel(Classify):
        """Classification scored by the recall of one label."""

        metric, metric_name = "label_recall", "recall"

        def metrics(self, predictions, evaluation):
            label = evaluation.recipe.task_options.label
            _, labels = evaluation.data.texts(evaluation.split)
            outputs = [out for out, gold in zip(predictions.outputs, labels, strict=True) if gold == label]
            return {"label_recall": outputs.count(label) / max(1, len(outputs))}

    FirstLabel.Options = Options
    yield
    TASKS.remove("first-label")


@pytest.mark.usefixtures("_first_label")
def test_a_registered_task_trains_with_its_own_options_and_metric(files, tmp_path):
    custom = {**recipe(files, training__steps=20), "task": "first-label"}
    result = train({**custom, "task_options": {"label": "bad first"}}, folder=tmp_path / "run", quiet=True)
    assert 0 <= result.scores["test"]["label_recall"] <= 1 and "accuracy" not in result.scores["test"]
    assert summarize_run(result.folder).score_name == "label_recall"
    assert resume(result.folder, overrides=["training.steps=22"], quiet=True).steps == 22
    with pytest.raises(RecipeError, match="task_options has no key 'lable'; did you mean task_options.label"):
        load_recipe({**custom, "task_options": {"lable": "x"}})


def test_a_task_without_options_refuses_them(files):
    with pytest.raises(RecipeError, match="task_options has no key 'x'"):
        load_recipe({**recipe(files), "task_options": {"x": 1}})


@pytest.mark.parametrize("name", TASKS)
def test_every_task_declares_its_model_rows_and_metric(name):
    task = get_task(name)
    assert task.name == name and task.metric and task.metric_name and task.model_kind
    assert task.row_format.columns and task.Options.model_fields == {}
