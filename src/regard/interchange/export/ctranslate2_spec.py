"""Where each of our weights lies in CTranslate2's specification of a Transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.position import Learned, Sinusoidal
from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, UNK
from regard.interchange.export.tokens import pieces
from regard.models.autoregressive import AutoregressiveModel
from regard.models.decoder import TransformerDecoder
from regard.models.embedding import Embedding, Output
from regard.models.encoder import TransformerEncoder
from regard.models.transformer_layer import TransformerLayer

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerDecoderModelSpec, TransformerSpec

POSITIONS = 2048  # rows of the table that sinusoids are written out as
NEVER = -1e9  # added to the scores of PAD and BOS, which regard never writes
EPSILON = {"layer": 1e-5, "rms": torch.finfo(torch.float32).eps}  # torch's own


def translator(model: Any) -> TransformerSpec:
    from ctranslate2.specs import TransformerSpec, transformer_spec

    config = model.config
    spec = TransformerSpec(
        transformer_spec.TransformerEncoderSpec(**_options(config["encoder"])),
        transformer_spec.TransformerDecoderSpec(**_options(config["decoder"]), **_alibi(config["decoder"])),
    )
    _words(spec.encoder, model.source, spec.encoder.embeddings[0])
    _stack(spec.encoder, model.encoder)
    _decoder(spec.decoder, model)
    spec.register_source_vocabulary(pieces(model.source_tokenizer))
    spec.register_target_vocabulary(pieces(model.target_tokenizer))
    _settle(spec.config, config)
    spec.config.decoder_start_token, spec.config.add_source_eos = SPECIALS[BOS], True  # type: ignore[union-attr]
    return spec


def language_model(model: Any) -> TransformerDecoderModelSpec:
    from ctranslate2.specs import TransformerDecoderModelSpec, transformer_spec

    options = _options(model.config["decoder"]) | _alibi(model.config["decoder"])
    spec = TransformerDecoderModelSpec(
        transformer_spec.TransformerDecoderSpec(**options, with_encoder_attention=False)
    )
    _decoder(spec.decoder, model)
    spec.register_vocabulary(pieces(model.target_tokenizer))
    _settle(spec.config, model.config)
    return spec


def _options(spec: dict[str, Any]) -> dict[str, Any]:
    from ctranslate2.specs import Activation

    functions = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "gelu-tanh": Activation.GELUTanh,
        "swish": Activation.SWISH,
        "swiglu": Activation.SWISH,
    }
    return {
        "num_layers": spec["layers"],
        "num_heads": spec["heads"],
        "num_heads_kv": spec["key_heads"] if spec["key_heads"] not in (None, spec["heads"]) else None,
        "pre_norm": spec["norm"] == "pre",
        "rms_norm": spec["norm_kind"] == "rms",
        "activation": functions[spec["activation"]],
        "ffn_glu": spec["activation"] == "swiglu",
        "rotary_dim": 0 if spec["position"] == "rotary" else None,
    }


def _alibi(spec: dict[str, Any]) -> dict[str, Any]:
    return {"alibi": spec["position"] == "alibi", "alibi_use_positive_positions": True}


def _settle(settings: Any, config: dict[str, Any]) -> None:
    settings.unk_token, settings.bos_token, settings.eos_token = SPECIALS[UNK], SPECIALS[BOS], SPECIALS[EOS]
    settings.layer_norm_epsilon = EPSILON[config["decoder"]["norm_kind"]]


def _words(spec: Any, words: Embedding, embeddings: Any) -> None:
    embeddings.weight = words.table.weight.data.clone()  # its quantization writes into what it is given
    spec.scale_embeddings = words.scale != 1.0


def _decoder(spec: Any, model: AutoregressiveModel) -> None:
    _words(spec, model.target, spec.embeddings)
    _stack(spec, model.decoder)  # type: ignore[arg-type]
    _linear(spec.projection, model.output.words)
    spec.projection.bias = _bias(model.output)


def _bias(output: Output) -> Tensor:
    bias = (
        torch.zeros(len(output.words.weight)) if output.words.bias is None else output.words.bias.data.clone()
    )
    bias[[PAD, BOS]] = NEVER
    return bias


def _stack(spec: Any, stack: TransformerEncoder | TransformerDecoder) -> None:
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _positions(stack.position, stack.width)
    if hasattr(spec, "layer_norm"):
        _norm(spec.layer_norm, stack.norm)
    for theirs, ours in zip(spec.layer, stack.layers, strict=True):
        _layer(theirs, ours)  # type: ignore[arg-type]


def _positions(position: nn.Module, dim: int) -> Tensor:
    if isinstance(position, Learned):
        return position.weight.data.clone()
    return position.table(POSITIONS) if isinstance(position, Sinusoidal) else torch.zeros(POSITIONS, dim)


def _layer(spec: Any, layer: TransformerLayer) -> None:
    own: Any = layer.attention
    _linear(spec.self_attention.linear[0], own.Wq, own.Wk, own.Wv)
    _linear(spec.self_attention.linear[1], own.Wo)
    _norm(spec.self_attention.layer_norm, layer.around_attention.norm)
    if layer.cross is not None and layer.around_cross is not None:
        cross: Any = layer.cross
        _linear(spec.attention.linear[0], cross.Wq)
        _linear(spec.attention.linear[1], cross.Wk, cross.Wv)
        _linear(spec.attention.linear[2], cross.Wo)
        _norm(spec.attention.layer_norm, layer.around_cross.norm)
    _feed(spec.ffn, layer)


def _feed(spec: Any, layer: TransformerLayer) -> None:
    feed = layer.feed
    if feed.activation == "swiglu":
        weights, biases = feed.W1.weight.data.chunk(2), feed.W1.bias.data.chunk(2)
        for place, weight, bias in zip((spec.linear_0, spec.linear_0_noact), weights, biases, strict=True):
            place.weight, place.bias = weight.clone(), bias.clone()
    else:
        _linear(spec.linear_0, feed.W1)
    _linear(spec.linear_1, feed.W2)
    _norm(spec.layer_norm, layer.around_feed.norm)


def _linear(spec: Any, *parts: nn.Linear) -> None:
    """Maps of the same input, one below the other."""
    spec.weight = torch.cat([part.weight.data for part in parts])
    if parts[0].bias is not None:
        spec.bias = torch.cat([part.bias.data for part in parts])


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = norm.weight.data.clone()
    if getattr(norm, "bias", None) is not None:
        spec.beta = norm.bias.data.clone()
