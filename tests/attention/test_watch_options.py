"""`watch` with `only` and `on_call`, and errors that say what it cannot record.

Covers watching.py, with test_watching.py.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard import Causal, attend, watch
from regard.attention import watching
from regard.errors import OptionError
from tests.attention.sdpa_modules import Attention, HandWrittenAttention, UserAttention


# ------------------------------------------------------------------------------------------- only and on_call
def test_only_some_layers_are_kept():
    model, x = nn.Transformer(8, 2, 2, 2, 16, batch_first=True), torch.randn(2, 5, 8)
    with watch(model, only="decoder.*.multihead_attn") as seen:
        model(x, x)
    assert list(seen) == ["decoder.layers.0.multihead_attn", "decoder.layers.1.multihead_attn"]
    with watch(model, only=["encoder.*", "*.1.self_attn"]) as seen:
        model(x, x)
    assert list(seen) == [
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
        "decoder.layers.1.self_attn",
    ]
    with pytest.raises(OptionError, match="left out decoder.layers.0.self_attn"):
        seen["decoder.layers.0.self_attn"]


def test_kinds_are_part_of_the_names_that_only_matches():
    model, x = nn.ModuleDict({"a": regard.MultiHead(8, 2)}), torch.randn(1, 3, 8)
    with watch(model, only="*.cross") as seen:
        model["a"](x)
        model["a"](x, torch.randn(1, 4, 8))
    assert list(seen) == ["a.cross"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"only": "decoder.*"}, r"only='decoder.\*' matches no module of this model; its modules are 0, 1"),
        ({"only": ["0", "1.mlp"]}, "only='1.mlp' matches no module"),
        ({"only": 3}, "only must be a name, a glob"),
        ({"only": []}, "only must be a name, a glob"),
        ({"on_call": "print"}, "on_call must be a function"),
    ],
)
def test_patterns_that_cannot_match_are_refused_at_once(patterns, message):
    with (
        pytest.raises(OptionError, match=message),
        watch(nn.Sequential(Attention(), Attention()), **patterns),
    ):
        pass


def test_the_error_says_if_only_matched_no_call():
    model = nn.Sequential(Attention())
    with watch(model, only="0.cross") as seen:
        model(torch.randn(1, 3, 8))
    with pytest.raises(OptionError, match=r"only=\['0.cross'\] matches none of the calls that ran, 0"):
        seen["0.cross"]


def test_on_call_gets_the_original_tensors_and_its_own_attention_is_not_recorded():
    q, calls = torch.randn(1, 2, 4, 8), []

    def on_call(name, recorded):
        calls.append((name, recorded.call.query.data_ptr(), recorded.weights()))
        F.scaled_dot_product_attention(q, q, q)

    with watch(on_call=on_call):
        F.scaled_dot_product_attention(q, q, q)
        attend(q, q, q, mask=Causal())
    assert [(name, pointer) for name, pointer, _ in calls] == [
        ("attend.0", q.data_ptr()),
        ("attend.1", q.data_ptr()),
    ]
    assert torch.allclose(calls[1][2], regard.weights(q, q, mask=Causal()), atol=1e-6)


def test_masks_shared_by_layers_are_copied_once_and_again_after_a_change():
    q, allowed = torch.randn(1, 1, 4, 8), torch.ones(4, 4, dtype=torch.bool)
    with watch() as seen:
        F.scaled_dot_product_attention(q, q, q, attn_mask=allowed)
        F.scaled_dot_product_attention(q, q, q, attn_mask=allowed)
        allowed[:, 1] = False
        F.scaled_dot_product_attention(q, q, q, attn_mask=allowed)
    masks = [seen[f"attend.{i}"].call.mask.tensor for i in range(3)]
    assert masks[0] is masks[1]
    assert masks[0].all()
    assert seen["attend.2"].weights()[..., 1].count_nonzero() == 0


# ------------------------------------------------------------------------------------ what cannot be recorded
class Flex(nn.Module):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(x, x, x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            HandWrittenAttention(),
            r"0 computes softmax of a \(1, 2, 4, 4\) tensor itself.*; call F\..* or regard.attend there",
        ),
        (
            Flex(),
            "flex_attention was called, which watch does not see; "
            "use F.scaled_dot_product_attention or regard.attend",
        ),
        (nn.Linear(16, 16), "no attention ran; watch sees regard.attend"),
    ],
)
def test_the_error_names_attention_that_cannot_be_recorded_and_the_fix(model, message):
    model = nn.Sequential(model)
    with watch(model) as seen:
        model(torch.randn(1, 2, 4, 16))
    assert len(seen) == 0
    with pytest.raises(OptionError, match=message):
        seen["0"]


@pytest.mark.filterwarnings("ignore")
def test_the_error_names_scripted_models_and_models_that_did_not_run():
    scripted = torch.jit.trace(Attention(), torch.randn(1, 3, 8))
    with watch(scripted) as seen:
        scripted(torch.randn(1, 3, 8))
    with pytest.raises(OptionError, match="is a torch.jit module"):
        seen["0"]
    with watch(Attention()) as seen:
        pass
    with pytest.raises(OptionError, match="no model ran inside watch"):
        seen["0"]


def test_calls_under_torch_func_run_and_are_listed_as_missed():
    model = nn.Sequential(Attention())
    with watch(model) as seen:
        torch.func.vmap(model)(torch.randn(2, 1, 3, 8))
    assert seen.missed["0"].startswith("this call cannot be recorded (torch.func transforms this call")
    assert "not seen, this call cannot be recorded" in repr(seen)


def test_calls_with_nested_tensors_run_and_are_listed_as_missed():
    x = torch.nested.nested_tensor([torch.randn(2, 3, 8), torch.randn(2, 4, 8)])
    with torch.no_grad(), watch() as seen:
        F.scaled_dot_product_attention(x, x, x)
    assert "must be a plain tensor" in seen.missed["attend.0"]


def test_torch_functions_are_intercepted_only_if_a_model_may_call_torchs_attention():
    from torch.overrides import _get_current_function_mode

    attention = regard.MultiHead(8, 2)
    for model, intercepted in (
        (attention, False),
        (nn.Sequential(attention, nn.Linear(8, 8)), False),
        (nn.Sequential(attention, UserAttention()), True),
        (nn.MultiheadAttention(8, 2), True),
        (nn.TransformerEncoderLayer(8, 2), True),
        (None, True),
    ):
        with regard.watch(model):
            assert (_get_current_function_mode() is not None) == intercepted, model


def test_attention_of_user_modules_and_hooks_is_recorded():
    x = torch.randn(2, 5, 8)
    net = nn.Sequential(regard.MultiHead(8, 2), UserAttention())
    with regard.watch(net) as seen:
        net(x)
    assert list(seen) == ["0.self", "1"]
    layer = regard.MultiHead(8, 2)
    layer.register_forward_hook(lambda module, args, out: F.scaled_dot_product_attention(out, out, out))
    with regard.watch(layer) as seen:
        layer(x)
    assert len(seen) == 2


def test_modules_that_change_inside_watch_are_listed_as_missed():
    net, x = nn.Sequential(regard.MultiHead(8, 2)), torch.randn(2, 5, 8)
    with regard.watch(net) as seen:
        net.append(UserAttention())
        net(x)
    assert "changed inside watch" in seen.missed["the model"]


def test_watches_of_two_generators_may_end_in_any_order():
    def stream(layer):
        with regard.watch(layer) as seen:
            for _ in range(3):
                layer(torch.randn(1, 5, 8))
                yield seen

    first, second = stream(regard.MultiHead(8, 2)), stream(regard.MultiHead(8, 2))
    seen_first, seen_second = next(first), next(second)
    first.close()
    next(second), next(second)
    assert len(seen_second.calls("self")) == 3
    before = sum(len(seen_first.calls(name)) for name in seen_first)
    attend(torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8))
    assert sum(len(seen_first.calls(name)) for name in seen_first) == before
    second.close()
    assert not watching.is_watching()


def test_gradient_checkpointing_does_not_record_a_call_twice():
    layer, x = regard.MultiHead(8, 2), torch.randn(1, 5, 8, requires_grad=True)
    with regard.watch(layer) as seen:
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert len(seen.calls("self")) == 1


def test_only_matches_the_path_of_a_layer_without_self_or_cross():
    net = nn.Sequential(regard.MultiHead(8, 2), regard.MultiHead(8, 2))
    with regard.watch(net, only="1") as seen:
        net(torch.randn(1, 5, 8))
    assert list(seen) == ["1.self"]
    assert dict(seen.items()).keys() == {"1.self"} and seen.get("0.self") is None


def test_a_call_given_to_on_call_expires_when_it_returns():
    recorded_calls = []
    layer = regard.MultiHead(8, 2)
    with regard.watch(layer, on_call=lambda name, recorded: recorded_calls.append(recorded)):
        layer(torch.randn(1, 5, 8))
    with pytest.raises(OptionError, match="until on_call returns"):
        recorded_calls[0].weights()
    assert "no longer kept" in repr(recorded_calls[0])


def test_the_error_explains_hand_written_attention_beside_recorded_attention():
    net = nn.Sequential(UserAttention(), HandWrittenAttention())
    with regard.watch(net) as seen:
        net(torch.randn(2, 5, 8))
    with pytest.raises(OptionError, match="'1' was seen: 1 computes softmax of .* written out"):
        seen["1"]


def test_printing_what_was_seen_says_why_it_is_empty():
    net = nn.Sequential(HandWrittenAttention())
    with regard.watch(net) as seen:
        net(torch.randn(2, 5, 8))
    assert re.fullmatch(r"nothing seen: 0 computes softmax of a \(2, .* written out; call F\..*", repr(seen))
    assert seen.missed == {"0": repr(seen).removeprefix("nothing seen: ")}
    with regard.watch(net) as seen:
        pass
    assert "nothing seen: no model ran" in repr(seen) and seen.missed == {}
    layer = regard.MultiHead(8, 2)
    with regard.watch(layer, on_call=lambda name, recorded: None) as seen:
        layer(torch.randn(1, 5, 8))
    assert repr(seen) == "nothing seen: on_call was given, so none of the 1 calls was kept"
    assert seen.missed == {}


@pytest.mark.parametrize("name", ["Llama", "Bloom"])
def test_the_advice_for_a_hugging_face_model_works_for_that_model(name):
    """Bloom has its own attention code: it takes neither sdpa nor regard."""
    transformers = pytest.importorskip("transformers", minversion="5")
    config = {
        "Llama": transformers.LlamaConfig(
            vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
        ),
        "Bloom": transformers.BloomConfig(vocab_size=50, hidden_size=8, n_layer=1, n_head=2),
    }[name]
    model = getattr(transformers, f"{name}Model")._from_config(config, attn_implementation="eager").eval()
    with regard.watch(model) as seen:
        out = model(torch.arange(3, 9)[None], output_attentions=True)
    advice = {
        "Llama": 'model.set_attn_implementation("regard")',
        "Bloom": "BloomModel has its own attention code; model(…, output_attentions=True) gives its weights",
    }[name]
    for text in (repr(seen), *seen.missed.values()):
        assert text.endswith(advice)
    assert out.attentions[0].shape == (1, 2, 6, 6)
