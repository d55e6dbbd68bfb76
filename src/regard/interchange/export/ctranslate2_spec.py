"""Copy the weights of a Transformer into a CTranslate2 model specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.position import Learned, Sinusoidal
from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, UNK
from regard.interchange.export.tokenizer_files import vocabulary_list
from regard.models.autoregressive import AutoregressiveModel
from regard.models.embedding import Embedding, Output
from regard.models.transformer import TransformerDecoder, TransformerEncoder, TransformerLayer

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerDecoderModelSpec, TransformerSpec

POSITIONS = 2048  # rows of the table that sinusoidal positions are exported as
NEVER = -1e9  # bias of PAD and BOS, which regard never generates
EPSILON = {"layer": 1e-5, "rms": torch.finfo(torch.float32).eps}  # torch's defaults


def translator_spec(model: Any) -> TransformerSpec:
    """Return the specification of a translator, filled with its weights."""
    from ctranslate2.specs import TransformerSpec, transformer_spec

    config = model.config
    spec = TransformerSpec(
        transformer_spec.TransformerEncoderSpec(**_options(config["encoder"])),
        transformer_spec.TransformerDecoderSpec(**_options(config["decoder"]), **_alibi(config["decoder"])),
    )
    _embeddings(spec.encoder, model.source, spec.encoder.embeddings[0])
    _stack(spec.encoder, model.encoder)
    _decoder(spec.decoder, model)
    spec.register_source_vocabulary(vocabulary_list(model.source_tokenizer))
    spec.register_target_vocabulary(vocabulary_list(model.target_tokenizer))
    _set_special_tokens(spec.config, config)
    spec.config.decoder_start_token, spec.config.add_source_eos = SPECIALS[BOS], True  # type: ignore[union-attr]
    return spec


def language_model_spec(model: Any) -> TransformerDecoderModelSpec:
    """Return the specification of a language model, filled with its weights."""
    from ctranslate2.specs import TransformerDecoderModelSpec, transformer_spec

    options = _options(model.config["decoder"]) | _alibi(model.config["decoder"])
    spec = TransformerDecoderModelSpec(
        transformer_spec.TransformerDecoderSpec(**options, with_encoder_attention=False)
    )
    _decoder(spec.decoder, model)
    spec.register_vocabulary(vocabulary_list(model.target_tokenizer))
    _set_special_tokens(spec.config, model.config)
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


def _set_special_tokens(settings: Any, config: dict[str, Any]) -> None:
    settings.unk_token, settings.bos_token, settings.eos_token = SPECIALS[UNK], SPECIALS[BOS], SPECIALS[EOS]
    settings.layer_norm_epsilon = EPSILON[config["decoder"]["norm_kind"]]


def _embeddings(spec: Any, ours: Embedding, theirs: Any) -> None:
    theirs.weight = ours.table.weight.data.clone()  # quantization changes the tensor in place
    spec.scale_embeddings = ours.scale != 1.0


def _decoder(spec: Any, model: AutoregressiveModel) -> None:
    _embeddings(spec, model.target, spec.embeddings)
    _stack(spec, model.decoder)  # type: ignore[arg-type]
    _linear(spec.projection, model.output.projection)
    spec.projection.bias = _bias(model.output)


def _bias(output: Output) -> Tensor:
    bias = (
        torch.zeros(len(output.projection.weight))
        if output.projection.bias is None
        else output.projection.bias.data.clone()
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
    _feed_forward(spec.ffn, layer)


def _feed_forward(spec: Any, layer: TransformerLayer) -> None:
    feed = layer.feed
    if feed.activation == "swiglu":
        weights, biases = feed.W1.weight.data.chunk(2), feed.W1.bias.data.chunk(2)
        for place, weight, bias in zip((spec.linear_0, spec.linear_0_noact), weights, biases, strict=True):
            place.weight, place.bias = weight.clone(), bias.clone()
    else:
        _linear(spec.linear_0, feed.W1)
    _linear(spec.linear_1, feed.W2)
    _norm(spec.layer_norm, layer.around_feed.norm)


def _linear(spec: Any, *layers: nn.Linear) -> None:
    """Copy linear layers of the same input, stacked into one: (sum of outputs, inputs)."""
    spec.weight = torch.cat([layer.weight.data for layer in layers])
    if layers[0].bias is not None:
        spec.bias = torch.cat([layer.bias.data for layer in layers])


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = norm.weight.data.clone()
    if getattr(norm, "bias", None) is not None:
        spec.beta = norm.bias.data.clone()
