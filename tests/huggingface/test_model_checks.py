"""Errors of `register` and of models with a variant: one sentence that names the module and the fix.

Covers model_checks.py, and the errors of variants.py, changes.py and interface.py.
"""

import warnings

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
from regard.huggingface.changes import uses_interface
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


@pytest.mark.parametrize("name", ["Llama", "BERT", "T5"])
def test_a_mask_of_the_wrong_shape_is_reported_with_the_shape_that_was_passed(name):
    model = model_of(name).float().eval()
    model.set_attn_implementation("regard")
    inputs = BY_NAME[name].inputs()
    for shape, message in (
        ((2, 11, 11), r"shape \(2, 11, 11\); .*\(batch, Tk\) of 0 and 1.*pass attention_mask\[:, None\]"),
        ((11,), r"shape \(11,\); "),
        ((2, 1, 1, 11, 11), r"shape \(2, 1, 1, 11, 11\); "),
        ((3, 11), r"shape \(3, 11\) for a batch of 2"),
    ):
        for mask in (torch.ones(shape), torch.zeros(shape).bool()):
            with pytest.raises(ShapeError, match=message):
                model(**inputs | {"attention_mask": mask})


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
    for request in ("regard-nope", {"": "regard-nope"}):
        with pytest.raises(
            OptionError, match=r"no variant is called 'regard-nope'.*register\('regard-nope', …\)"
        ):
            hf.LlamaForCausalLM._from_config(
                hf.LlamaConfig(**BY_NAME["Llama"].options), attn_implementation=request
            )


# ------------------------------------------------------------------------------------------- composite models
TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
IMAGE = {**TEXT, "image_size": 16, "patch_size": 4}
SEQ2SEQ = BY_NAME["BART"].options


def bert():
    return hf.BertModel(hf.BertConfig(**TEXT))


def bert_decoder():
    return hf.BertLMHeadModel(hf.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True))


def rag():
    encoder = hf.DPRQuestionEncoder(hf.DPRConfig(**TEXT))
    generator = hf.BartForConditionalGeneration(hf.BartConfig(**SEQ2SEQ))
    return hf.RagSequenceForGeneration(question_encoder=encoder, generator=generator)


COMPOSITES = {
    "EncoderDecoder": lambda: hf.EncoderDecoderModel(encoder=bert(), decoder=bert_decoder()),
    "EncoderDecoder, built from a config": lambda: hf.EncoderDecoderModel(
        hf.EncoderDecoderConfig.from_encoder_decoder_configs(bert().config, bert_decoder().config)
    ),
    "VisionEncoderDecoder": lambda: hf.VisionEncoderDecoderModel(
        encoder=hf.ViTModel(hf.ViTConfig(**IMAGE)), decoder=bert_decoder()
    ),
    "SpeechEncoderDecoder": lambda: hf.SpeechEncoderDecoderModel(
        encoder=hf.Wav2Vec2Model(
            hf.Wav2Vec2Config(
                **TEXT, conv_dim=[8], conv_kernel=[4], conv_stride=[2], num_feat_extract_layers=1,
                num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
            )
        ),
        decoder=bert_decoder(),
    ),
    "VisionTextDualEncoder": lambda: hf.VisionTextDualEncoderModel(
        vision_model=hf.ViTModel(hf.ViTConfig(**IMAGE)), text_model=bert()
    ),
    "CLIP": lambda: hf.CLIPModel(hf.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=16)),
    "RAG": rag,
}  # fmt: skip


def implementations(model):
    """The implementation that each attention module reads from its config."""
    return {
        name: module.config._attn_implementation
        for name, module in model.named_modules()
        if uses_interface(type(module))
    }


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_attention_module_of_a_composite_model_is_switched(name):
    register("regard-sparse", normalize=Sparsemax())
    model = COMPOSITES[name]()
    assert implementations(model)
    for variant in ("regard", "regard-sparse", "eager", "regard", "sdpa"):
        model.set_attn_implementation(variant)
        assert set(implementations(model).values()) == {variant}


