"""Tests of evaluate.py for classifiers: scores, plots, predictions, errors in one sentence."""

import json

import pytest

from regard.training.trainer import train

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = [
    ("good", "yes"),
    ("bad", "no"),
    ("so good", "yes"),
    ("so bad", "no"),
    ("good good", "yes"),
    ("bad bad", "no"),
]


def table(path, rows):
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows), encoding="utf-8")
    return str(path)


def train_classifier(folder, pooling, steps):
    """Train a classifier of ROWS; return the folder of its run."""
    recipe = {
        "name": "yes-no", "task": "classify",
        "data": {name: [table(folder / f"{name}.csv", ROWS)] for name in ("train", "validation", "test")},
        "tokenizer": {"kind": "word", "size": 20},
        "model": {"dim": 8, "dropout": 0.0, "encoder": {"kind": "embedding"}, "pooling": pooling},
        "optimizer": {"lr": 0.1}, "schedule": {"kind": "constant"},
        "training": {
            "steps": steps, "validate_every": 10, "device": "cpu", "threads": 1, "smoothing": 0.0
        },
    }  # fmt: skip
    return train(recipe, folder=folder / "run", quiet=True).folder


@pytest.fixture(scope="module")
def model(tmp_path_factory, own_cache):
    return train_classifier(tmp_path_factory.mktemp("classifier"), "mean", 30)


def test_scores_confusion_and_calibration_are_printed(regard, model):
    code, out, _ = regard("evaluate", model)
    assert code == 0 and "6 lines" in out
    assert "accuracy 1.0000" in out and "expected calibration error" in out
    assert "WMT-2014" not in out  # costs of translators


def test_json_has_every_class_and_the_labels_go_to_a_file(regard, model, tmp_path):
    code, out, _ = regard("evaluate", model, "--json", "-o", "labels.txt", "--plot", "confusion.png")
    record = json.loads(out)
    assert (
        code == 0
        and record["scores"]["accuracy"] == 1.0
        and set(record["scores"]["classes"]) == {"yes", "no"}
    )
    assert (tmp_path / "labels.txt").read_text(encoding="utf-8").split() == [label for _, label in ROWS]
    assert (tmp_path / "confusion.png").read_bytes()[:4] == b"\x89PNG"


def test_a_user_table_is_scored(regard, model, tmp_path):
    table(tmp_path / "own.csv", [("good", "yes"), ("bad", "yes")])
    code, out, _ = regard("evaluate", model, "--data", "own.csv", "--json")
    assert code == 0 and json.loads(out)["scores"]["accuracy"] == 0.5


def test_a_header_names_the_columns_of_a_user_table_wherever_the_training_table_had_them(
    regard, tmp_path, own_cache
):
    text = "".join(f"{i}\t{text}\t{label}\n" for i, (text, label) in enumerate(ROWS))
    (tmp_path / "numbered.tsv").write_text(text, encoding="utf-8")
    recipe = {
        "name": "numbered", "task": "classify",
        "data": {
            **{name: [str(tmp_path / "numbered.tsv")] for name in ("train", "validation")},
            "source": 2, "target": 3,
        },
        "tokenizer": {"kind": "word", "size": 20},
        "model": {"dim": 8, "dropout": 0.0, "encoder": {"kind": "embedding"}, "pooling": "mean"},
        "optimizer": {"lr": 0.1}, "schedule": {"kind": "constant"},
        "training": {"steps": 30, "device": "cpu", "threads": 1},
    }  # fmt: skip
    folder = train(recipe, folder=tmp_path / "run", quiet=True).folder
    table(tmp_path / "own.csv", [("good", "yes"), ("bad", "yes"), ("so good", "yes"), ("so bad", "yes")])
    code, out, errors = regard("evaluate", folder, "--data", "own.csv", "--json")
    assert code == 0 and json.loads(out)["scores"]["accuracy"] == 0.5, errors
    code, out, _ = regard("evaluate", folder, "--data", "numbered.tsv", "--json")  # no header: as in training
    assert code == 0 and json.loads(out)["scores"]["accuracy"] == 1.0


