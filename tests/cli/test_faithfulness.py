"""faithfulness.py and evaluation/explanation/explained_inputs.py: models, files, texts; errors."""

import json

import pytest

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
