"""Tests of masks.py: masks allow the pairs that Transformers allows; known masks stay objects."""

import itertools

import pytest
import torch

pytest.importorskip("transformers", minversion="5")

from transformers import DynamicCache, GPT2Config, LlamaConfig
from transformers import masking_utils as theirs

from regard import Causal, Padding, Window
from regard.attention import Dense, Documents, Prefix
from regard.attention.mask import And, Not, Or
from regard.huggingface import register
from regard.huggingface.masks import ModelMask, make_mask

register()
BLOCKS = torch.tensor(
    [[-1, -1, 0, 0, 0, -1, 1, 1, -1, -1, -1, -1], [0, 0, -1, -1, 1, 1, 1, -1, -1, -1, 2, 2]]
)
PACKED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 3]])
START = torch.tensor([3, 0])


def unknown_mask(batch, head, q, k):
    """A mask function that regard does not know."""
    return (q + k + batch) % 3 != 0


FUNCTIONS = {
    "causal": theirs.causal_mask_function,
    "bidirectional": theirs.bidirectional_mask_function,
    "sliding": theirs.sliding_window_causal_mask_function(3),
    "sliding both sides": theirs.sliding_window_bidirectional_mask_function(2),
    "sliding of nothing": theirs.sliding_window_causal_mask_function(0),
    "chunked": theirs.chunked_causal_mask_function(4, START),
    "packed": theirs.and_masks(theirs.causal_mask_function, theirs.packed_sequence_mask_function(PACKED)),
    "blocks": theirs.or_masks(theirs.causal_mask_function, theirs.blockwise_overlay(BLOCKS)),
    "sliding blocks": theirs.or_masks(
        theirs.sliding_window_causal_mask_function(3), theirs.blockwise_overlay(BLOCKS)
    ),
    "padding inside": theirs.and_masks(theirs.causal_mask_function, theirs.padding_mask_function(PACKED > 0)),
    "own": unknown_mask,
    "own and causal": theirs.and_masks(theirs.causal_mask_function, unknown_mask),
    "own or causal": theirs.or_masks(theirs.causal_mask_function, unknown_mask),
    "everything or causal": theirs.or_masks(theirs.causal_mask_function, theirs.bidirectional_mask_function),
}
ONES = torch.ones(2, 12, dtype=torch.bool)
LEFT, RIGHT, HOLES = ONES.clone(), ONES.clone(), ONES.clone()
LEFT[0, :3] = RIGHT[1, 7:] = HOLES[0, 2::3] = False
PADDINGS = {
    "none": None,
    "all real": ONES,
    "left": LEFT,
    "right": RIGHT,
    "both": LEFT & RIGHT,
    "holes": HOLES,
    "short": LEFT[:, :8],
}
LENGTHS_AND_OFFSETS = {  # Tq, Tk, position of query 0, position of key 0
    "prefill": (12, 12, 0, 0), "step": (1, 8, 7, 0), "chunk": (3, 10, 7, 0), "static prefill": (5, 12, 0, 0),
    "static step": (1, 12, 6, 0), "sliding cache": (2, 5, 7, 4),
}  # fmt: skip


