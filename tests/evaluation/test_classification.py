"""Classification scores against scikit-learn and by hand, text, JSON and plots."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError, OptionError
from regard.evaluation.classification import accuracy, confusion, macro_f1, scores

LABELS = ["a", "b", "c", "d"]
LABEL_PAIRS = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS)), min_size=1, max_size=60)


@given(LABEL_PAIRS)
def test_all_scores_equal_scikit_learns(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    gold, predicted = map(list, zip(*pairs, strict=True))
    result = scores(gold, predicted, labels=LABELS)
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        gold, predicted, labels=LABELS, zero_division=0
    )
    assert (
        result.accuracy == accuracy(gold, predicted) == pytest.approx(metrics.accuracy_score(gold, predicted))
    )
    assert result.macro_f1 == pytest.approx(
        metrics.f1_score(gold, predicted, average="macro", zero_division=0)
    )
    assert macro_f1(gold, predicted) == pytest.approx(result.macro_f1)
    assert [score.precision for score in result.classes] == pytest.approx(list(precision))
    assert [score.recall for score in result.classes] == pytest.approx(list(recall))
    assert [score.f1 for score in result.classes] == pytest.approx(list(f1))
    assert [score.support for score in result.classes] == list(support)
    np.testing.assert_array_equal(result.confusion, metrics.confusion_matrix(gold, predicted, labels=LABELS))


def test_a_small_case_worked_by_hand():
    result = scores(["yes", "yes", "no", "no", "no"], ["yes", "no", "no", "no", "yes"])
    assert result.labels == ("no", "yes")
    assert result.confusion.tolist() == [[2, 1], [1, 1]]  # recall: 2 of 3 for no, 1 of 2 for yes
    assert result.accuracy == pytest.approx(3 / 5)
    no, yes = result.classes
    assert (no.precision, no.recall, no.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (yes.precision, yes.recall, yes.f1) == pytest.approx((1 / 2, 1 / 2, 1 / 2))
    assert result.macro_f1 == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert result.calibration is None


def test_a_label_that_never_occurs_does_not_lower_the_mean():
    assert scores(["a", "b"], ["a", "b"], labels=["a", "b", "never"]).macro_f1 == 1.0


def test_the_text_shows_every_label_and_the_matrix():
    text = scores(
        ["yes", "yes", "no"],
        ["yes", "no", "no"],
        np.array([[0.1, 0.9], [0.6, 0.4], [0.8, 0.2]]),
        ["no", "yes"],
    ).text()
    assert "accuracy 0.6667 (2 of 3), macro-F1 0.6667" in text
    assert "yes       1.0000  0.5000  0.6667       2" in text.replace("  yes", "yes")
    assert "gold ↓  predicted →  no  yes\nno                    1    0\nyes                   1    1" in text
    assert "expected calibration error" in text


def test_with_many_labels_the_most_frequent_mistakes_are_listed():
    gold = [f"label {i}" for i in range(20)] + ["label 3"] * 5
    predicted = [f"label {i}" for i in range(20)] + ["label 7"] * 4 + ["label 1"]
    text = scores(gold, predicted).text()
    assert (
        "the most frequent of 5 mistakes, 2 kinds\n     4  label 3 predicted as label 7\n     1  label 3 "
        "predicted as label 1" in text
    )


def test_json_contains_all_scores():
    result = scores(["a", "b"], ["a", "a"], np.array([[0.9, 0.1], [0.6, 0.4]]), ["a", "b"])
    loaded = json.loads(json.dumps(result.as_dict()))
    assert loaded["accuracy"] == 0.5
    assert loaded["classes"]["b"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1}
    assert loaded["confusion"] == {"labels": ["a", "b"], "counts": [[1, 0], [1, 0]]}
    assert loaded["calibration"]["brier"] == pytest.approx(result.calibration.brier)


def test_plots_are_written(tmp_path):
    result = scores(
        ["a", "b", "b"], ["a", "a", "b"], np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), ["a", "b"]
    )
    paths = result.draw(tmp_path / "confusion.png")
    assert [path.name for path in paths] == ["confusion.png", "confusion-calibration.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    many = scores(
        [f"a long name of label {i}" for i in range(40)], [f"a long name of label {i}" for i in range(40)]
    )
    assert many.draw(tmp_path / "many.svg")[0].stat().st_size > 1000
    with pytest.raises(OptionError, match=r"\.png, \.svg or \.pdf, got confusion\.doc"):
        result.draw(tmp_path / "confusion.doc")


@pytest.mark.parametrize(
    ("gold", "predicted", "probabilities", "labels", "message"),
    [
        (["a"], ["a", "b"], None, None, "1 gold labels and 2 predictions"),
        ([], [], None, None, "no texts to score"),
        (
            ["a", "x"],
            ["a", "a"],
            None,
            ["a", "b"],
            r"the gold label 'x' of text 2 is none of the labels \(a, b\)",
        ),
        (["a"], ["x"], None, ["a", "b"], "the predicted label 'x' of text 1"),
        (["a"], ["a"], np.ones((2, 2)), ["a", "b"], r"probabilities of shape \(1, 2\), got \(2, 2\)"),
        (["a"], ["a"], np.array([[3.0, -1.0]]), ["a", "b"], "give the softmax"),
        (["a"], ["a"], np.array([[np.nan, 1.0]]), ["a", "b"], "must add up to 1"),
    ],
)
def test_invalid_input_is_an_error(gold, predicted, probabilities, labels, message):
    with pytest.raises(DataError, match=message):
        scores(gold, predicted, probabilities, labels)


def test_the_matrix_counts_each_text_once():
    gold, predicted = list(np.random.default_rng(0).choice(LABELS, (2, 5000)))
    counts = confusion(gold, predicted, LABELS)
    assert counts.sum() == 5000
    assert counts[1, 2] == sum(a == "b" and b == "c" for a, b in zip(gold, predicted, strict=True))
