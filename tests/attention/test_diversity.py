"""Head diversity: examples by hand, and scipy's divergence."""

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon

import regard
from regard.attention import head_diversity
from regard.errors import OptionError, RegardError, ShapeError


def test_equal_heads_have_no_divergence_and_rank_one():
    diversity = head_diversity(torch.randn(1, 5, 6).softmax(-1).expand(4, 5, 6))
    assert diversity.divergence == pytest.approx(0, abs=1e-9) and diversity.effective_rank == pytest.approx(
        1, abs=1e-6
    )


def test_heads_that_share_no_key_have_one_bit_and_full_rank():
    keys = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])  # head h attends from query t to keys[h, t]
    diversity = head_diversity(torch.nn.functional.one_hot(keys, 3).double())
    assert diversity.divergence == pytest.approx(1) and diversity.effective_rank == pytest.approx(3)
    assert diversity.pairs.tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_the_divergence_of_two_heads_computed_by_hand():
    # p = (1, 0), q = (1/2, 1/2), m = (3/4, 1/4): H(m) − H(q)/2 = 0.8113 − 0.5 bits.
    diversity = head_diversity(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]))
    m = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert diversity.divergence == pytest.approx(m - 0.5)


def test_divergences_are_those_of_scipy():
    weights = torch.randn(2, 3, 4, 5, dtype=torch.float64).softmax(-1)  # (batch, heads, queries, keys)
    diversity = head_diversity(weights)
    for i in range(3):
        for j in range(3):
            rows = zip(weights[:, i].reshape(-1, 5), weights[:, j].reshape(-1, 5), strict=True)
            expected = [jensenshannon(p.numpy(), q.numpy(), base=2) ** 2 for p, q in rows]
            assert float(diversity.pairs[i, j]) == pytest.approx(sum(expected) / len(expected), abs=1e-9)
    off = diversity.pairs[~torch.eye(3, dtype=torch.bool)]
    assert diversity.divergence == pytest.approx(float(off.mean()))


def test_head_diversity_of_a_recorded_call_leaves_out_fully_masked_rows():
    q = torch.randn(2, 3, 4, 8)
    with regard.watch() as seen:
        regard.attend(q, q, q, mask=~regard.Causal())  # the last query sees nothing
    recorded = seen["attend.0"]
    assert recorded.head_diversity().divergence == pytest.approx(
        recorded.head_diversity(query=slice(0, 3)).divergence
    )
    assert "3 heads" in str(recorded.head_diversity(batch=1, query=0))
    with pytest.raises(OptionError, match="no row in which every head attends"):
        recorded.head_diversity(query=3)


def test_the_divergence_of_one_head_is_zero():
    diversity = head_diversity(torch.ones(1, 2, 2) / 2)
    assert diversity.divergence == 0 and str(diversity).startswith("1 head,")


def test_weights_without_heads_or_with_negative_entries_are_refused():
    for wrong, kind in (
        (torch.ones(2, 2), ShapeError),
        (torch.ones(0, 2, 2), ShapeError),
        (-torch.ones(2, 2, 2), OptionError),
        ("weights", RegardError),
    ):
        with pytest.raises(kind):
            head_diversity(wrong)
