"""comparisons.py: Kendall's τ-b, total variation, Jensen–Shannon divergence, bootstrap means."""

import math

import pytest
import torch

from regard.evaluation.explanation.comparisons import Mean, jensen_shannon, kendall_tau, total_variation


def test_kendall_tau_with_ties_by_hand():
    # Pairs of (1, 2, 2) and (1, 3, 2): two concordant, one tied in x. τ-b = 2 / √(2 · 3).
    x, y = torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 3.0, 2.0])
    assert kendall_tau(x, y) == pytest.approx(2 / math.sqrt(6))
    assert kendall_tau(y, y) == pytest.approx(1) and kendall_tau(y, -y) == pytest.approx(-1)


def test_kendall_tau_equals_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    draw = torch.Generator().manual_seed(0)
    for n in range(2, 40):
        x, y = (torch.randint(6, (n,), generator=draw).double() for _ in range(2))
        expected = stats.kendalltau(x.numpy(), y.numpy(), variant="b").statistic
        tau = kendall_tau(x, y)
        assert (math.isnan(tau) and math.isnan(expected)) or tau == pytest.approx(expected, abs=1e-12)


def test_kendall_tau_of_equal_scores_or_one_token_is_undefined():
    assert math.isnan(kendall_tau(torch.ones(4), torch.arange(4.0)))
    assert math.isnan(kendall_tau(torch.ones(1), torch.ones(1)))


def test_distances_of_distributions_by_hand():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.5, 0.5])
    assert float(total_variation(p, q)) == pytest.approx(0.5)
    assert float(jensen_shannon(p, q)) == pytest.approx(0.5 * math.log(2))
    ends = torch.eye(2)
    assert float(jensen_shannon(ends[0], ends[1])) == pytest.approx(math.log(2))
    assert float(jensen_shannon(p, p)) == 0.0 and float(total_variation(p, p)) == 0.0


def test_means_ignore_undefined_values_and_have_an_interval():
    mean = Mean.of([1.0, math.nan, 3.0, 2.0])
    assert mean.value == pytest.approx(2) and mean.count == 3 and mean.std == pytest.approx(1)
    assert mean.low is not None and mean.high is not None and 1 <= mean.low < 2 < mean.high <= 3
    assert Mean.of([math.nan]).value is None and Mean.of([4.0]).low is None
    assert Mean.of([1.0, 3.0, 2.0], seed=1) == Mean.of([1.0, 3.0, 2.0], seed=1)


def test_the_interval_is_as_wide_as_the_normal_one_for_many_values():
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    mean = Mean.of(values)
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * mean.std / math.sqrt(2000), rel=0.1)
