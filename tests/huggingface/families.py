"""Small models of each family with random weights, and their inputs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

SMALL: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
    "attention_dropout": 0.0,
}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "init_std": 0.3,
}


@dataclass(frozen=True)
class Family:
    name: str
    model: str
    config: str
    options: dict[str, Any]
    kind: str = "decoder"  # decoder, encoder, seq2seq or vision
    attention: tuple[str, ...] = ()  # the modules whose attention is watched

    def build(self, seed: int = 0, **more: Any) -> Any:
        torch.manual_seed(seed)
        config = getattr(hf, self.config)(**{**self.options, **more})
        model = getattr(hf, self.model)(config).eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("sinks") or "relative_attention_bias" in name:
                    p.normal_()
        return model

    def inputs(self, padded: bool = False, batch: int = 2, length: int = 11) -> dict[str, Any]:
        """Decoders are padded on the left, as for generation; encoders on the right."""
        g = torch.Generator().manual_seed(1)
        if self.kind == "vision":
            return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=g)}
        ids = torch.randint(3, 60, (batch, length), generator=g)
        mask = torch.ones_like(ids)
        if padded:
            mask[0, :4] = 0
            if self.kind != "decoder":
                mask = mask.flip(-1)
        result = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
        if self.kind == "seq2seq":
            result["decoder_input_ids"] = torch.randint(3, 60, (batch, 7), generator=g)
        return result

    def output(self, model: Any, inputs: dict[str, Any], **more: Any) -> torch.Tensor:
        out = model(**inputs, **more)
        return out.logits if hasattr(out, "logits") else out.last_hidden_state


SELF_ATTENTION = ("model.layers.0.self_attn", "model.layers.1.self_attn")
GENERATION = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
FAMILIES = [
    Family(
        "Llama",
        "LlamaForCausalLM",
        "LlamaConfig",
        SMALL,
        attention=SELF_ATTENTION,
    ),
    Family(
        "Mistral",
        "MistralForCausalLM",
        "MistralConfig",
        {**SMALL, "sliding_window": 5},
        attention=SELF_ATTENTION,
    ),
    Family(
        "Gemma-2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**SMALL, "sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
        attention=SELF_ATTENTION,
    ),
    Family(
        "GPT-OSS",
        "GptOssForCausalLM",
        "GptOssConfig",
        {**SMALL, "sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1},
        attention=SELF_ATTENTION,
    ),
    Family(
        "GPT-2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": 60,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "initializer_range": 0.3,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        attention=("transformer.h.0.attn", "transformer.h.1.attn"),
    ),
    Family(
        "BERT",
        "BertForMaskedLM",
        "BertConfig",
        {
            **{
                k: v
                for k, v in SMALL.items()
                if k not in ("num_key_value_heads", "head_dim", "attention_dropout")
            },
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        kind="encoder",
        attention=("bert.encoder.layer.0.attention.self", "bert.encoder.layer.1.attention.self"),
    ),
    Family(
        "T5",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 60,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 0,
            "initializer_factor": 4.0,
        },
        kind="seq2seq",
        attention=(
            "encoder.block.0.layer.0.SelfAttention",
            "decoder.block.1.layer.0.SelfAttention",
            "decoder.block.1.layer.1.EncDecAttention",
        ),
    ),
    Family(
        "BART",
        "BartForConditionalGeneration",
        "BartConfig",
        SEQ2SEQ,
        kind="seq2seq",
        attention=(
            "model.encoder.layers.0.self_attn",
            "model.decoder.layers.1.self_attn",
            "model.decoder.layers.1.encoder_attn",
        ),
    ),
    Family(
        "Marian",
        "MarianMTModel",
        "MarianConfig",
        {**SEQ2SEQ, "forced_eos_token_id": 2},
        kind="seq2seq",
        attention=(
            "model.encoder.layers.0.self_attn",
            "model.decoder.layers.1.self_attn",
            "model.decoder.layers.1.encoder_attn",
        ),
    ),
    Family(
        "ViT",
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 16,
            "patch_size": 4,
            "initializer_range": 0.3,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        kind="vision",
        attention=(),
    ),
]


@functools.cache
def model_of(name: str) -> Any:
    """The model of a family, shared by tests that only run it."""
    return BY_NAME[name].build()


BY_NAME = {family.name: family for family in FAMILIES}


def llama(name="regard"):
    """The Llama with this attention implementation."""
    model = model_of("Llama").float().eval()
    model.set_attn_implementation(name)
    return model


@torch.no_grad()
def logits(model, name="Llama", padded=False, **more):
    """The output of the model of a family for the inputs of the family."""
    return BY_NAME[name].output(model, BY_NAME[name].inputs(padded), **more)
