"""Poolings: their formulas, no influence of padding, and watched attention weights."""

import math
import subprocess
import sys

import pytest
import torch

import regard
from regard.attention.energy import Additive, Bilinear, Dot
from regard.attention.normalize import Sparsemax
from regard.layers.recurrent import RecurrentStack
from regard.models.memory import Memory
from regard.models.pooling import (
    AttentionPooling,
    ConcatPooling,
    LastPooling,
    MaxPooling,
    MeanPooling,
    RecurrentPooling,
    SumPooling,
)

WIDTH = 8
POOLINGS = {
    "mean": lambda: MeanPooling(WIDTH),
    "sum": lambda: SumPooling(WIDTH),
    "max": lambda: MaxPooling(WIDTH),
    "last": lambda: LastPooling(WIDTH),
    "recurrent": lambda: RecurrentPooling(RecurrentStack(WIDTH, 6, cell="gru")),
    "attention": lambda: AttentionPooling(WIDTH, queries=3),
    "additive": lambda: AttentionPooling(WIDTH, energy=Additive(WIDTH)),
    "bilinear in heads": lambda: AttentionPooling(WIDTH, heads=2, energy=Bilinear(WIDTH // 2, heads=2)),
    "sparse": lambda: AttentionPooling(WIDTH, energy=Dot(), normalize=Sparsemax()),
    "concat": lambda: ConcatPooling([MeanPooling(WIDTH), MaxPooling(WIDTH)]),
}


def states(batch=3, length=5):
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("name", POOLINGS)
def test_padding_has_no_influence_and_the_width_is_as_declared(name):
    pooling = POOLINGS[name]().double()
    x, lengths = states(), torch.tensor([5, 3, 1])
    batched = pooling(Memory(x, lengths))
    assert batched.shape == (3, pooling.width)
    for row, length in enumerate(lengths.tolist()):
        single = pooling(Memory(x[row : row + 1, :length], None))
        torch.testing.assert_close(batched[row : row + 1], single, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in POOLINGS if name not in ("mean", "sum", "concat")])
def test_nan_in_padding_does_not_reach_the_output(name):
    """Mean, sum and concat are left out: they multiply padding by zero."""
    x = states()
    x[1, 3:] = torch.nan
    assert POOLINGS[name]().double()(Memory(x, torch.tensor([5, 3, 1])))[1].isfinite().all()


@pytest.mark.parametrize("name", POOLINGS)
def test_an_empty_text_gives_zeros(name):
    pooling = POOLINGS[name]().double()
    result = pooling(Memory(states(2), torch.tensor([4, 0])))
    assert result[1].eq(0).all() and result[0].abs().sum() > 0
    for lengths in (torch.tensor([0, 0]), None):  # empty texts, with and without padded positions
        assert pooling(Memory(states(2, 0), lengths)).equal(
            torch.zeros(2, pooling.width, dtype=torch.float64)
        )
    assert pooling(Memory(states(2), torch.tensor([0, 0]))).eq(0).all()


# Tiled attention, which additive energies use, refuses an empty batch.
@pytest.mark.parametrize("name", [name for name in POOLINGS if name != "additive"])
@pytest.mark.parametrize("length", [0, 5])
def test_an_empty_batch_gives_no_vectors(name, length):
    pooling = POOLINGS[name]().double()
    for lengths in (torch.zeros(0, dtype=torch.long), None):
        assert pooling(Memory(states(0, length), lengths)).shape == (0, pooling.width)


def test_each_pooling_equals_its_formula():
    x = states(1, 4)
    memory = Memory(x, None)
    torch.testing.assert_close(MeanPooling(WIDTH)(memory), x.mean(1))
    torch.testing.assert_close(SumPooling(WIDTH)(memory), x.sum(1))
    torch.testing.assert_close(MaxPooling(WIDTH)(memory), x.amax(1))
    torch.testing.assert_close(LastPooling(WIDTH)(memory), x[:, -1])


def test_attention_pooling_is_a_weighted_mean_of_projected_states_and_can_be_watched():
    pooling = AttentionPooling(WIDTH, queries=2).double()
    x = states(1, 4)
    with regard.watch(pooling) as seen:
        out = pooling(Memory(x, None))
    weights = seen["attention.cross"].weights(head=0)[0]  # (queries, tokens)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close((weights @ pooling.attention.Wv(x[0])).flatten(), out[0])


@pytest.mark.parametrize(
    "name", ["mean", "sum", "max", "attention", "additive", "bilinear in heads", "sparse"]
)
def test_order_invariant_poolings_ignore_the_order_of_states(name):
    pooling, x = POOLINGS[name]().double(), states(1)
    torch.testing.assert_close(
        pooling(Memory(x, None)), pooling(Memory(x.flip(1), None)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("name", ["last", "recurrent"])
def test_last_and_recurrent_poolings_depend_on_the_order_of_states(name):
    pooling, x = POOLINGS[name]().double(), states(1)
    assert not torch.allclose(pooling(Memory(x, None)), pooling(Memory(x.flip(1), None)))


def test_queries_are_normal_with_variance_one_over_width():
    torch.manual_seed(1)
    expected = torch.randn(3, 8) / math.sqrt(8)
    torch.manual_seed(1)
    assert torch.equal(AttentionPooling(8, queries=3).query, expected)


SHAPES_ONLY = """import sys, torch
from regard.models.folder import SkipInitialization
from regard.models.pooling import AttentionPooling
before = set(sys.modules)
with torch.device("meta"), SkipInitialization():
    AttentionPooling(8, queries=3)
print(sorted({name.split(".")[0] for name in set(sys.modules) - before} & {"sympy", "mpmath"}))
"""


def test_loading_a_model_imports_no_slow_module():
    result = subprocess.run([sys.executable, "-c", SHAPES_ONLY], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
