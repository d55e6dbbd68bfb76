"""benchmarks/labelling.py: which questions are examples, and what is scored."""

import numpy as np
import pytest
from benchmarks.labelling import Accuracies, draw_examples, measure, row

from regard.errors import OptionError


def clusters(count=40, seed=0):
    """Questions in two groups that are far apart, 60 % of them LOC; the last ten are the test set."""
    rng = np.random.default_rng(seed)
    labels = ["LOC" if i % 5 < 3 else "NUM" for i in range(count)]
    centers = {"LOC": [1, 0, 0], "NUM": [0, 1, 0]}
    vectors = np.asarray([centers[label] for label in labels], np.float32) + 0.05 * rng.standard_normal(
        (count, 3)
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), labels, {"train": range(count - 10), "test": range(count - 10, count)}


def test_examples_come_from_the_training_rows_equally_and_differ_by_seed():
    _, labels, sets = clusters()
    examples = draw_examples(labels, len(sets["train"]), 3, seed=1)
    assert sorted(examples.values()) == ["LOC"] * 3 + ["NUM"] * 3
    assert all(i in sets["train"] and labels[i] == label for i, label in examples.items())
    assert examples == draw_examples(labels, 30, 3, seed=1) != draw_examples(labels, 30, 3, seed=2)
    with pytest.raises(OptionError, match="only 12 training questions are NUM, and --examples is 13"):
        draw_examples(labels, 30, 13, seed=1)


def test_groups_that_are_far_apart_are_labelled_correctly():
    vectors, labels, sets = clusters()
    results = measure(vectors, labels, draw_examples(labels, 30, 2, seed=1), sets)
    assert results == {
        "train": Accuracies(100.0, 100.0, 100.0, 26, 100.0),  # 30 without 4 examples
        "test": Accuracies(100.0, 100.0, 100.0, 10, 100.0),
    }


def test_examples_are_not_scored_and_wrong_labels_count():
    vectors, labels, sets = clusters()
    examples = draw_examples(labels, 30, 2, seed=1)
    wrong = [i for i in range(40) if i not in examples][:13]  # half of the 26, all in the training set
    for i in wrong:
        labels[i] = "NUM" if labels[i] == "LOC" else "LOC"
    results = measure(vectors, labels, examples, sets)
    assert (results["train"].all, results["train"].regression, results["test"].all) == (50.0, 50.0, 100.0)


def test_a_row_has_means_and_deviations_and_a_dash_if_no_label_is_confident():
    draws = [Accuracies(50.0, 60.0, None, 0, 40.0), Accuracies(52.0, 64.0, None, 0, 44.0)]
    assert row("test", 9, draws) == ["test", "9", "51.0 ± 1.4", "62.0 ± 2.8", "– of 0", "42.0 ± 2.8"]
