"""`watch` on torch's layers, plain SDPA, Hugging Face and compiled models, and what it cannot record.

Covers torch_calls.py, eager_stance.py and watched_model.py.
"""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import Causal, attend, watch
from regard.attention import watching
from regard.attention.call import make_call
from regard.errors import OptionError


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(5)


class Attention(nn.Module):
    """Attention as timm and nanoGPT write it."""

    def __init__(self, dim=8, heads=2, **sdpa):
        super().__init__()
        self.qkv, self.proj, self.heads, self.sdpa = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), heads, sdpa

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = scaled_dot_product_attention(q, k, v, **self.sdpa)
        return self.proj(out.transpose(1, 2).flatten(2))


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


# --------------------------------------------------------------------------------------------------- compiled
def test_compiled_models_are_seen_under_the_names_from_before_compiling():
    x = torch.randn(2, 6, 8)
    inner, full, in_place = (nn.Sequential(Attention(), Attention()) for _ in range(3))
    compiled = torch.compile(full, backend="eager")
    inner[1] = torch.compile(inner[1], backend="eager")
    in_place.compile(backend="eager", fullgraph=True)
    for model, run in (
        (full, compiled),
        (compiled, compiled),
        (inner, inner),
        (in_place, in_place),
    ):
        run(x)  # compile before watch
        with watch(model) as seen:
            run(x)
        assert list(seen) == ["0", "1"]
        assert [len(seen.calls(name)) for name in seen] == [1, 1]


def test_compiled_models_of_our_layers_are_seen():
    model, x = nn.Sequential(regard.MultiHead(8, 2, mask=Causal())), torch.randn(2, 6, 8)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    with watch(compiled) as seen:
        compiled(x)
    assert torch.allclose(seen["0.self"].weights().sum(-1), torch.ones(2, 2, 6))


def test_compiled_models_run_compiled_again_after_watch():
    runs = []

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph(*args)

        return run

    model, x = Attention(), torch.randn(2, 6, 8)
    compiled = torch.compile(model, backend=backend)
    compiled(x)
    with pytest.raises(OptionError, match="nothing called"), watch(model), watch(compiled) as seen:
        assert compiled(x) is not seen["elsewhere"]
    assert len(runs) == 1
    compiled(x)
    assert len(runs) == 2


def test_a_compiled_kernel_of_attend_runs_compiled_inside_watch():
    """Flex is one: uncompiled it would build the T × T matrix."""
    runs, q = [], torch.randn(1, 1, 3, 4)

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph(*args)

        return run

    kernel = torch.compile(lambda x: x * 2, backend=backend)
    kernel(q)
    with watch() as seen, watching.record(make_call(q, q, q), watching.targets(), compiles=True):
        kernel(q)
    assert len(runs) == 2
    assert list(seen) == ["attend.0"]


def test_two_watching_threads_restore_the_compiler_stance():
    from torch._dynamo import eval_frame

    model, x = torch.compile(Attention(), backend="eager"), torch.randn(2, 6, 8)
    begun, ended, counts = threading.Event(), threading.Event(), []

    def other():
        with watch(model) as seen:
            begun.set()
            ended.wait(10)
            model(x)
        counts.append(len(seen))

    thread = threading.Thread(target=other)
    with watch(model) as seen:
        thread.start()
        begun.wait(10)
        model(x)
    ended.set()
    thread.join()
    assert len(seen) == 1
    assert counts == [1]
    assert eval_frame._stance.stance == "default"


def test_watch_inside_a_compiled_function_is_refused():
    @torch.compile(backend="eager")
    def run(x):
        with watch():
            return F.scaled_dot_product_attention(x, x, x)

    with pytest.raises(OptionError, match="cannot begin inside a compiled function"):
        run(torch.randn(1, 1, 3, 4))


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
    q, given = torch.randn(1, 2, 4, 8), []

    def look(name, recorded):
        given.append((name, recorded.call.query.data_ptr(), recorded.weights()))
        F.scaled_dot_product_attention(q, q, q)

    with watch(on_call=look):
        F.scaled_dot_product_attention(q, q, q)
        attend(q, q, q, mask=Causal())
    assert [(name, at) for name, at, _ in given] == [("attend.0", q.data_ptr()), ("attend.1", q.data_ptr())]
    assert torch.allclose(given[1][2], regard.weights(q, q, mask=Causal()), atol=1e-6)


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


# ---------------------------------------------------------------------------------------- what cannot be seen
class WrittenOut(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


class Flex(nn.Module):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(x, x, x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (WrittenOut(), r"0 computes softmax of a \(1, 2, 4, 4\) tensor itself.*attn_implementation=\"sdpa\""),
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

    class Mine(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    attention = regard.MultiHead(8, 2)
    for model, intercepted in (
        (attention, False),
        (nn.Sequential(attention, nn.Linear(8, 8)), False),
        (nn.Sequential(attention, Mine()), True),
        (nn.MultiheadAttention(8, 2), True),
        (nn.TransformerEncoderLayer(8, 2), True),
        (None, True),
    ):
        with regard.watch(model):
            assert (_get_current_function_mode() is not None) == intercepted, model


class Own(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def test_attention_of_user_modules_and_hooks_is_recorded():
    x = torch.randn(2, 5, 8)
    net = nn.Sequential(regard.MultiHead(8, 2), Own())
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
        net.append(Own())
        net(x)
    assert "changed inside watch" in seen.missed["the model"]


def test_watches_of_two_generators_may_end_in_any_order():
    def stream(layer):
        with regard.watch(layer) as seen:
            for _ in range(3):
                layer(torch.randn(1, 5, 8))
                yield seen

    first, second = stream(regard.MultiHead(8, 2)), stream(regard.MultiHead(8, 2))
    one, two = next(first), next(second)
    first.close()
    next(second), next(second)
    assert len(two.calls("self")) == 3
    before = sum(len(one.calls(name)) for name in one)
    attend(torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8))
    assert sum(len(one.calls(name)) for name in one) == before
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
    class Plain(nn.Module):
        def forward(self, x):
            return torch.softmax(x @ x.mT, -1) @ x

    net = nn.Sequential(Own(), Plain())
    with regard.watch(net) as seen:
        net(torch.randn(2, 5, 8))
    with pytest.raises(OptionError, match="'1' was seen: 1 computes softmax of .* written out"):
        seen["1"]
