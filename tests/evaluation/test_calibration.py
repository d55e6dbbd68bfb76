"""Calibration worked by hand, against scikit-learn's Brier score, and on calibrated predictions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import OptionError
from regard.evaluation.calibration import calibration

TWO = ["no", "yes"]


def test_two_bins_worked_by_hand():
    p = np.array([[0.2, 0.8], [0.1, 0.9], [0.6, 0.4], [0.9, 0.1]])
    # The confidences 0.8, 0.9, 0.6 and 0.9 are all in the second bin.
    result = calibration(["yes", "no", "no", "no"], p, TWO, bins=2)
    assert [bin.texts for bin in result.bins] == [0, 4]
    assert result.bins[0].confidence is None
    assert result.bins[1].confidence == pytest.approx(0.8)
    assert result.bins[1].accuracy == pytest.approx(3 / 4)
    assert result.ece == pytest.approx(0.05)
    assert result.brier == pytest.approx(2 * (0.2**2 + 0.9**2 + 0.4**2 + 0.1**2) / 4)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    result = calibration(["yes", "yes"], np.array([[0.4, 0.6], [0.0, 1.0]]), TWO, bins=5)
    assert [bin.texts for bin in result.bins] == [0, 0, 1, 0, 1]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=50))
def test_the_brier_score_of_two_labels_is_twice_scikit_learns(sample):
    metrics = pytest.importorskip("sklearn.metrics")
    gold, p = [TWO[right] for right, _ in sample], np.array([x for _, x in sample])
    theirs = metrics.brier_score_loss([right for right, _ in sample], p, pos_label=True)
    assert calibration(gold, np.stack([1 - p, p], 1), TWO).brier == pytest.approx(2 * theirs, abs=1e-12)


@given(st.integers(0, 1000), st.integers(2, 6))
def test_the_error_is_the_sum_over_bins_and_bins_hold_every_text(seed, size):
    draw = np.random.default_rng(seed)
    p = draw.dirichlet(np.ones(size), 40)
    labels = [str(i) for i in range(size)]
    gold = list(draw.choice(labels, 40))
    result = calibration(gold, p, labels)
    confidence, right = p.max(1), np.array([labels[i] == g for i, g in zip(p.argmax(1), gold, strict=True)])
    by_hand = 0.0
    for low in np.arange(15) / 15:
        rows = (confidence > low) & (confidence <= low + 1 / 15)
        by_hand += abs(right[rows].sum() - confidence[rows].sum()) / 40
    assert result.ece == pytest.approx(by_hand)
    assert sum(bin.texts for bin in result.bins) == 40


def test_calibrated_predictions_have_a_low_error_and_overconfident_ones_a_high_error():
    draw = np.random.default_rng(0)
    p = draw.uniform(0, 1, 40_000)
    gold = [TWO[int(x)] for x in draw.uniform(0, 1, 40_000) < p]
    calibrated = calibration(gold, np.stack([1 - p, p], 1), TWO)
    overconfident = np.where(p > 0.5, 0.99, 0.01)
    assert calibrated.ece < 0.01
    assert calibration(gold, np.stack([1 - overconfident, overconfident], 1), TWO).ece > 0.2


def test_the_table_has_a_line_for_each_bin_with_texts_and_the_diagram_is_drawn(tmp_path):
    result = calibration(["yes", "no"], np.array([[0.3, 0.7], [0.4, 0.6]]), TWO, bins=10)
    assert result.text().splitlines()[2:] == [
        " 0.500 – 0.600        1  0.6000  0.0000",
        " 0.600 – 0.700        1  0.7000  1.0000",
    ]
    assert result.draw(tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_zero_bins_are_an_error():
    with pytest.raises(OptionError, match="bins must be an integer of at least 1, got 0"):
        calibration(["yes"], np.array([[0.0, 1.0]]), TWO, bins=0)
