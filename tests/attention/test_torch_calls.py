"""`watch` on plain SDPA, torch's layers and Hugging Face models.

Covers torch_calls.py; compiled models are in test_eager_stance.py, options in test_watch_options.py.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard import Causal, attend, watch
from regard.errors import OptionError
from tests.attention.sdpa_modules import Attention


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(5)


def plain(q, k, allowed=None, bias=None, scale=None):
    """The formula, in float64."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    return torch.softmax(scores if allowed is None else scores.masked_fill(~allowed, -torch.inf), -1)


# ------------------------------------------------------------------------------------------------- plain SDPA
@pytest.mark.parametrize(
    ("arguments", "truth"),
    [
        ({}, {}),
        ({"is_causal": True}, {"allowed": torch.ones(5, 7).tril().bool()}),
        ({"scale": 0.7}, {"scale": 0.7}),
        ({"dropout_p": 0.5}, {}),
        (
            {"attn_mask": torch.arange(35).view(5, 7) % 3 != 1},
            {"allowed": torch.arange(35).view(5, 7) % 3 != 1},
        ),
        ({"attn_mask": torch.arange(35.0).view(5, 7).sin()}, {"bias": torch.arange(35.0).view(5, 7).sin()}),
    ],
    ids=["plain", "causal", "scale", "dropout", "mask", "bias"],
)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_plain_sdpa_is_recorded_with_all_its_options(arguments, truth, key_heads):
    q, k = torch.randn(3, 4, 5, 8), torch.randn(3, key_heads, 7, 8)
    arguments = {**arguments, "enable_gqa": key_heads != 4}
    torch.manual_seed(1)
    without = F.scaled_dot_product_attention(q, k, k, **arguments)
    torch.manual_seed(1)
    with watch() as seen:
        out = F.scaled_dot_product_attention(q, k, k, **arguments)
    assert torch.equal(out, without)
    assert seen["attend.0"].weights().double() == pytest.approx(plain(q, k, **truth), abs=1e-6)


def test_a_row_that_sdpa_masks_fully_has_zero_weights():
    q, allowed = torch.randn(1, 1, 3, 4), torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    with watch() as seen:
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=allowed)
    assert torch.allclose(seen["attend.0"].weights() @ q, out, atol=1e-6)
    assert seen["attend.0"].weights(query=1).count_nonzero() == 0


def test_calls_of_any_model_are_named_by_the_module_that_makes_them():
    model, x = nn.Sequential(Attention(), nn.GELU(), Attention(is_causal=True)), torch.randn(2, 6, 8)
    without = model(x)
    with watch(model) as seen:
        out = model(x)
    assert list(seen) == ["0", "2"]
    assert torch.equal(out, without)
    assert seen["2"].weights().triu(1).count_nonzero() == 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_watch_does_not_change_gradients():
    model, x = Attention(), torch.randn(2, 6, 8)
    model(x).sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with watch(model) as seen:
        model(x).sum().backward()
    assert len(seen) == 1
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))


def test_an_sdpa_call_inside_attend_is_recorded_once():
    q = torch.randn(1, 2, 6, 8)
    with watch() as seen, watch() as other:
        attend(q, q, q, kernel="sdpa")
        attend(q, q, q, mask=Causal(), kernel="sdpa")
        F.scaled_dot_product_attention(q, q, q)
    assert list(seen) == list(other) == ["attend.0", "attend.1", "attend.2"]


def test_an_exported_model_is_seen():
    q = torch.randn(1, 2, 6, 8)

    class Model(nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    model = torch.export.export(Model(), (q,)).module()
    with watch(model) as seen:
        model(q)
    assert seen["attend.0"].weights().double() == pytest.approx(
        plain(q, q, torch.ones(6, 6).tril().bool()), abs=1e-6
    )


def test_calls_under_autocast_are_recorded_in_its_dtype():
    model, x = Attention(), torch.randn(2, 6, 8)
    with watch(nn.Sequential(model)) as seen, torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
    assert seen["0"].weights().dtype == torch.bfloat16
    assert seen["0"].column_sums().dtype == torch.float32
    assert seen["0"].column_sums().sum(-1) == pytest.approx(torch.full((2, 2), 6.0), abs=1e-5)


# --------------------------------------------------------------------------------------------- torch's layers
def mha_cases():
    bool_mask, float_mask = torch.arange(30).view(5, 6) % 4 == 2, torch.arange(30.0).view(5, 6).cos()
    per_head = (torch.arange(3 * 2 * 30).view(6, 5, 6) % 5) == 1
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [False] + [True] * 5])
    return {
        "plain": ({}, {}),
        "widths": ({"kdim": 5, "vdim": 7}, {}),
        "no bias": ({"bias": False}, {}),
        "time first": ({"batch_first": False}, {}),
        "boolean mask": ({}, {"attn_mask": bool_mask}),
        "mask per head": ({}, {"attn_mask": per_head}),
        "added mask": ({}, {"attn_mask": float_mask}),
        "padding": ({}, {"key_padding_mask": padding}),
        "added padding": ({}, {"key_padding_mask": padding.float() * -3}),
        "both": ({}, {"attn_mask": float_mask, "key_padding_mask": padding}),
        "bias_k": ({"add_bias_kv": True}, {"attn_mask": bool_mask, "key_padding_mask": padding}),
        "zero key": ({"add_zero_attn": True, "add_bias_kv": True}, {"attn_mask": float_mask}),
    }


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", mha_cases())
def test_recorded_weights_of_torchs_multihead_attention_equal_those_it_returns(case, training):
    options, arguments = mha_cases()[case]
    layer = nn.MultiheadAttention(8, 2, **{"batch_first": True, **options}).train(training).double()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5)
    q, k, v = (torch.randn(3, n, width).double() for n, width in ((5, 8), (6, layer.kdim), (6, layer.vdim)))
    arguments = {name: x.double() if x.is_floating_point() else x for name, x in arguments.items()}
    if not layer.batch_first:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    truth, weights = layer(q, k, v, average_attn_weights=False, **arguments)
    with watch(nn.ModuleDict({"a": layer})) as seen:
        out, _ = layer(q, k, v, need_weights=False, **arguments)
        layer(q, k, v, need_weights=True, **arguments)
    assert torch.allclose(out, truth)
    assert all(torch.allclose(call.weights(), weights) for call in seen.calls("a"))


