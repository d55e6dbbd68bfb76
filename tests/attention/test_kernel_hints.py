"""Every kernel follows the rule of a subclass. Covers kernel_hints.py."""

import pytest
import torch

import regard
from regard import (
    Causal,
    Softmax,
    attend,
)
from tests.attention.every_kernel import close, inputs, runs


class Shifted(regard.ScaledDot):
    def __call__(self, query, key):
        return super().__call__(query, key) + query[..., :1] * key[..., 0].unsqueeze(-2)


class Reversed(Causal):
    def allowed(self, grid):
        return grid.k >= grid.position()


class Wider(Causal):
    def band(self):
        return None, 5


class Cubed(Softmax):
    def rows(self, scores):
        return torch.softmax(scores, -1) ** 3


@pytest.mark.parametrize(
    "options", [{"energy": Shifted()}, {"mask": Reversed()}, {"mask": Wider()}, {"normalize": Cubed()}]
)
def test_every_kernel_follows_a_subclass_that_overrides_the_rule(options):
    q, k, v = inputs(2, 4, 200, 16)
    true = attend(q, k, v, kernel="reference", **options)
    plain = attend(q, k, v, kernel="reference", **{n: type(x).__mro__[1]() for n, x in options.items()})
    assert not close(true, plain)
    for name, out in runs(q, k, v, **options):
        assert close(out, true), name
