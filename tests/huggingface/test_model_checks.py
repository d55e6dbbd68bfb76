"""Errors of `register` and of models with a variant: one sentence that names the module and the fix.

Covers model_checks.py, and the errors of variants.py, changes.py and interface.py.
"""

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", minversion="5")

import transformers as hf

import regard
from regard import Softmax, Sparsemax, Window
from regard.attention import Prefix
from regard.errors import OptionError, ShapeError
from regard.huggingface import masks, register
from regard.huggingface.interface import make_attention
from tests.huggingface.families import BY_NAME, llama, logits, model_of

register()


def assert_refused(match, **options):
    with pytest.raises(OptionError, match=match) as caught:
        register("regard-bad", **options)
    assert "regard-bad" not in hf.AttentionInterface().valid_keys()
    assert "\n" not in str(caught.value)


def test_options_of_the_wrong_kind_are_refused():
    assert_refused("mask must be a Mask", mask=3)
    assert_refused("call it: Window", mask=Window)
    assert_refused("energy must be an Energy", energy="cosine")
    assert_refused("normalize must be a Normalizer", normalize=1.5)
    assert_refused("bias must be a Bias", bias=0.5)
    assert_refused("layers must map", layers=[1, 2])
    assert_refused("-1 is not a layer", layers={-1: {}})
    assert_refused("True is not a layer", layers={True: {}})
    assert_refused(r"layers\[0\] must be a dict", layers={0: Window(3)})
    assert_refused(
        r"layers\[0\] has no option 'masks'; there are energy, mask, bias, normalize",
        layers={0: {"masks": Window(3)}},
    )
    with pytest.raises(OptionError, match="must be 'regard' or begin with 'regard-', .* got 'sdpa'"):
        register("sdpa")


def test_a_layer_that_the_model_lacks_is_refused_by_name():
    register("regard-far", layers={7: {"mask": Window(3)}})
    with pytest.raises(
        OptionError, match=r"layers=\{7: …\} names no layer of LlamaForCausalLM, which has layers 0 to 1"
    ):
        llama("regard-far")
    register("regard-far", layers={"encoder.*": {"mask": Window(3)}})
    with pytest.raises(
        OptionError,
        match=r"'encoder\.\*'.*names no attention module of LlamaForCausalLM.*'model.layers.0.self_attn'",
    ):
        llama("regard-far")
    model = hf.LlamaForCausalLM._from_config(
        hf.LlamaConfig(**BY_NAME["Llama"].options), attn_implementation="regard-far"
    )
    with pytest.raises(OptionError, match="names no attention module of LlamaForCausalLM"):
        logits(model)
    register("regard-embedding", layers={"model.embed_tokens": {"mask": Window(3)}})
    with pytest.raises(OptionError, match="'model.embed_tokens'.*names no attention module"):
        llama("regard-embedding")
    register("regard-fits", layers={1: {"mask": Window(3)}})
    model = llama("regard-fits")
    with pytest.raises(OptionError, match="names no layer"):
        register("regard-fits", layers={9: {}})
    logits(model)


def test_a_model_that_does_not_use_the_interface_is_refused():
    config = lambda: hf.BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4)  # noqa: E731
    with pytest.raises(OptionError, match="BloomForCausalLM has its own attention code.*eager"):
        hf.BloomForCausalLM._from_config(config(), attn_implementation="regard")
    model = hf.BloomForCausalLM(config())
    with pytest.raises(OptionError, match="BloomForCausalLM has its own attention code.*eager"):
        model.set_attn_implementation("regard")
    assert model.config._attn_implementation != "regard"


def test_modules_with_their_own_attention_are_named_in_a_warning():
    config = hf.BigBirdPegasusConfig(
        vocab_size=60,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
    )
    model = hf.BigBirdPegasusModel(config)
    with pytest.warns(
        UserWarning,
        match=r"BigBirdPegasusModel: encoder.layers.0.self_attn.* in their own code, not on regard",
    ):
        model.set_attn_implementation("regard")
    assert model.config._attn_implementation == "regard"


def test_an_unknown_keyword_is_refused_by_name():
    with pytest.raises(
        OptionError, match=r"LlamaAttention \(model.layers.0.self_attn\) passes curvature= .*eager"
    ):
        logits(llama(), curvature=0.3)
    logits(llama(), curvature=None)


