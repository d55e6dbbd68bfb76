"""Correlations by hand and against scipy, and similarity scores of an embedder."""

from types import SimpleNamespace

import numpy as np
import pytest

from regard.errors import DataError
from regard.evaluation.similarity import pearson, similarity_scores, spearman
from tests.search.small import TEXTS, embedder


def test_spearman_worked_by_hand():
    """Ranks 1, 2, 3 and 1, 3, 2: 1 − 6·(0 + 1 + 1)/(3·8) = 1/2; ties share a rank."""
    assert spearman([0.1, 0.5, 0.9], [1, 30, 2]) == pytest.approx(0.5)
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1.0)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


def test_correlations_equal_scipys():
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(1)
    x, y = draw.integers(0, 6, 200), draw.standard_normal(200)
    assert spearman(x, x + y) == pytest.approx(stats.spearmanr(x, x + y).statistic)
    assert pearson(x, x + y) == pytest.approx(stats.pearsonr(x, x + y).statistic)


def test_scored_pairs_give_correlations_and_paraphrases_give_retrieval():
    model = embedder()
    split = SimpleNamespace(
        name="test",
        sources=[TEXTS[0], TEXTS[1], TEXTS[2]],
        targets=[TEXTS[0], TEXTS[1], TEXTS[5]],
        scores=[5.0, 4.0, 0.0],
    )
    result = similarity_scores(model, split)
    assert (result.pairs, result.positive_pairs, result.accuracy, result.mrr) == (3, 2, 1.0, 1.0)
    assert result.spearman is not None and result.spearman > 0
    assert result.as_dict()["spearman"] == result.spearman
    assert "Spearman" in str(result)


def test_pairs_without_scores_all_count_for_retrieval():
    result = similarity_scores(
        embedder(), SimpleNamespace(name="test", sources=TEXTS, targets=TEXTS, scores=[])
    )
    assert result.spearman is None and result.accuracy == 1.0 and "spearman" not in result.as_dict()


def test_data_without_pairs_is_an_error():
    with pytest.raises(DataError, match="test contains no pairs"):
        similarity_scores(embedder(), SimpleNamespace(name="test", sources=[], targets=[], scores=[]))
