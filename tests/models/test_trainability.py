"""Normalisation makes deep stacks trainable.

Row 34 of docs/lectures.md. Covers the norms of transformer.py; uses benchmarks/trainability.py.
"""

import math

import pytest
from benchmarks.trainability import GUESSING, Setting, final, last_layer_gradient, train


def test_twelve_layers_without_normalisation_diverge_and_with_it_learn():
    """Poerner's second problem: without normalisation the loss stays far above that of guessing."""
    losses = {norm: train(Setting(norm, steps=25, batch=16)) for norm in ("post", "pre", "none")}
    for norm in ("post", "pre"):
        assert final(losses[norm]) < losses[norm][0] - 0.3 and final(losses[norm]) < GUESSING + 0.15
    assert losses["none"][0] > 5 * GUESSING
    assert not min(losses["none"]) < 2 * GUESSING  # also true of NaN


def test_two_layers_without_normalisation_learn():
    losses = train(Setting("none", layers=2, steps=40, rate=0.003))
    assert all(map(math.isfinite, losses)) and final(losses) < GUESSING


@pytest.mark.parametrize(
    ("norm", "low", "high"), [("post", 0.6, 1.3), ("pre", 0.3, 0.65), ("none", 8, math.inf)]
)
def test_the_gradient_of_the_last_layer_by_depth_is_that_of_xiong_et_al(norm, low, high):
    """Theorem 1: with post it is the same at any depth L, with pre it falls as 1/√L (2 to 12: 0.41).

    Without normalisation it grows with every layer.
    """
    shallow, deep = (
        sum(last_layer_gradient(Setting(norm, layers, seed=seed)) for seed in range(3)) for layers in (2, 12)
    )
    assert low < deep / shallow < high
