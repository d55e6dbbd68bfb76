"""Tests of sequence_input.py, and of sequences of numbers from files to labels, tags and texts: training,
evaluation, resuming, commands, pictures.
"""

import json

import numpy as np
import pytest

import regard
from regard.data.keyword_signals import recordings
from regard.errors import OptionError, RegardError
from regard.evaluation.evaluate import data_section, evaluate
from regard.pipelines.sequence_input import open_sequences
from regard.training.trainer import resume, train

pytestmark = pytest.mark.usefixtures("own_cache")
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32, "norm": "pre"}
UPPER = {"layers": 1, "heads": 2, "inner": 32}
MODELS = {
    "classify": {"encoder": TRANSFORMER, "pooling": {"kind": "attention"}},
    "tag": {"encoder": {"kind": "stacked", "below": {"kind": "recurrent", "width": 16}, "above": UPPER}},
    "translate": {"encoder": TRANSFORMER, "decoder": TRANSFORMER},
}


@pytest.fixture(scope="module")
def signals(tmp_path_factory):
    """Recordings in arrays with targets, a table of single files, and one file of each kind."""
    folder = tmp_path_factory.mktemp("signals")
    for split, count in (("train", 60), ("validation", 12)):
        x, words, tags = recordings(count, count)
        np.save(folder / f"{split}.npy", x)
        targets = {
            "classify": [w[0] for w in words],
            "tag": map(" ".join, tags),
            "translate": map(" ".join, words),
        }
        for task, lines in targets.items():
            (folder / f"{split}.{task}").write_text("".join(f"{line}\n" for line in lines))
    x, words, _ = recordings(3, 0)
    np.save(folder / "a.npy", x[0])
    np.save(folder / "short.npy", x[1][:20])
    np.savetxt(folder / "c.csv", x[2], delimiter=",")
    (folder / "list.csv").write_text(
        f"file,label\na.npy,{words[0][0]}\nshort.npy,{words[1][0]}\nc.csv,rise\n"
    )
    return folder


@pytest.fixture(scope="module")
def models(signals, own_cache):
    """A model of each task, trained for a few steps."""
    return {task: train(recipe(signals, task), folder=signals / task, quiet=True) for task in MODELS}


def recipe(folder, task, steps=6):
    data = {
        split: [[str(folder / f"{split}.npy"), str(folder / f"{split}.{task}")]]
        for split in ("train", "validation")
    }
    return {
        "name": task,
        "task": task,
        "data": {**data, "test": data["validation"]},
        "tokenizer": {"kind": "word"},
        "model": {"input": "frames", "dim": 16, "dropout": 0.1, **MODELS[task]},
        "batch": {"tokens": 640},
        "optimizer": {"lr": 0.01},
        "schedule": {"kind": "constant"},
        "training": {
            "steps": steps, "validate_every": 3, "save_every": 3, "keep": 1, "device": "cpu", "threads": 1,
        },
        "decoding": {"beam": 2, "max_length": 8},
    }  # fmt: skip


def test_a_classifier_gives_files_arrays_and_batches_the_same_probabilities(models, signals):
    model = models["classify"].load()
    files = [str(signals / name) for name in ("a.npy", "short.npy", "c.csv")]
    together = regard.classify(files, model)
    for file, label in zip(files, together, strict=True):
        alone = regard.classify(file, model)
        assert str(alone) == str(label)
        assert alone.probabilities == pytest.approx(label.probabilities, abs=1e-5)
    array = regard.classify(np.load(files[0]), model)
    assert array.probabilities == pytest.approx(together[0].probabilities, abs=1e-6)
    attention = regard.classify(files[1], model, attention=True).attention
    assert attention.source == [str(i) for i in range(20)]


def test_a_tagger_gives_each_frame_a_tag(models, signals):
    model = models["tag"].load()
    full, short = regard.tag([signals / "a.npy", signals / "short.npy"], model)
    assert (len(full.tags), len(short.tags)) == (64, 20)
    for entity in full:
        assert set(full.tags[entity.start : entity.end]) <= {f"B-{entity.label}", f"I-{entity.label}"}
    assert regard.tag(str(signals / "a.npy"), model).tags == full.tags


