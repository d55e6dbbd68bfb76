"""MultiHead.from_torch and to_torch: equal outputs; options that one side lacks are refused."""

import pytest
import torch
from torch import nn

import regard
from regard import MultiHead
from regard.attention import Cosine
from regard.errors import OptionError, ShapeError

CASES = {
    "plain": {},
    "widths": {"kdim": 5, "vdim": 7},
    "key width": {"kdim": 5},
    "no bias": {"bias": False},
    "time first": {"batch_first": False},
    "dropout": {"dropout": 0.3},
}


def layer_of(case, dtype=torch.float64):
    torch.manual_seed(11)
    layer = nn.MultiheadAttention(12, 3, **{"batch_first": True, "dtype": dtype, **CASES[case]}).eval()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.4)
    return layer


def inputs(layer):
    return (
        torch.randn(2, n, width, dtype=torch.float64)
        for n, width in ((4, 12), (5, layer.kdim), (5, layer.vdim))
    )


def run(layer, q, k, v, **options):
    if layer.batch_first:
        return layer(q, k, v, need_weights=False, **options)[0]
    return layer(*(x.transpose(0, 1) for x in (q, k, v)), need_weights=False, **options)[0].transpose(0, 1)


@pytest.mark.parametrize("case", CASES)
def test_from_torch_and_back_give_the_same_outputs(case):
    theirs = layer_of(case)
    ours = MultiHead.from_torch(theirs)
    converted_back = ours.to_torch(batch_first=theirs.batch_first)
    q, k, v = inputs(theirs)
    padding = torch.tensor([[False] * 5, [False, True] * 2 + [False]])  # key_padding_mask
    expected = run(theirs, q, k, v, key_padding_mask=padding)
    assert torch.allclose(ours(q, k, v, mask=~padding[:, None, None, :]), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(run(converted_back, q, k, v, key_padding_mask=padding), expected)
    assert (ours.training, ours.dropout, converted_back.dropout) == (False, theirs.dropout, theirs.dropout)
    if theirs.kdim == theirs.vdim == 12:
        assert torch.allclose(ours(q), run(theirs, q, q, q), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        theirs.out_proj.weight.zero_()
    assert ours(q, k, v).count_nonzero() > 0  # a copy


def test_device_dtype_and_mode_are_kept():
    theirs = nn.MultiheadAttention(8, 2, dtype=torch.bfloat16).train()
    ours = MultiHead.from_torch(theirs)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    assert ours.training
    assert ours.to_torch().training
    assert MultiHead.from_torch(nn.MultiheadAttention(8, 2, device="meta")).Wq.weight.device.type == "meta"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            nn.MultiheadAttention(8, 2, add_bias_kv=True),
            "add_bias_kv=True adds a key that belongs to no input",
        ),
        (nn.MultiheadAttention(8, 2, add_zero_attn=True), "add_zero_attn=True adds a key"),
        (nn.Linear(8, 8), "takes an nn.MultiheadAttention, got Linear"),
    ],
)
def test_layers_that_cannot_be_expressed_are_refused(layer, message):
    with pytest.raises(OptionError, match=message):
        MultiHead.from_torch(layer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_heads": 1}, r"grouped key heads \(1 for 2 heads\)"),
        ({"head_dim": 3}, "heads of width 3 and 3 in 8"),
        ({"project": False}, "leave project and out_dim out"),
        ({"out_dim": 5}, "leave project and out_dim out"),
        ({"energy": Cosine()}, "energy Cosine"),
        ({"normalize": regard.Softmax(2.0)}, "Softmax"),
        ({"mask": regard.Causal()}, "mask of its own; leave it out of the layer and give attn_mask"),
        ({"bias": regard.ALiBi(2)}, "bias of its own"),
        ({"softcap": 3.0}, "has no softcap"),
    ],
)
def test_options_that_torch_lacks_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        MultiHead(8, 2, **options).to_torch()


def test_a_layer_with_hooks_on_a_projection_is_refused():
    layer = MultiHead(8, 2)
    layer.Wo.register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(OptionError, match="no support for hooks, adapters"):
        layer.to_torch()


def test_a_sequence_of_the_wrong_width_is_named_in_the_error():
    layer = MultiHead(8, 2, memory_dim=6, value_dim=4)
    q, k = torch.randn(1, 3, 8), torch.randn(1, 5, 6)
    assert layer(q, k, torch.randn(1, 5, 4)).shape == (1, 3, 8)
    with pytest.raises(ShapeError, match="this layer's value is .*4"):
        layer(q, k)


def test_frozen_weights_stay_frozen_both_ways():
    theirs = nn.MultiheadAttention(8, 2).requires_grad_(False)
    ours = regard.MultiHead.from_torch(theirs)
    assert not any(p.requires_grad for p in ours.parameters())
    assert not any(p.requires_grad for p in ours.to_torch().parameters())
    assert all(
        p.requires_grad
        for p in regard.MultiHead.from_torch(nn.MultiheadAttention(8, 2)).to_torch().parameters()
    )