def test_unbatched_and_causal_multihead_attention_is_seen():
    layer, x = nn.MultiheadAttention(8, 2), torch.randn(5, 8)
    hidden = nn.Transformer.generate_square_subsequent_mask(5)
    _, weights = layer(x, x, x, attn_mask=hidden, average_attn_weights=False)
    with watch(layer) as seen:
        layer(x, x, x, attn_mask=hidden, is_causal=True, need_weights=False)
        layer(x, x.clone(), x)
    assert list(seen) == ["self", "cross"]
    assert torch.allclose(seen["self"].weights(), weights, atol=1e-6)


@pytest.mark.parametrize("mode", ["train", "eval", "inference"])
def test_transformers_of_torch_are_seen_in_every_mode(mode):
    model = nn.Transformer(8, 2, 2, 2, 16, batch_first=True, dropout=0.0).train(mode == "train")
    source, target = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    masks = dict(
        tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True
    )
    with torch.inference_mode(mode == "inference"):
        without = model(source, target, **masks)
        with watch(model) as seen:
            out = model(source, target, **masks)
    assert torch.allclose(out, without, atol=1e-5)
    assert list(seen) == [
        "encoder.layers.0.self_attn", "encoder.layers.1.self_attn",
        "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn",
        "decoder.layers.1.self_attn", "decoder.layers.1.multihead_attn",
    ]  # fmt: skip
    assert seen["encoder.layers.1.self_attn"].weights()[1, :, :, 3:].count_nonzero() == 0
    assert seen["decoder.layers.0.self_attn"].weights().triu(1).count_nonzero() == 0
    assert seen["decoder.layers.1.multihead_attn"].shape == (2, 2, 4, 5)


@pytest.mark.parametrize("named", [True, False])
@torch.no_grad()
def test_nested_tensors_in_torchs_layers_are_refused_in_a_sentence(named):
    """They run in torch's fused fast path only, which `watch` replaces by code that it can see."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])
    layer(x)
    message = "a nested tensor .* watch .*to_padded_tensor.*src_key_padding_mask"
    with pytest.raises(OptionError, match=message) as caught, watch(layer if named else None):
        layer(x)
    assert "\n" not in str(caught.value)
    padded, lengths = x.to_padded_tensor(0.0), torch.tensor([3, 5])
    with watch(layer) as seen:
        out = layer(padded, src_key_padding_mask=torch.arange(5) >= lengths[:, None])
    assert torch.allclose(out[0, :3], layer(x)[0], atol=1e-6) and list(seen) == ["self_attn"]


# ----------------------------------------------------------------------------------------------- Hugging Face
def llama(attention="sdpa"):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config._attn_implementation = attention
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_recorded_weights_of_a_hugging_face_model_equal_its_eager_attentions(padded):
    ids = torch.randint(50, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0 if padded else 1
    truth = llama("eager")(ids, attention_mask=mask, output_attentions=True).attentions
    model = llama()
    without = model(ids, attention_mask=mask).logits
    with watch(model) as seen:
        out = model(ids, attention_mask=mask).logits
    assert torch.equal(out, without)
    assert list(seen) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    rows = mask.bool()[:, None, :, None]  # the two differ in rows of padding tokens, which do not matter
    for name, weights in zip(seen, truth, strict=True):
        assert torch.allclose(seen[name].weights() * rows, weights * rows, atol=1e-6)


@torch.no_grad()
def test_column_sums_accumulated_while_generating_equal_those_of_the_full_matrix():
    """As cache eviction (heavy hitters) needs it: one row per step, no T × T matrix, nothing kept."""
    model, ids = llama(), torch.randint(50, (2, 6))
    sums, steps = {}, []

    def add(name, recorded):
        result = recorded.column_sums()
        steps.append(recorded.shape[-2:])
        if name in sums:
            result[..., : sums[name].shape[-1]] += sums[name]
        sums[name] = result

    with watch(model, on_call=add) as seen:
        complete = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)
    assert steps[0] == (6, 6)
    assert steps[-1] == (1, 10)
    assert len(seen) == 0
    with watch(model) as full:
        model(complete[:, :-1])
    for name in full:
        assert torch.allclose(sums[name], full[name].weights().sum(-2), atol=1e-5)
    with pytest.raises(OptionError, match="on_call was given, so none of the 10 calls was kept"):
        seen["model.layers.0.self_attn"]
