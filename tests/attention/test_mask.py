"""Masks: their rules, their algebra, and what they say of blocks and runs without building T×T."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import randoms

import regard
from regard import Causal, Dense, Diagonal, Dilated, Documents, Padding, Prefix, Window
from regard.attention.gate import rows_and_keys_seen
from regard.attention.mask import EMPTY, FULL, PARTIAL
from regard.conformance.cases import draw_mask

EXACT = (Causal, Window, Diagonal, Dilated, Padding, Prefix, Dense)


def shown(mask, Tq, Tk):
    return ["".join("x" if a else "." for a in row) for row in mask.dense(Tq, Tk).reshape(-1, Tk).tolist()]


def test_the_rules_as_pictures():
    assert shown(Causal(), 3, 3) == ["x..", "xx.", "xxx"]
    assert shown(Causal(), 2, 4) == ["xxx.", "xxxx"]
    assert shown(Causal(offset=0), 2, 4) == ["x...", "xx.."]
    assert shown(Window(1, 1), 4, 4) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert shown(Window(None, 0), 3, 3) == shown(Causal(), 3, 3)
    assert shown(Window.centered(2), 4, 4) == shown(Window(1, 1), 4, 4)
    assert shown(Window.centered(3), 4, 4) == shown(Window(1, 1), 4, 4)  # distance at most 1.5
    assert shown(~Diagonal(), 3, 3) == [".xx", "x.x", "xx."]
    assert shown(Dilated(2), 3, 5) == ["x.x.x", ".x.x.", "x.x.x"]
    assert shown(Prefix(2), 2, 4) == ["xx..", "xx.."]
    assert shown(Causal() | Prefix(2), 3, 3) == ["xx.", "xx.", "xxx"]
    assert shown(Documents.of_lengths([2, 1]), 3, 3) == ["xx.", "xx.", "..x"]
    assert shown(Dilated(2) & Causal(), 4, 4) == ["x...", ".x..", "x.x.", ".x.x"]


def test_padding_is_per_sequence():
    assert Padding([1, 3]).dense(2, 3).tolist() == [[[[True, False, False]] * 2], [[[True] * 3] * 2]]


def test_an_offset_may_differ_by_sequence():
    dense = Causal(offset=torch.tensor([0, 2])).dense(1, 4)
    assert dense[:, 0, 0].tolist() == [[True, False, False, False], [True, True, True, False]]


@settings(max_examples=150)
@given(
    rng=randoms(use_true_random=False),
    B=st.integers(1, 3),
    Tq=st.integers(1, 40),
    Tk=st.integers(1, 40),
    bq=st.integers(1, 17),
    bk=st.integers(1, 17),
)
def test_blocks_never_claim_what_is_not_so(rng, B, Tq, Tk, bq, bk):
    mask = draw_mask(rng, (B,), 2, Tq, Tk)
    dense, blocks = mask.dense(Tq, Tk), mask.blocks(Tq, Tk, (bq, bk))
    dense = dense.expand(*torch.broadcast_shapes(dense.shape[:-2], blocks.shape[:-2]), Tq, Tk)
    blocks = blocks.expand(*dense.shape[:-2], *blocks.shape[-2:])
    for i in range(blocks.shape[-2]):
        for j in range(blocks.shape[-1]):
            part = dense[..., i * bq : (i + 1) * bq, j * bk : (j + 1) * bk].flatten(-2)
            said = blocks[..., i, j]
            assert part[said == FULL].all()
            assert not part[said == EMPTY].any()
            if isinstance(mask, EXACT):  # the plain masks know, the joined ones may be unsure
                truth = torch.where(part.all(-1), FULL, torch.where(part.any(-1), PARTIAL, EMPTY))
                assert torch.equal(said.long(), truth)


@settings(max_examples=150)
@given(rng=randoms(use_true_random=False), B=st.integers(1, 3), Tq=st.integers(1, 40), Tk=st.integers(1, 40))
def test_runs_are_the_mask(rng, B, Tq, Tk):
    mask = draw_mask(rng, (B,), 2, Tq, Tk)
    runs = mask.key_ranges(Tq, Tk)
    if runs is None:
        return
    start, stop = (x.reshape(-1, 1, Tq, 1) for x in runs)
    j = torch.arange(Tk)
    assert torch.equal(((j >= start) & (j < stop)).expand(B, 2, Tq, Tk), mask.dense(Tq, Tk).expand(B, 2, Tq, Tk))


@settings(max_examples=100)
@given(rng=randoms(use_true_random=False), B=st.integers(1, 3), Tq=st.integers(1, 40), Tk=st.integers(1, 40))
def test_which_rows_see_and_which_keys_are_seen(rng, B, Tq, Tk):
    mask = draw_mask(rng, (B,), 2, Tq, Tk)
    rows, keys = rows_and_keys_seen(mask, Tq, Tk, "cpu")
    dense = mask.dense(Tq, Tk).expand(B, 2, Tq, Tk)
    assert torch.equal(rows.expand(B, 2, Tq), dense.any(-1))
    assert torch.equal(keys.expand(B, 2, Tk), dense.any(-2))
    assert mask.allows_all(Tq, Tk) <= bool(dense.all())


def test_a_step_of_decoding_needs_no_mask():
    assert Causal().allows_all(1, 9)
    assert (Causal() & Window(8)).allows_all(1, 9)
    assert not (Causal() & Window(7)).allows_all(1, 9)
    assert not Causal(offset=3).allows_all(1, 9)
    assert Causal(offset=8).allows_all(1, 9)


def test_masks_say_which_tensors_they_read():
    assert (Causal() & ~Window(3)).tensors() == ()
    lengths = torch.tensor([1])
    assert (Causal() | Padding(lengths)).tensors()[0] is lengths


def test_the_masks_of_the_lectures_are_runs():
    for mask in (
        Causal(), Window(3), Window.centered(8), Padding([2, 5]), Documents.of_lengths([3, 5]), Causal() & Window(3),
        Causal() | Prefix(2), Causal() & Padding([2, 5]), Documents.of_lengths([3, 5]) & Causal(), Diagonal(),
    ):  # fmt: skip
        assert mask.key_ranges(8, 8) is not None


def test_blocks_of_a_long_window_need_no_matrix():
    blocks = Window(100, 100).blocks(1_000_000, 1_000_000, 4096)
    assert blocks.shape == (245, 245)
    assert int((blocks != EMPTY).sum()) == 3 * 245 - 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Window(-1), "left must be at least 0, got -1"),
        (lambda: Window(1, right=1.5), "right must be a whole number"),
        (lambda: Window.centered(-2), "at least 0"),
        (lambda: Dilated(0), "step must be at least 1"),
        (lambda: Padding(torch.tensor([1.5])), "whole numbers"),
        (lambda: Prefix("x"), "whole number"),
        (lambda: Dense(torch.ones(2, 2)), "mask.bool()"),
        (lambda: Dense(torch.ones(2, 2).long()), "boolean"),
        (lambda: Causal(offset=1.5), "offset is a whole number"),
        (lambda: Documents(torch.rand(4)), "whole numbers"),
        (lambda: Causal() & 3, "combines with masks"),
    ],
)
def test_bad_masks_are_refused_with_the_reason(make, says):
    with pytest.raises(regard.RegardError, match=says):
        make()


def test_what_is_not_a_prefix_is_one_range_of_keys():
    for mask in (~Prefix(torch.tensor([0, 3, 7])), ~Causal(), ~Prefix(2)):
        start, stop = mask.key_ranges(5, 7)
        at = torch.arange(7)
        ranges = (at >= start[..., None]) & (at < stop[..., None])
        assert torch.equal(ranges.expand(*ranges.shape[:-2], 5, 7), mask.dense(5, 7).reshape(ranges.shape))
    assert (~Window(2)).key_ranges(5, 7) is None