def test_a_transcriber_searches_as_a_translator_does(models, signals):
    model = models["translate"].load()
    files = [str(signals / "a.npy"), str(signals / "short.npy")]
    both = regard.translate(files, model, beam=3, attention=True)
    for file, text in zip(files, both, strict=True):
        assert str(regard.translate(file, model, beam=3)) == str(text)
    assert both[1].attention.cross().shape[1] == 20
    with regard.watch(model) as seen:
        regard.translate(files[0], model)
    assert any("cross" in name for name in seen)


@pytest.mark.parametrize("task", MODELS)
def test_evaluating_a_folder_gives_the_score_of_the_run(models, task):
    run = models[task]
    model = run.load()
    result = evaluate(model, data_section(model.card)).as_dict()["scores"]
    expected = run.scores["test"]
    score, metric = {
        "classify": (result.get("accuracy"), "accuracy"),
        "tag": (result.get("micro", {}).get("f1"), "f1"),
        "translate": (result.get("13a", {}).get("bleu"), "bleu"),
    }[task]
    assert score == pytest.approx(expected[metric])


def test_a_resumed_run_has_the_weights_of_one_that_was_not_stopped(models, signals, tmp_path):
    train(recipe(signals, "classify", steps=3), folder=tmp_path / "run", quiet=True)
    resumed = resume(tmp_path / "run", overrides=["training.steps=6"], quiet=True).load().state_dict()
    for name, weight in models["classify"].load().state_dict().items():
        assert weight.equal(resumed[name]), name


def test_commands_read_files_arrays_and_tables(models, signals, run_regard):
    run = models["classify"].folder
    label = str(regard.classify(signals / "a.npy", run))
    code, out, _ = run_regard("classify", signals / "a.npy", "--model", run)
    assert code == 0 and out.startswith(f"{label}\t")
    code, out, _ = run_regard("classify", "-i", signals / "list.csv", "--model", run, "--json", "--quiet")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["file"] for line in lines] == ["a.npy", "short.npy", "c.csv"]
    assert lines[0]["predicted"] == label
    code, out, _ = run_regard("classify", "-i", signals / "validation.npy", "--model", run, "--quiet")
    assert code == 0 and len(out.splitlines()) == 12


def test_the_tag_command_writes_the_frames_of_each_span(models, signals, run_regard):
    run = models["tag"].folder
    tagged = regard.tag(signals / "a.npy", run)
    code, out, _ = run_regard("tag", signals / "a.npy", "--model", run)
    spans = [f"{entity.start}-{entity.end - 1} {entity.label}" for entity in tagged]
    assert code == 0 and out.strip().split("\t") == [str(signals / "a.npy"), *spans]
    code, out, _ = run_regard("tag", signals / "a.npy", "--model", run, "--to-conll")
    assert code == 0 and out.split("\n")[:64] == [f"{i}\t{tag}" for i, tag in enumerate(tagged.tags)]


def test_translate_and_pictures_work_from_the_command_line(models, signals, run_regard, tmp_path):
    code, out, _ = run_regard("translate", signals / "c.csv", "--model", models["translate"].folder)
    assert code == 0 and out.strip() == str(
        regard.translate(str(signals / "c.csv"), models["translate"].folder)
    )
    for task, name in (("classify", "short.npy"), ("tag", "a.npy"), ("translate", "c.csv")):
        picture = tmp_path / f"{task}.svg"
        code, _, _ = run_regard(task, signals / name, "--model", models[task].folder, "--picture", picture)
        assert code == 0 and picture.read_text().startswith("<svg")
    code, _, _ = run_regard("draw", models["classify"].folder, "-o", tmp_path / "model.svg")
    assert code == 0 and "frames of numbers" in (tmp_path / "model.svg").read_text()