@pytest.mark.parametrize("case", LENGTHS_AND_OFFSETS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_mask_allows_exactly_the_pairs_that_transformers_allows(function, case):
    Tq, Tk, q_offset, kv_offset = LENGTHS_AND_OFFSETS[case]
    for padding, as_tensor in itertools.product(PADDINGS.values(), (False, True)):
        arguments = {
            "batch_size": 2,
            "q_length": Tq,
            "kv_length": Tk,
            "kv_offset": kv_offset,
            "mask_function": FUNCTIONS[function],
            "q_offset": torch.tensor(q_offset) if as_tensor else q_offset,
            "attention_mask": padding,
        }
        expected = theirs.sdpa_mask(**arguments, allow_is_causal_skip=False)
        ours = make_mask(**arguments)
        assert torch.equal(ours.tensor(), expected), (padding, ours)


@torch.no_grad()
def test_a_mask_made_while_tracing_allows_the_same_pairs():
    """Under torch.compile no value is read and the counter of a static cache stays a tensor."""
    for function, (Tq, Tk, q_offset, kv_offset) in itertools.product(
        FUNCTIONS.values(), [(1, 12, 6, 0), (2, 5, 7, 4)]
    ):
        arguments = {
            "batch_size": 2,
            "q_length": Tq,
            "kv_length": Tk,
            "kv_offset": kv_offset,
            "mask_function": function,
        }

        def traced(offset, padding, arguments=arguments):
            return make_mask(**arguments, q_offset=offset, attention_mask=padding).tensor()

        expected = theirs.sdpa_mask(
            **arguments, q_offset=q_offset, attention_mask=LEFT, allow_is_causal_skip=False
        )
        torch._dynamo.reset()
        result = torch.compile(traced, backend="eager", fullgraph=True)(torch.tensor(q_offset), LEFT)
        assert torch.equal(result, expected)


def kinds(mask):
    """The classes of the masks that a mask is made of."""
    if isinstance(mask, And | Or):
        return kinds(mask.a) | kinds(mask.b)
    return kinds(mask.a) if isinstance(mask, Not) else set() if mask is None else {type(mask)}


def test_known_masks_stay_objects_without_a_matrix():
    rules = {
        "causal": {Causal}, "bidirectional": set(), "sliding": {Window}, "sliding both sides": {Window},
        "chunked": {Causal, Documents}, "packed": {Causal, Documents}, "blocks": {Causal, Documents},
        "sliding blocks": {Causal, Window, Documents}, "everything or causal": set(),
    }  # fmt: skip
    for name, expected in rules.items():
        assert kinds(make_mask(2, 12, 12, mask_function=FUNCTIONS[name]).mask) == expected, name
        left = make_mask(2, 12, 12, mask_function=FUNCTIONS[name], attention_mask=LEFT).mask
        assert kinds(left) == expected | {Prefix}, name
        right = make_mask(2, 12, 12, mask_function=FUNCTIONS[name], attention_mask=RIGHT).mask
        assert kinds(right) == expected | {Padding}, name


def test_padding_with_holes_is_one_dense_row_per_sequence():
    mask = make_mask(2, 12, 12, attention_mask=HOLES).mask
    assert isinstance(mask.a, Causal) and isinstance(mask.b, Dense) and mask.b.tensor.shape == (2, 1, 1, 12)


def test_causal_masks_have_an_offset_that_fused_kernels_accept():
    assert make_mask(1, 9, 9).mask.offset is None
    assert make_mask(1, 1, 9, q_offset=8).mask.allows_all(1, 9)
    static = make_mask(1, 5, 40, q_offset=torch.tensor(0))
    assert static.keys == 5 and static.mask.offset is None  # keys that are not filled yet are cut off


def test_left_padding_is_a_range_of_keys_for_kernels():
    mask = make_mask(2, 12, 12, attention_mask=LEFT).mask
    start, stop = mask.key_ranges(12, 12)
    allowed = mask.dense(12, 12)
    keys = torch.arange(12)
    assert torch.equal((keys >= start[..., None]) & (keys < stop[..., None]), allowed[:, 0])


def test_a_static_cache_that_counts_in_place_does_not_change_an_earlier_mask():
    counter = torch.tensor(4)
    with torch.no_grad():
        offset = torch.compile(lambda c: make_mask(1, 1, 9, q_offset=c).mask.offset, backend="eager")(counter)
    counter.add_(3)
    assert int(offset) == 4


def test_packed_texts_are_detected_by_positions_that_restart():
    position = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3]])
    config = LlamaConfig(attn_implementation="regard")
    mask = theirs.create_causal_mask(
        config=config,
        inputs_embeds=torch.zeros(1, 9, 4),
        attention_mask=None,
        past_key_values=None,
        position_ids=position,
    )
    assert kinds(mask.mask) == {Causal, Documents}
    assert mask.tensor()[0, 0, 4].tolist() == [False] * 3 + [True] * 2 + [False] * 4


def test_a_prepared_mask_is_returned_unchanged():
    config, cache = GPT2Config(attn_implementation="regard"), DynamicCache()
    mask = make_mask(2, 3, 3)
    again = theirs.create_causal_mask(
        config=config,
        inputs_embeds=torch.zeros(2, 3, 4),
        attention_mask=mask,
        past_key_values=cache,
        position_ids=None,
    )
    assert again is mask


def test_model_code_that_computes_with_a_mask_gets_the_right_tensor():
    mask = make_mask(2, 3, 5, q_offset=2, attention_mask=LEFT[:, :5])
    dense, scores = mask.tensor(), torch.randn(2, 4, 3, 5)
    added = scores + torch.where(dense, 0.0, torch.finfo(torch.float32).min)
    assert mask.shape == (2, 1, 3, 5) and mask.ndim == 4
    assert mask.dtype == torch.bool and mask.device.type == "cpu"
    assert torch.equal(mask[:, :, :, :2], dense[..., :2])
    assert torch.equal(~mask, ~dense) and torch.equal(mask | dense, dense)
    assert torch.equal(mask & ~dense, dense & ~dense)
    assert torch.equal(torch.where(mask, 0.0, 1.0), torch.where(dense, 0.0, 1.0))
    assert torch.equal(scores.masked_fill(~mask, 0.0), scores.masked_fill(~dense, 0.0))
    assert torch.equal(torch.cat([mask, mask], -1), torch.cat([dense, dense], -1))
    assert torch.equal(mask.to(torch.float32), dense.float())
    assert torch.equal(scores + mask, added) and torch.equal(mask + scores, added)
    moved = mask.to("meta")
    assert isinstance(moved, ModelMask) and moved.mask.b.a.length.device.type == "meta"