def test_the_cost_of_training_is_device_time_times_rate(regard, model):
    code, out, _ = regard("evaluate", model, "--rate", "P100", "--json")
    record = json.loads(out)
    card = json.loads((model / "model" / "card.json").read_text(encoding="utf-8"))
    assert code == 0 and record["training_flops"] == card["flops"]
    assert record["estimated_flops"] == pytest.approx(card["seconds"] * 9.5e12)
    assert record["utilization"] == pytest.approx(record["training_flops"] / record["estimated_flops"])
    code, out, _ = regard("evaluate", model, "--rate", "9.5e12")
    assert code == 0 and "(1 device, 9.50e+12 FLOP/s), utilisation" in out
    code, _, err = regard("evaluate", model, "--rate", "fast")
    assert code == 2 and "got 'fast'; known are K80, K40, M40, P100, V100" in err


def test_another_system_is_compared_with_both_tests(regard, model, tmp_path):
    (tmp_path / "other.txt").write_text("".join("yes\n" for _ in ROWS), encoding="utf-8")
    code, out, _ = regard("evaluate", model, "--against", "other.txt")
    assert code == 0 and "compared with other.txt: 3 of 6 outputs differ" in out
    assert "p bootstrap  p randomisation" in out
    code, out, _ = regard("evaluate", model, "--against", model, "--json")
    comparison = json.loads(out)["comparison"]
    assert code == 0 and comparison["differing"] == 0
    assert comparison["metrics"][0]["p_randomization"] == 1.0


def test_an_ensemble_has_the_mean_of_the_probabilities(regard, model, tmp_path_factory, tmp_path):
    other = train_classifier(tmp_path_factory.mktemp("other"), "max", 3)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text, _ in ROWS), encoding="utf-8")

    def probabilities(*options):
        code, out, _ = regard(
            "classify", "-i", "texts.txt", "--model", model, "--json", "--top", "2", *options
        )
        assert code == 0
        return [json.loads(line)["probabilities"] for line in out.splitlines()]

    one, both = probabilities(), probabilities("--with", other)

    def brier(*arguments):
        code, out, _ = regard("evaluate", *arguments, "--json")
        assert code == 0
        return json.loads(out)["scores"]["calibration"]["brier"]

    alone, together = [brier(model), brier(other)], brier(model, "--with", other)
    gold = [label for _, label in ROWS]
    expected = sum(
        (p[label] - (label == target)) ** 2 for p, target in zip(both, gold, strict=True) for label in p
    )
    assert together == pytest.approx(expected / len(ROWS), abs=1e-4)
    assert one != both and alone[0] != together < sum(alone) / 2  # the score is convex
    code, out, err = regard("evaluate", model, "--with", other, "--rate", "P100")
    assert code == 2 and "needs the training FLOPs" in err and not out


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["yes"] * 5, "5 outputs and the test set of"),
        (
            ["yes"] * 5 + ["ja"],
            "line 6 of other.txt: 'ja' is not a label of this model; its labels are no, yes",
        ),
    ],
)
def test_outputs_that_cannot_be_compared_are_errors_of_one_sentence(regard, model, tmp_path, lines, message):
    (tmp_path / "other.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    code, _, err = regard("evaluate", model, "--against", "other.txt")
    assert code == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("rows", "args", "message"),
    [
        (
            [("good", "yes"), ("hm", "perhaps")],
            [],
            "own.csv line 3, column 2: the label 'perhaps' is not one of the training labels",
        ),
        ([("good", "yes")], ["--beam", "2"], "apply to translators, and this model is a classifier"),
        (
            [("good", "yes")],
            ["--length-penalty", "0"],
            "apply to translators, and this model is a classifier",
        ),
        ([("good", "yes")], ["--by-length"], "apply to translators, and this model is a classifier"),
    ],
)
def test_files_that_cannot_be_scored_are_errors_of_one_sentence(regard, model, tmp_path, rows, args, message):
    table(tmp_path / "own.csv", rows)
    code, out, err = regard("evaluate", model, "--data", "own.csv", *args)
    assert code == 2 and message in err and err.count("\n") == 1 and not out


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "x", "-m", "{}"],
        ["translate", "x", "-m", "{}"],
        ["export", "{}", "--to", "ctranslate2", "-o", "out"],
    ],
)
def test_commands_for_generating_models_refuse_a_classifier(regard, model, command):
    code, _, err = regard(*(part.format(model) for part in command))
    assert code == 2 and "a classifier" in err and err.count("\n") == 1
