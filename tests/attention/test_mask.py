"""Masks: which pairs they allow, how they combine, their blocks and key ranges, their devices.

Covers mask.py, position_masks.py, grid.py and devices.py.
"""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import randoms

import regard
from regard import Causal, Padding, Window
from regard.attention import Dense, Diagonal, Dilated, Documents, Mask, Prefix, RelativeBuckets
from regard.attention.bias import DenseBias, PositionBias
from regard.attention.kernel_inputs import rows_and_keys_seen
from regard.attention.mask import EMPTY, FULL, PARTIAL
from regard.conformance.draw_options import draw_mask
from regard.errors import DeviceError, OptionError

EXACT_BLOCKS = (Causal, Window, Diagonal, Dilated, Padding, Prefix, Dense)


def as_strings(mask, Tq, Tk):
    """The mask as strings, one per query: x is allowed."""
    return ["".join("x" if a else "." for a in row) for row in mask.dense(Tq, Tk).reshape(-1, Tk).tolist()]


def test_masks_allow_the_expected_pairs():
    assert as_strings(Causal(), 3, 3) == ["x..", "xx.", "xxx"]
    assert as_strings(Causal(), 2, 4) == ["xxx.", "xxxx"]
    assert as_strings(Causal(offset=0), 2, 4) == ["x...", "xx.."]
    assert as_strings(Window(1, 1), 4, 4) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert as_strings(Window(None, 0), 3, 3) == as_strings(Causal(), 3, 3)
    assert as_strings(Window.centered(2), 4, 4) == as_strings(Window(1, 1), 4, 4)
    assert as_strings(Window.centered(3), 4, 4) == as_strings(Window(1, 1), 4, 4)  # distance at most 1.5
    assert as_strings(~Diagonal(), 3, 3) == [".xx", "x.x", "xx."]
    assert as_strings(Dilated(2), 3, 5) == ["x.x.x", ".x.x.", "x.x.x"]
    assert as_strings(Prefix(2), 2, 4) == ["xx..", "xx.."]
    assert as_strings(Causal() | Prefix(2), 3, 3) == ["xx.", "xx.", "xxx"]
    assert as_strings(Documents.of_lengths([2, 1]), 3, 3) == ["xx.", "xx.", "..x"]
    assert as_strings(Dilated(2) & Causal(), 4, 4) == ["x...", ".x..", "x.x.", ".x.x"]


def test_padding_is_per_sequence():
    assert Padding([1, 3]).dense(2, 3).tolist() == [[[[True, False, False]] * 2], [[[True] * 3] * 2]]


def test_an_offset_may_differ_between_sequences():
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
def test_block_bounds_agree_with_the_dense_mask(rng, B, Tq, Tk, bq, bk):
    mask = draw_mask(rng, (B,), 2, Tq, Tk)
    dense, blocks = mask.dense(Tq, Tk), mask.blocks(Tq, Tk, (bq, bk))
    dense = dense.expand(*torch.broadcast_shapes(dense.shape[:-2], blocks.shape[:-2]), Tq, Tk)
    blocks = blocks.expand(*dense.shape[:-2], *blocks.shape[-2:])
    for i in range(blocks.shape[-2]):
        for j in range(blocks.shape[-1]):
            pairs = dense[..., i * bq : (i + 1) * bq, j * bk : (j + 1) * bk].flatten(-2)
            kind = blocks[..., i, j]
            assert pairs[kind == FULL].all()
            assert not pairs[kind == EMPTY].any()
            if isinstance(mask, EXACT_BLOCKS):  # combined masks may return PARTIAL for unknown
                truth = torch.where(pairs.all(-1), FULL, torch.where(pairs.any(-1), PARTIAL, EMPTY))
                assert torch.equal(kind.long(), truth)


