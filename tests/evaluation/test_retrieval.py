"""Retrieval metrics by hand and against scikit-learn, and retrieval of paired texts."""

import math

import numpy as np
import pytest

from regard.errors import DataError
from regard.evaluation.retrieval import (
    average_precision,
    ndcg,
    pair_retrieval,
    read_qrels,
    recall,
    retrieval_scores,
)


def test_ndcg_worked_by_hand():
    """Gains 3, 0, 1 at ranks 1 to 3, ideal 3, 2, 1: (3 + 1/2)/(3 + 2/log₂3 + 1/2)."""
    relevant = {"a": 3, "b": 2, "c": 1, "z": -1}
    expected = (3 + 1 / 2) / (3 + 2 / math.log2(3) + 1 / 2)
    assert ndcg(["a", "x", "c"], relevant) == pytest.approx(expected)
    assert ndcg(["z", "x"], relevant) == 0.0
    assert ndcg(["a", "b", "c"], relevant) == pytest.approx(1.0)
    assert ndcg(["a"], relevant, k=1) == pytest.approx(1.0)


def test_ndcg_equals_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(3)
    for _ in range(20):
        gains, scores = draw.integers(0, 4, 30), draw.random(30)
        assert gains.any()
        ranking = [str(i) for i in np.argsort(-scores)]
        ours = ndcg(ranking, {str(i): int(gain) for i, gain in enumerate(gains)})
        assert ours == pytest.approx(metrics.ndcg_score([gains], [scores], k=10))


def test_average_precision_and_recall_worked_by_hand():
    ranking, relevant = ["a", "x", "b", "y"], {"a", "b", "c"}
    assert average_precision(ranking, relevant) == pytest.approx((1 / 1 + 2 / 3) / 3)
    assert recall(ranking, relevant, 2) == pytest.approx(1 / 3)
    assert recall(ranking, relevant) == pytest.approx(2 / 3)


def test_a_query_without_a_ranking_scores_zero(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text("1 0 a 1\n1 0 b 0\n2 0 c 2\n\n3 0 d 0\n", encoding="utf-8")
    scores = retrieval_scores({"1": ["a", "b"]}, read_qrels(path))
    assert (scores.queries, scores.ndcg10, scores.average_precision, scores.recall100) == (2, 0.5, 0.5, 0.5)


def test_invalid_judgements_are_named_by_line(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text("1 0 a 1\n1 0 b\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"line 2 of .*qrels.txt is not `query 0 document relevance`: '1 0 b'"
    ):
        read_qrels(path)
    with pytest.raises(DataError, match="no query has a relevant document"):
        retrieval_scores({}, {"1": {"a": 0}})
    with pytest.raises(DataError, match="use the same query ids"):
        retrieval_scores({"q1": ["a"]}, {"1": {"a": 1}})


def test_pair_retrieval_uses_both_directions_and_ties_count_against_it():
    a = np.eye(3, dtype=np.float32)
    assert pair_retrieval(a, a) == {"accuracy": 1.0, "mrr": 1.0}
    swapped = pair_retrieval(a, a[[1, 0, 2]])
    assert swapped["accuracy"] == pytest.approx(1 / 3)
    # A swapped text has cosine 0 with its pair: it ties with another text and gets the lower rank, 3.
    assert swapped["mrr"] == pytest.approx((1 / 3 + 1 / 3 + 1) / 3)
    same = np.ones((4, 1), np.float32)
    assert pair_retrieval(same, same) == {"accuracy": 0.0, "mrr": 0.25}
