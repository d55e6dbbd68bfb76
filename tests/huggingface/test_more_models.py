"""Other kinds of attention against eager: chunks, an indexer, images, audio, computing with masks."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5")

import transformers as hf

import regard
from regard.huggingface import register
from tests.huggingface.families import SMALL

register()
TEXT = {k: v for k, v in SMALL.items() if k not in ("num_key_value_heads", "head_dim", "attention_dropout")}
IMAGE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
MOE = {"num_local_experts": 2, "num_experts_per_tok": 1}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
IDS = torch.randint(3, 60, (2, 14), generator=torch.Generator().manual_seed(0))
LEFT = torch.ones_like(IDS)
LEFT[0, :4] = 0
PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))

MODELS = {
    "Llama4ForCausalLM": hf.Llama4TextConfig(
        **SMALL,
        **MOE,
        intermediate_size_mlp=48,
        attention_chunk_size=5,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
    ),
    "Gemma3ForCausalLM": hf.Gemma3TextConfig(
        **SMALL,
        sliding_window=4,
        query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "Qwen3ForCausalLM": hf.Qwen3Config(**SMALL),
    "OPTForCausalLM": hf.OPTConfig(**{**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3}),
    "DogeForCausalLM": hf.DogeConfig(**SMALL),
    "DeepseekV32ForCausalLM": hf.DeepseekV32Config(
        **{**SMALL, **MLA}, index_topk=3, index_n_heads=2, index_head_dim=16
    ),
    "ModernBertForMaskedLM": hf.ModernBertConfig(**TEXT, local_attention=4, global_attn_every_n_layers=2),
    "CLIPModel": hf.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=16),
    "WhisperForConditionalGeneration": hf.WhisperConfig(
        vocab_size=60,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=40,
        init_std=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    ),
}


def inputs_of(name):
    if name.startswith("CLIP"):
        return {"input_ids": IDS, "pixel_values": PIXELS}
    if name.startswith("Whisper"):
        return {
            "input_features": torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(0)),
            "decoder_input_ids": IDS[:, :6],
        }
    return {"input_ids": IDS, "attention_mask": LEFT if name.endswith("CausalLM") else LEFT.flip(-1)}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_outputs_equal_those_of_eager(name):
    torch.manual_seed(0)
    model = getattr(hf, name)(MODELS[name]).eval()
    inputs, result = inputs_of(name), []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        with regard.watch(model) as seen:
            out = model(**inputs)
        out = out.text_embeds @ out.image_embeds.T if name.startswith("CLIP") else out.logits
        result.append(out[inputs["attention_mask"].bool()] if "attention_mask" in inputs else out)
    assert len(seen) == {"CLIPModel": 4, "WhisperForConditionalGeneration": 6}.get(name, 2)
    assert (result[0] - result[1]).abs().max() < 1e-5 * max(1.0, float(result[0].abs().max()))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama4ForCausalLM", "Gemma3ForCausalLM", "DeepseekV32ForCausalLM"])
def test_the_tokens_equal_those_of_eager(name, cache):
    torch.manual_seed(0)
    model, result = getattr(hf, name)(MODELS[name]).eval(), []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        result.append(
            model.generate(
                **inputs_of(name),
                max_new_tokens=9,
                min_new_tokens=9,
                do_sample=False,
                no_repeat_ngram_size=2,
                cache_implementation=cache,
            )
        )
    assert torch.equal(*result)


@pytest.mark.parametrize(
    "options", [{"prompt_lookup_num_tokens": 3}, {"prefill_chunk_size": 4}], ids=lambda x: next(iter(x))
)
@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "Gemma3ForCausalLM"])
def test_speculative_decoding_and_chunked_prefill_give_the_tokens_of_eager(name, options):
    torch.manual_seed(0)
    model, result = getattr(hf, name)(MODELS[name]).eval(), []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        result.append(model.generate(IDS[:1], max_new_tokens=9, min_new_tokens=9, do_sample=False, **options))
    assert torch.equal(*result)
