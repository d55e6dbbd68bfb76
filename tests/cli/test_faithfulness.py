"""faithfulness.py and evaluation/explanation/explained_inputs.py: models, files, texts; errors."""

import json

import numpy as np
import pytest

from regard.data.keyword_signals import recordings
from regard.training.trainer import train
from tests.cli.test_evaluate import table, train_classifier

pytestmark = pytest.mark.usefixtures("own_cache")
QUICK = ("--measure", "correlation", "--measure", "uniform")


@pytest.fixture(scope="module")
def attending(tmp_path_factory, own_cache):
    """A classifier with attention pooling."""
    return train_classifier(tmp_path_factory.mktemp("attending"), "attention", 10)


def test_a_table_with_a_sentence_per_metric_and_a_report(regard, attending, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = regard("faithfulness", attending, *QUICK, "--limit", 4, "--report", page)
    assert code == 0 and "pooling.attention.cross; 4 texts" in out
    assert "Ranked by attention and by leave-one-out" in out and "With equal attention" in out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_has_examples_means_seeds_and_the_diagnostic(regard, attending):
    args = ("--json", "--limit", 3, "--seed", 2, "--other-seed", attending, "--diagnostic")
    code, out, _ = regard("faithfulness", attending, *QUICK, *args)
    record = json.loads(out)
    assert code == 0 and len(record["examples"]) == 3 and record["seed"] == 2
    assert record["seeds"]["divergence"]["value"] == 0 and 0 <= record["diagnostic"]["means"]["model"] <= 1
    assert record["means"]["change_uniform"]["count"] == 3


def test_texts_and_files_of_ones_own(regard, attending, tmp_path):
    code, out, _ = regard("faithfulness", attending, *QUICK, "--text", "so good", "--json")
    assert code == 0 and [e["tokens"] for e in json.loads(out)["examples"]] == [["so", "good"]]
    data = table(tmp_path / "own.csv", [("bad", "no"), ("so so good", "yes")])
    code, out, _ = regard("faithfulness", attending, *QUICK, "--data", data, "--json")
    assert code == 0 and [e["text"] for e in json.loads(out)["examples"]] == ["bad", "so so good"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--text", " "], "has no tokens"),
        (["--text", "good", "--data", "sst2"], "give one of them"),
        (["--measure", "flip"], "measure must be one of"),
        (["--attention", "decoder"], "matches none of"),
        (["--report", "nowhere/page.html"], "does not exist"),
    ],
)
def test_wrong_input_is_an_error_of_one_sentence(regard, attending, args, words):
    code, out, err = regard("faithfulness", attending, *args)
    assert code == 2 and words in err and not out and "Traceback" not in err


def test_a_model_without_attention_is_an_error_of_one_sentence(regard, tmp_path):
    model = train_classifier(tmp_path, "mean", 1)
    code, _, err = regard("faithfulness", model, "--text", "good")
    assert code == 2 and "no attention that could explain" in err


@pytest.fixture(scope="module")
def signals(tmp_path_factory, own_cache):
    """A folder of recordings, and in `run` a classifier of them that was trained for a few steps."""
    folder = tmp_path_factory.mktemp("signals")
    data = {}
    for split, count in (("train", 60), ("test", 12)):
        x, words, _ = recordings(count, count)
        np.save(folder / f"{split}.npy", x)
        (folder / f"{split}.labels").write_text("".join(f"{spoken[0]}\n" for spoken in words))
        data[split] = [[str(folder / f"{split}.npy"), str(folder / f"{split}.labels")]]
    np.save(folder / "a.npy", x[0][:20])
    np.savetxt(folder / "b.csv", x[1], delimiter=",")
    (folder / "list.csv").write_text("file,label\na.npy,rise\nb.csv,fall\n")
    np.save(folder / "wide.npy", np.zeros((4, 3)))
    model = {"input": "frames", "dim": 16, "encoder": {"kind": "transformer", "layers": 1, "heads": 2}}
    recipe = {
        "task": "classify",
        "data": {**data, "validation": data["test"]},
        "model": {**model, "pooling": "attention"},
        "schedule": {"kind": "constant"},
        "training": {"steps": 4, "device": "cpu", "threads": 1},
    }
    train(recipe, folder=folder / "run", quiet=True)
    return folder


def test_sequences_of_numbers_have_frames_for_tokens(regard, signals, tmp_path):
    page = tmp_path / "page.html"
    code, out, err = regard("faithfulness", signals / "run", *QUICK, "--limit", 3, "--report", page)
    assert code == 0, err
    assert "pooling.attention.cross; 3 sequences" in out and "the frames of a sequence agree" in out
    assert "test.npy#" in page.read_text(encoding="utf-8")
    args = (*QUICK, "--data", signals / "a.npy", "--data", signals / "list.csv", "--json")
    code, out, err = regard("faithfulness", signals / "run", *args)
    assert code == 0, err
    examples = json.loads(out)["examples"]
    assert [e["text"] for e in examples] == [str(signals / name) for name in ("a.npy", "a.npy", "b.csv")]
    assert [len(e["tokens"]) for e in examples] == [20, 20, 64] and examples[0] == examples[1]
    code, out, _ = regard("faithfulness", signals / "run", *QUICK, "--text", f"{signals / 'test.npy'}#2")
    assert code == 0 and "1 sequences" in out


def test_seeds_and_the_diagnostic_of_sequences(regard, signals):
    args = ("--json", "--limit", 2, "--other-seed", signals / "run", "--diagnostic")
    code, out, err = regard("faithfulness", signals / "run", *QUICK, *args)
    assert code == 0, err
    record = json.loads(out)
    assert record["seeds"]["divergence"]["value"] == 0 and 0 <= record["diagnostic"]["means"]["model"] <= 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--data", "{}/wide.npy"], "has 3 channels, and this model was trained on 8"),
        (["--data", "{}/none.npy"], "there is no file"),
        (["--data", "{}/a.npy", "--split", "test"], "--split is a part of the model's own data"),
        (["--text", "{}/test.npy"], "holds 12 sequences; name one"),
        (["--data", "{}/a.npy", *QUICK, "--diagnostic"], "has no targets"),
    ],
)
def test_wrong_sequences_are_errors_of_one_sentence(regard, signals, args, words):
    code, out, err = regard("faithfulness", signals / "run", *(arg.format(signals) for arg in args))
    assert code == 2 and words in err and not out and "Traceback" not in err


def test_a_hugging_face_folder(regard, tmp_path):
    hf = pytest.importorskip("transformers")
    from tests.evaluation.explanation.small_models import huggingface_tokenizer

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    hf.BertForSequenceClassification(hf.BertConfig(vocab_size=20, **sizes)).save_pretrained(tmp_path / "bert")
    huggingface_tokenizer().save_pretrained(tmp_path / "bert")
    (tmp_path / "texts.txt").write_text("one two three\n\nfive two\n", encoding="utf-8")
    args = (tmp_path / "bert", *QUICK, "--data", tmp_path / "texts.txt", "--json")
    code, out, err = regard("faithfulness", *args)
    assert code == 0, err
    assert [e["tokens"] for e in json.loads(out)["examples"]] == [["one", "two", "three"], ["five", "two"]]
    code, _, err = regard("faithfulness", tmp_path / "bert")
    assert code == 2 and "name a text file with --data" in err