@torch.no_grad()
def test_a_variant_changes_the_encoder_of_a_composite_model_and_watch_sees_all_of_it():
    register("regard-sparse", normalize=Sparsemax())
    model = COMPOSITES["EncoderDecoder"]().eval()
    ids = torch.arange(3, 21).view(2, 9)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids).triu(-4),
        "decoder_input_ids": ids[:, :5],
    }
    outputs = {}
    for variant in ("eager", "regard", "regard-sparse"):
        model.set_attn_implementation(variant)
        with regard.watch(model) as seen:
            outputs[variant] = model(**inputs).encoder_last_hidden_state
    assert torch.allclose(outputs["eager"], outputs["regard"], atol=1e-5)
    assert (outputs["eager"] - outputs["regard-sparse"]).abs().max() > 0.01
    assert set(seen) == set(implementations(model)) and not seen.missed
    assert (seen["encoder.encoder.layer.1.attention.self"].weights() == 0).any()


def test_a_dict_of_implementations_is_checked_and_applied_by_part():
    bloom = hf.BloomModel(hf.BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4))
    with pytest.raises(OptionError, match="BloomModel has its own attention code"):
        bloom.set_attn_implementation({"": "regard"})
    model = COMPOSITES["CLIP"]()
    with pytest.raises(OptionError, match="no variant is called 'regard-nope'"):
        model.set_attn_implementation({"text_config": "regard-nope"})
    with pytest.raises(
        OptionError,
        match="CLIPConfig has no sub-config 'text'; its sub-configs are 'text_config', 'vision_config'",
    ):
        model.set_attn_implementation({"text": "regard"})
    with pytest.raises(OptionError, match="CLIPConfig has no sub-config 'text'; "):
        hf.CLIPModel._from_config(
            hf.CLIPConfig(text_config=TEXT, vision_config=IMAGE), attn_implementation={"text": "regard"}
        )
    hf.CLIPConfig(text_config=TEXT, vision_config=IMAGE, attn_implementation={"text_config": "regard"})
    model.set_attn_implementation("sdpa")
    model.set_attn_implementation({"text_config": "regard"})
    expected = lambda text: {  # noqa: E731
        name: "regard" if name.startswith(text) else "sdpa" for name in implementations(model)
    }
    assert implementations(model) == expected("text_model")
    for part in ("encoder", "decoder"):
        model = COMPOSITES["EncoderDecoder"]()
        model.set_attn_implementation({part: "regard"})
        assert implementations(model) == expected(part)


def test_a_part_with_its_own_attention_is_refused_by_name():
    encoder = hf.EncoderDecoderModel(encoder=bert(), decoder=bert_decoder())
    encoder.encoder = hf.BloomModel(hf.BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4))
    for request in ("regard", {"": "regard"}):
        with pytest.raises(OptionError, match="BloomModel has its own attention code"):
            encoder.set_attn_implementation(request)


def test_a_variant_that_no_attention_module_uses_is_reported():
    config = lambda: hf.MambaConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1)  # noqa: E731
    with pytest.warns(
        UserWarning, match="MambaForCausalLM: attn_implementation='regard' has no effect: it has no"
    ):
        hf.MambaForCausalLM._from_config(config(), attn_implementation="regard")
    with pytest.warns(UserWarning, match="'regard' has no effect: it has no attention module"):
        hf.MambaModel(config()).set_attn_implementation("regard")
    parts = {"encoder": bert(), "decoder": bert_decoder()}
    composite = hf.EncoderDecoderConfig.from_encoder_decoder_configs(
        *(part.config for part in parts.values())
    )
    composite._attn_implementation_internal = "regard"
    with pytest.warns(
        UserWarning, match=r"no effect: encoder\S* runs on 'sdpa'; model.set_attn_implementation"
    ):
        hf.EncoderDecoderModel(composite, **parts)


def test_parts_and_models_on_regard_are_built_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        hf.CLIPModel._from_config(
            hf.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=16),
            attn_implementation="regard",
        )
        model = COMPOSITES["EncoderDecoder"]()
        model.set_attn_implementation("regard")
        model.set_attn_implementation({"encoder": "eager", "decoder": "eager"})
    assert set(implementations(model).values()) == {"eager"}