def test_wrong_sequences_are_errors_of_one_sentence_and_exit_code_2(models, signals, run_regard, tmp_path):
    run = models["classify"].folder
    np.save(tmp_path / "wide.npy", np.zeros((4, 3)))
    np.save(tmp_path / "nan.npy", np.full((4, 8), np.nan))
    for name, message in (
        ("wide.npy", "has 3 channels, and this model was trained on 8"),
        ("nan.npy", "has nan at frame 0, channel 0"),
        ("none.npy", "there is no file"),
    ):
        code, _, errors = run_regard("classify", tmp_path / name, "--model", run)
        assert code == 2 and message in errors and "Traceback" not in errors
    for arguments, message in (
        (("serve", run), "serving takes a model that reads text"),
        (("align", "a", "b", "--model", models["translate"].folder), "align takes a model that reads text"),
        (("evaluate", models["translate"].folder, "--by-length"), "BLEU by length takes a model that reads"),
        (("embed", "a", "--model", run), "embedding takes a model that reads text"),
        (("tag", "a", "--model", models["tag"].folder, "--spaced"), "--spaced and --scheme are for words"),
        (
            ("translate", "a", "--model", models["translate"].folder, "--align"),
            "are for text, and this model",
        ),
    ):
        code, _, errors = run_regard(*arguments)
        assert code == 2 and message in errors


def test_a_text_model_refuses_an_array():
    model = regard.build({"kind": "classifier", "dim": 8}, 20, 6)
    with pytest.raises(RegardError):
        regard.classify(np.zeros((3, 4)), model)


def test_lists_of_two_folders_are_refused(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "list.txt").write_text("a.npy\n")
    with pytest.raises(OptionError, match="lists of file names that are in one folder"):
        open_sequences([], [tmp_path / "x" / "list.txt", tmp_path / "y" / "list.txt"])


@pytest.mark.slow
def test_a_classifier_of_recordings_is_far_better_than_a_linear_model(tmp_path):
    """Least squares on the flattened frames cannot find words that move; convolutions and attention can."""
    splits = {name: recordings(count, seed) for name, count, seed in (("train", 1500, 1), ("test", 300, 2))}
    for name, (x, words, _) in splits.items():
        np.save(tmp_path / f"{name}.npy", x)
        (tmp_path / f"{name}.labels").write_text("".join(f"{spoken[0]}\n" for spoken in words))
    files = {name: [[str(tmp_path / f"{name}.npy"), str(tmp_path / f"{name}.labels")]] for name in splits}
    below = {"kind": "convolutional", "layers": 2, "kernel": 5}
    result = train(
        {
            "task": "classify",
            "data": {"train": files["train"], "validation": files["test"], "test": files["test"]},
            "model": {
                "input": "frames",
                "dim": 48,
                "encoder": {
                    "kind": "stacked",
                    "below": below,
                    "above": {"heads": 4, "inner": 96, "norm": "pre"},
                },
                "pooling": {"kind": "attention"},
            },
            "batch": {"tokens": 4096},
            "optimizer": {"lr": 0.003},
            "schedule": {"kind": "cosine", "warmup": 20},
            "training": {
                "steps": 350,
                "smoothing": 0.0,
                "validate_every": 350,
                "device": "cpu",
                "threads": 1,
            },
        },
        folder=tmp_path / "run",
        quiet=True,
    )
    labels = sorted({spoken[0] for spoken in splits["train"][1]})
    flat = {name: x.reshape(len(x), -1).astype(np.float64) for name, (x, _, _) in splits.items()}
    gold = {
        name: np.array([labels.index(spoken[0]) for spoken in words])
        for name, (_, words, _) in splits.items()
    }
    ridge = flat["train"].T @ flat["train"] + 1000 * np.eye(flat["train"].shape[1])
    weights = np.linalg.solve(ridge, flat["train"].T @ np.eye(len(labels))[gold["train"]])
    linear = float(((flat["test"] @ weights).argmax(1) == gold["test"]).mean())
    assert 0.25 < linear < 0.6
    assert result.scores["test"]["accuracy"] > linear + 0.15