@settings(max_examples=150)
@given(rng=randoms(use_true_random=False), B=st.integers(1, 3), Tq=st.integers(1, 40), Tk=st.integers(1, 40))
def test_key_ranges_equal_the_dense_mask(rng, B, Tq, Tk):
    mask = draw_mask(rng, (B,), 2, Tq, Tk)
    ranges = mask.key_ranges(Tq, Tk)
    assume(ranges is not None)
    start, stop = (x.reshape(-1, 1, Tq, 1) for x in ranges)
    j = torch.arange(Tk)
    assert torch.equal(
        ((j >= start) & (j < stop)).expand(B, 2, Tq, Tk), mask.dense(Tq, Tk).expand(B, 2, Tq, Tk)
    )


@settings(max_examples=100)
@given(rng=randoms(use_true_random=False), B=st.integers(1, 3), Tq=st.integers(1, 40), Tk=st.integers(1, 40))
def test_rows_and_keys_seen_agree_with_the_dense_mask(rng, B, Tq, Tk):
    mask = draw_mask(rng, (B,), 2, Tq, Tk)
    rows, keys = rows_and_keys_seen(mask, Tq, Tk, "cpu")
    dense = mask.dense(Tq, Tk).expand(B, 2, Tq, Tk)
    assert torch.equal(rows.expand(B, 2, Tq), dense.any(-1))
    assert torch.equal(keys.expand(B, 2, Tk), dense.any(-2))
    assert mask.allows_all(Tq, Tk) <= bool(dense.all())


def test_causal_masks_allow_all_keys_in_a_decoding_step():
    assert Causal().allows_all(1, 9)
    assert (Causal() & Window(8)).allows_all(1, 9)
    assert not (Causal() & Window(7)).allows_all(1, 9)
    assert not Causal(offset=3).allows_all(1, 9)
    assert Causal(offset=8).allows_all(1, 9)


def test_masks_list_the_tensors_they_read():
    assert (Causal() & ~Window(3)).tensors() == ()
    lengths = torch.tensor([1])
    assert (Causal() | Padding(lengths)).tensors()[0] is lengths


def test_common_masks_have_key_ranges():
    for mask in (
        Causal(), Window(3), Window.centered(8), Padding([2, 5]), Documents.of_lengths([3, 5]), Diagonal(),
        Causal() & Window(3), Causal() | Prefix(2), Causal() & Padding([2, 5]),
        Documents.of_lengths([3, 5]) & Causal(),
    ):  # fmt: skip
        assert mask.key_ranges(8, 8) is not None


def test_blocks_of_a_long_window_need_no_matrix():
    blocks = Window(100, 100).blocks(1_000_000, 1_000_000, 4096)
    assert blocks.shape == (245, 245)
    assert int((blocks != EMPTY).sum()) == 3 * 245 - 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(-1), "left must be at least 0, got -1"),
        (lambda: Window(1, right=1.5), "right must be an integer"),
        (lambda: Window.centered(-2), "at least 0"),
        (lambda: Dilated(0), "step must be at least 1"),
        (lambda: Padding(torch.tensor([1.5])), "integers"),
        (lambda: Prefix("x"), "integer"),
        (lambda: Dense(torch.ones(2, 2)), "mask.bool()"),
        (lambda: Dense(torch.ones(2, 2).long()), "boolean"),
        (lambda: Causal(offset=1.5), "offset is an integer"),
        (lambda: Documents(torch.rand(4)), "integers"),
        (lambda: Causal() & 3, "combines with masks"),
        (lambda: Causal().with_offset(1.5), "Causal's offset is an integer"),
        (lambda: regard.ALiBi(2).with_offset(torch.tensor([0.5])), "ALiBi's offset is an integer"),
    ],
)
def test_bad_masks_are_refused_with_the_reason(make, message):
    with pytest.raises(regard.RegardError, match=message):
        make()


class NestedTensors(Mask):
    """A user-defined mask with tensors inside a list, a dict and another mask."""

    def __init__(self, tensor):
        self.parts, self.by_name, self.inner = [tensor, 3], {"a": (tensor, "b")}, Padding(tensor)

    def allowed(self, grid):
        return grid.k < grid.per_sequence(self.parts[0])


