"""Grouping of batches into steps, on any number of processes."""

import numpy as np
import pytest
import torch

from regard.data.batch_iterator import Batches
from regard.data.datasets import load_corpus
from regard.errors import RecipeError
from regard.recipe.loading import load_recipe
from regard.training.distributed import World
from regard.training.step_iterator import StepIterator
from tests.training import tiny


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        recipe = load_recipe(tiny.recipe(folder))
        return load_corpus(recipe.data, recipe.tokenizer, task="translate", seed=1).train


class SingleRank(World):
    """One rank of several without communication: sums are those of the rank."""

    def sum(self, values):
        return list(values)


def iterator(prepared, rank=0, size=1, accumulate=1, tokens=60, flops=lambda s, t: s + 10 * t):
    world = SingleRank(torch.device("cpu"), rank, size)
    return StepIterator(
        Batches(prepared, tokens=tokens, seed=1, rank=rank, world=size), world, accumulate, flops
    )


def rows(step):
    return [tuple(b.rows.tolist()) for b in step.batches]


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_take_the_same_batches_as_one(prepared, size):
    single = iterator(prepared, accumulate=6)
    ranks = [iterator(prepared, rank, size, accumulate=6 // size) for rank in range(size)]
    for _ in range(12):  # several epochs
        by_rank = [rows(f.next()) for f in ranks]
        interleaved = [batch for turn in zip(*by_rank, strict=True) for batch in turn]
        assert rows(single.next()) == interleaved
        assert {f.epochs for f in ranks} == {single.epochs}
    assert single.epochs > 3


def test_the_steps_of_an_epoch_have_every_row_at_most_once(prepared):
    steps = iterator(prepared, accumulate=4)
    size = steps.stream.per_epoch()
    rows_of_epoch = []
    for _ in range(size // 4):
        rows_of_epoch += [row for batch in steps.next().batches for row in batch.rows.tolist()]
    assert len(rows_of_epoch) == len(set(rows_of_epoch)) and steps.epochs == 1.0


def test_an_epoch_shorter_than_a_step_is_repeated(prepared):
    steps = iterator(prepared, accumulate=5, tokens=720)  # all 80 pairs fit in one batch
    assert steps.stream.per_epoch() == 1
    assert len(steps.next().batches) == 5 and steps.epochs == 5.0


def test_a_step_counts_its_tokens_and_three_forward_passes(prepared):
    step = iterator(prepared, accumulate=2).next()
    source = np.concatenate([b.source_lengths for b in step.batches])
    target = np.concatenate([b.target_lengths for b in step.batches])
    assert (step.tokens, step.source_tokens, step.sentences) == (target.sum(), source.sum(), len(source))
    assert step.flops == 3 * (source + 10 * target).sum()


def test_a_restored_iterator_continues_with_the_next_batches(prepared):
    original, restored = iterator(prepared, accumulate=2), iterator(prepared, accumulate=2)
    for _ in range(7):
        original.next()
    restored.restore(original.state())
    assert [rows(original.next()) for _ in range(9)] == [rows(restored.next()) for _ in range(9)]


def test_a_step_keeps_its_batches_when_the_processes_change(prepared):
    steps = iterator(prepared, size=2, accumulate=1)
    steps.set_batches_per_step(6)
    assert steps.accumulate == 3 and steps.batches_per_step == 6
    with pytest.raises(RecipeError, match="has 5 batches, which 2 processes"):
        steps.set_batches_per_step(5)


def test_stop_requests_are_reduced_with_the_counts(prepared):
    steps = iterator(prepared)
    step = steps.next()
    assert (step.stop_requested, step.time_is_up) == (False, False)
    step = steps.next(stop_requested=True)
    assert (step.stop_requested, step.time_is_up) == (True, False)
    step = steps.next(time_is_up=True)
    assert (step.stop_requested, step.time_is_up) == (False, True)
