"""Which batches make a step, however many processes share them."""

import numpy as np
import pytest
import torch

from regard.data.batches import Batches
from regard.data.datasets import load_corpus as load
from regard.errors import RecipeError
from regard.recipe.loading import load_recipe as load_recipe
from regard.training.distributed import World
from regard.training.step_iterator import StepIterator
from tests.training import tiny


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        recipe = load_recipe(tiny.recipe(folder))
        return load(recipe.data, recipe.tokenizer, task="translate", seed=1).train


class Pretended(World):
    """One of several processes, without the others: sums are its own."""

    def sum(self, values):
        return list(values)


def feed(prepared, rank=0, size=1, accumulate=1, tokens=60, flops=lambda s, t: s + 10 * t):
    world = Pretended(torch.device("cpu"), rank, size)
    return StepIterator(
        Batches(prepared, tokens=tokens, seed=1, rank=rank, world=size), world, accumulate, flops
    )


def rows(portion):
    return [tuple(b.rows.tolist()) for b in portion.batches]


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_take_the_batches_that_one_would(prepared, size):
    one = feed(prepared, accumulate=6)
    all_of = [feed(prepared, rank, size, accumulate=6 // size) for rank in range(size)]
    for _ in range(12):  # several epochs
        together = [rows(f.next()) for f in all_of]
        inter = [batch for turn in zip(*together, strict=True) for batch in turn]
        assert rows(one.next()) == inter
        assert {f.epochs for f in all_of} == {one.epochs}
    assert one.epochs > 3


def test_a_step_never_takes_from_two_epochs(prepared):
    found = feed(prepared, accumulate=4)
    size = found.stream.per_epoch()
    seen = []
    for _ in range(size // 4):
        seen += [row for batch in found.next().batches for row in batch.rows.tolist()]
    assert len(seen) == len(set(seen)) and found.epochs == 1.0


def test_an_epoch_shorter_than_a_step_is_read_on(prepared):
    found = feed(prepared, accumulate=5, tokens=720)  # all 80 pairs fit in one batch
    assert found.stream.per_epoch() == 1
    assert len(found.next().batches) == 5 and found.epochs == 5.0


def test_a_portion_counts_its_tokens_and_three_forward_passes(prepared):
    portion = feed(prepared, accumulate=2).next()
    source = np.concatenate([b.source_lengths for b in portion.batches])
    target = np.concatenate([b.target_lengths for b in portion.batches])
    assert (
        portion.tokens == target.sum()
        and portion.source_tokens == source.sum()
        and portion.sentences == len(source)
    )
    assert portion.flops == 3 * (source + 10 * target).sum()


def test_a_restored_feed_goes_on_with_the_next_batches(prepared):
    one, other = feed(prepared, accumulate=2), feed(prepared, accumulate=2)
    for _ in range(7):
        one.next()
    other.restore(one.state())
    assert [rows(one.next()) for _ in range(9)] == [rows(other.next()) for _ in range(9)]


def test_a_step_keeps_its_batches_when_the_processes_change(prepared):
    found = feed(prepared, size=2, accumulate=1)
    found.keep_together(6)
    assert found.accumulate == 3 and found.together == 6
    with pytest.raises(RecipeError, match="made of 5 batches, which 2 processes"):
        found.keep_together(5)