MOVED = {
    "padding": Padding([1, 2]),
    "prefix": Prefix([1, 2]),
    "documents": Documents(torch.tensor([0, 1]), torch.tensor([0, 1, 1])),
    "dense": Dense(torch.ones(2, 2, dtype=torch.bool)),
    "offsets": Window(2, 1, offset=torch.tensor([0, 1])),
    "joined": Causal() & ~Padding([1, 2]) | Dilated(2, offset=torch.tensor([1, 2])),
    "user-defined": NestedTensors(torch.tensor([1, 2])),
    "ALiBi": regard.ALiBi(2, offset=torch.tensor([0, 1])),
    "dense bias": DenseBias(torch.ones(2, 2, dtype=torch.float16)),
    "bias with offset": regard.ALiBi(2).with_offset(torch.tensor([0, 1])),
}


def tensors_in(x):
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, list | tuple):
        items = x
    else:
        items = (x if isinstance(x, dict) else getattr(x, "__dict__", {})).values()
    return [tensor for item in items for tensor in tensors_in(item)]


@pytest.mark.parametrize("name", MOVED)
def test_to_moves_every_tensor_of_an_option_and_keeps_its_type(name):
    option = MOVED[name]
    moved = option.to("meta")
    assert type(moved) is type(option) and moved is not option
    assert [t.device.type for t in tensors_in(moved)] == ["meta"] * len(tensors_in(option))
    assert [(t.dtype, t.shape) for t in tensors_in(moved)] == [(t.dtype, t.shape) for t in tensors_in(option)]
    assert all(t.device.type == "cpu" for t in tensors_in(option))
    assert moved.to("meta") is moved
    assert option.to("cpu") is option and option.to(torch.device("cpu")) is option


def test_to_moves_a_module_in_place_as_torch_does():
    bias, around = RelativeBuckets(2), PositionBias(torch.nn.Linear(1, 1))
    assert bias.to("meta") is bias and bias.weight.device.type == "meta"
    assert around.to("meta").function.weight.device.type == "meta"
    assert regard.ScaledDot().to("meta").form == "dot" and Causal().to("meta").offset is None


def test_the_error_for_an_option_on_another_device_says_how_to_move_it():
    q = torch.randn(2, 1, 3, 4)
    for name, option in {"mask": Padding([1, 2]), "bias": torch.zeros(3, 3)}.items():
        with pytest.raises(
            DeviceError, match=rf"is on meta and the query on cpu; move it with {name}.to\('cpu'\)"
        ):
            regard.attend(q, q, q, **{name: option.to("meta")})
    with pytest.raises(OptionError, match="takes a device such as 'cpu' or 'cuda', got torch.float16"):
        Padding([1]).to(torch.float16)


@settings(max_examples=100)
@given(
    rng=randoms(use_true_random=False),
    Tq=st.integers(1, 20),
    Tk=st.integers(1, 20),
    start=st.integers(-3, 20),
)
def test_an_offset_for_all_sequences_equals_one_per_sequence(rng, Tq, Tk, start):
    mask = draw_mask(rng, (2,), 2, Tq, Tk)
    mask.with_offset(start).check(Tq, Tk, 2, (2,), torch.device("cpu"))
    for_all, per_sequence = mask.with_offset(start), mask.with_offset(torch.tensor([start, start]))
    assert torch.equal(
        for_all.dense(Tq, Tk).expand(2, 2, Tq, Tk), per_sequence.dense(Tq, Tk).expand(2, 2, Tq, Tk)
    )
    assert torch.equal(mask.with_offset(Tk - Tq).dense(Tq, Tk), mask.dense(Tq, Tk))


def test_the_complement_of_a_prefix_is_one_range_of_keys():
    for mask in (~Prefix(torch.tensor([0, 3, 7])), ~Causal(), ~Prefix(2)):
        start, stop = mask.key_ranges(5, 7)
        at = torch.arange(7)
        ranges = (at >= start[..., None]) & (at < stop[..., None])
        assert torch.equal(ranges.expand(*ranges.shape[:-2], 5, 7), mask.dense(5, 7).reshape(ranges.shape))
    assert (~Window(2)).key_ranges(5, 7) is None