def test_invalid_masks_are_refused_with_the_name_of_the_module():
    ids = BY_NAME["Llama"].inputs()["input_ids"]
    attention = llama().model.layers[0].self_attn
    position = llama().model.rotary_emb(torch.zeros(1), torch.arange(11)[None])
    x = torch.randn(2, 11, 32)
    for mask, message in (
        (torch.ones(2, 11), r"shape \(2, 11\)"),
        (torch.ones(2, 1, 11, 11).long(), "torch.int64"),
        ("causal", "got a str"),
    ):
        with pytest.raises(OptionError, match=rf"LlamaAttention \(model.layers.0.self_attn\) .*{message}"):
            attention(x, position, attention_mask=mask)
    with pytest.raises(ShapeError, match=r"LlamaAttention \(model.layers.0.self_attn\): the mask of shape"):
        llama()(ids, attention_mask=torch.ones(2, 1, 11, 9, dtype=torch.bool))


def test_other_bad_calls_are_refused_with_the_name_of_the_module():
    class Module(nn.Module):
        layer_idx = 3

    q = torch.randn(1, 4, 5, 8)
    run = make_attention("regard", regard.huggingface.variants.Changes({}, None))
    with pytest.raises(OptionError, match=r"Module \(layer 3\) passes dropout=Dropout.*config"):
        run(Module(), q, q, q, None, dropout=nn.Dropout(0.1))
    with pytest.raises(OptionError, match=r"Module \(layer 3\) runs with a PagedCache .*dynamic or static"):
        run(Module(), q, q, q, None, cache=type("PagedCache", (), {})())
    with pytest.raises(OptionError, match="position bias and a soft cap"):
        run(Module(), q, q, q, None, softcap=2.0, position_bias=torch.zeros(1, 4, 5, 5))
    with pytest.raises(OptionError, match="got a mask for 5 queries and 5 keys, and has 5 and 3"):
        run(Module(), q, q[..., :3, :], q[..., :3, :], masks.make_mask(1, 5, 5))


def test_a_window_is_refused_where_positions_are_not_aligned():
    register("regard-window", mask=Window(3))
    model = model_of("BART").float().eval()
    model.set_attn_implementation("regard-window")
    with pytest.raises(OptionError, match=r"encoder_attn\): mask=Window.* cross-attention.*layers="):
        logits(model, "BART")
    register("regard-window", mask=Window(3), layers={"*.encoder_attn": {"mask": None}})
    logits(model, "BART")


def test_masks_that_a_sliding_cache_cannot_support_are_refused():
    register("regard-first", mask=Prefix(2) | Window(3))
    model = model_of("Mistral").float().eval()
    model.set_attn_implementation("regard-first")
    inputs = BY_NAME["Mistral"].inputs()
    model.generate(**inputs, max_new_tokens=3, use_cache=False)
    with pytest.raises(OptionError, match="counts keys from the first, and a sliding cache has dropped some"):
        model.generate(**inputs, max_new_tokens=3)


def test_another_normaliser_is_refused_in_a_model_with_sinks():
    register("regard-sparse", normalize=Sparsemax())
    model = model_of("GPT-OSS").float().eval()
    model.set_attn_implementation("regard-sparse")
    with pytest.raises(
        OptionError, match=r"GptOssAttention \(model.layers.0.self_attn\) has attention sinks.*Sparsemax"
    ):
        logits(model, "GPT-OSS")
    register("regard-sparse", normalize=Softmax(2.0))
    with regard.watch(model) as seen:
        logits(model, "GPT-OSS")
    normalize = seen["model.layers.0.self_attn"].call.normalize
    assert normalize.temperature == 2.0 and torch.equal(
        normalize.sinks, model.model.layers[0].self_attn.sinks
    )


def test_a_missing_or_old_transformers_is_reported(monkeypatch):
    from regard.huggingface import variants

    monkeypatch.setattr(variants, "version", lambda _: "4.57.1")
    with pytest.raises(OptionError, match="4.57.1 is installed; pip install -U transformers"):
        register()
    monkeypatch.setattr(variants.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        OptionError, match=r'needs transformers 5 or later; pip install "regard\[transformers\]"'
    ):
        register()


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_a_window_is_refused_in_cross_attention_also_when_source_and_target_have_one_length(name):
    register("regard-near", mask=Window(2))
    model = model_of(name).float().eval()
    model.set_attn_implementation("regard-near")
    ids = torch.arange(3, 9)[None]
    with pytest.raises(OptionError, match="this is cross-attention"):
        model(input_ids=ids, decoder_input_ids=ids)
    model.set_attn_implementation("eager")


def test_names_that_transformers_would_misread_and_unknown_variants_are_refused():
    for name in ("regard-a/b", "regard-", "regard|x", "regardless"):
        with pytest.raises(OptionError, match="the name must be"):
            register(name)
    with pytest.raises(OptionError, match=r"no variant is called 'regard-nope'; registered are .*regard"):
        llama("regard").set_attn_implementation("regard-nope")
