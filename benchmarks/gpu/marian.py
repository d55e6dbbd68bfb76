"""Hugging Face's Marian with the sizes of one of regard's Transformers and random weights."""

from __future__ import annotations

from typing import Any

from regard.data.tokenizer import BOS, EOS, PAD


def build_marian(vocabulary: int, dim: int, layers: int, heads: int, inner: int, **options: Any) -> Any:
    """A `MarianMTModel`; `options` are further keys of its config."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary, d_model=dim, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=inner,
        decoder_ffn_dim=inner, activation_function="relu", scale_embedding=True, pad_token_id=PAD,
        eos_token_id=EOS, bos_token_id=BOS, decoder_start_token_id=BOS, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    return MarianMTModel(config)
