"""The attention weights of classifiers, taggers and embedders: every layer and head, and the pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.watching import watch
from regard.decoding.attention_weights import AttentionMaps, kind_of
from regard.decoding.batching import evaluation_mode
from regard.errors import OptionError
from regard.models.classifier import ClassifierEnsemble
from regard.models.embedder import Embedder
from regard.models.embedding import prepend_bos
from regard.models.tagger import Tagger
from regard.models.text_model import batches

ATTENTION_TOKENS = 4096  # tokens whose attention is in memory at once


def encoder_attention(texts: Sequence[str], model: Any) -> list[AttentionMaps]:
    """Return the attention maps of each text, in order. The words of a tagger's texts are separated by
    spaces.
    """
    check_single(model)
    maps = dict(_attention_of_texts(texts, model))
    return [maps[i] for i in range(len(texts))]


def check_single(model: Any) -> None:
    """Raise an OptionError for an ensemble."""
    if isinstance(model, ClassifierEnsemble):
        raise OptionError("attention is that of one model, got an ensemble; use one of its models")


@torch.no_grad()
def _attention_of_texts(texts: Sequence[str], model: Any) -> Iterator[tuple[int, AttentionMaps]]:
    with evaluation_mode(model):
        for rows, tokens, lengths in batches(model, texts, ATTENTION_TOKENS):
            with watch(model) as seen:
                _run(model, tokens.to(model.device), lengths.to(model.device))
            if not seen:
                raise OptionError(f"this model has no attention to show; {_with_attention(model)}")
            weights = {name: seen[name].weights().float().cpu() for name in seen}
            for row, i in enumerate(rows):
                labels = _labels(model, texts[i], tokens[row, : lengths[row]])
                cropped = {name: _crop(name, w[row], len(labels)) for name, w in weights.items()}
                yield i, AttentionMaps(labels, [], [], cropped)


def _with_attention(model: Any) -> str:
    """Which model of this kind has attention."""
    if isinstance(model, Tagger):
        return "use one with a Transformer encoder, such as that of the recipe wnut17-transformer"
    return (
        "use one with attention pooling or a Transformer encoder, such as that of the recipe sst2-attention"
    )


def _run(model: Any, tokens: Tensor, lengths: Tensor) -> None:
    if isinstance(model, Tagger):
        words, characters, counts = model.read(tokens, lengths)
        model(words, characters, counts)
    elif isinstance(model, Embedder):
        model.encode(*(prepend_bos(tokens, lengths) if model.prepend_bos else (tokens, lengths)))
    else:
        model(tokens, lengths)


def _labels(model: Any, text: str, tokens: Tensor) -> list[str]:
    """What the encoder reads: tokens, the words of the text, or the indices of frames."""
    if isinstance(model, Tagger) and not model.subwords and model.source_tokenizer.kind != "frames":
        return text.split(" ")
    return ["<s>"] * model.prepend_bos + model.source_tokenizer.tokens(tokens)


def _crop(name: str, weights: Tensor, length: int) -> Tensor:
    """Weights (heads, rows, columns) without padding; a copy, so that the batch can be freed."""
    rows = weights.shape[1] if kind_of(name) == "pooling" else length
    return weights[:, :rows, :length].clone()
