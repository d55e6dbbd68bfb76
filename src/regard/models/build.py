"""From the `model:` section of a recipe, as a plain dict with every key filled in, to the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from regard.attention.bias import ALiBi, Bias, RelativeBuckets, RelativeVectors
from regard.attention.energy import Additive, Bilinear, Cosine, Dot, Energy, ScaledDot
from regard.attention.mask import Mask
from regard.attention.normalize import Entmax, Normalizer, Sigmoid, Softmax, Sparsemax
from regard.attention.position import Channel, Learned, Rotary, Sinusoidal
from regard.attention.position_masks import Causal, Diagonal, Dilated, Prefix, Window
from regard.data.tokenizer import SPECIALS
from regard.errors import OptionError
from regard.layers.dropout import LockedDropout
from regard.layers.feedforward import FeedForward
from regard.layers.multihead import MultiHead, SlicedMultiHead
from regard.layers.recurrent import RecurrentStack
from regard.layers.residual import Residual, make_norm
from regard.models.classifier import Classifier, Head
from regard.models.cross_attention import (
    AdditiveCrossAttention,
    BilinearCrossAttention,
    Parameterised,
    Simple,
)
from regard.models.decoder import (
    BahdanauDecoder,
    CopiedInitialState,
    InputFeedingDecoder,
    LearnedInitialState,
    RecurrentDecoder,
    TransformerDecoder,
)
from regard.models.embedding import Embedding, Output
from regard.models.encoder import (
    ConvolutionalEncoder,
    EmbeddingEncoder,
    KimEncoder,
    RecurrentEncoder,
    StackedEncoder,
    TransformerEncoder,
)
from regard.models.language_model import LanguageModel
from regard.models.pooling import AttentionPooling, Concatenated, Last, Max, Mean, Recurrent, Sum
from regard.models.transformer_layer import NoPosition, Normed, TransformerLayer, WithChannel
from regard.models.translator import Translator

Spec = dict[str, Any]


def build(config: Spec, source_vocab: int | None, target_vocab: int) -> Any:
    """The model of a `model:` section; its `kind` says which, and without one it is a translator when there is an encoder, else
    a language model. Weights are drawn from torch's generator.
    """
    try:
        return BUILDERS[config.get("kind", "autoregressive")](config, source_vocab, target_vocab)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise OptionError(
            "a model of these sizes does not fit into memory; lower model.dim, its layers or the vocabulary"
        ) from None


def _autoregressive(config: Spec, source_vocab: int | None, target_vocab: int) -> Translator | LanguageModel:
    tie, bias = config["tie"], config.get("output_bias")
    target = make_words(config["decoder"], config, target_vocab)
    if config["encoder"] is None:
        decoder = make_decoder(config["decoder"], config, None)
        # How frequent a word is must not be said by the state: a deep recurrence would saturate there and learn nothing more.
        return LanguageModel(
            target, decoder, _output(decoder, target, target_vocab, tie, bias=bias is not False)
        )
    if source_vocab is None:
        raise OptionError(
            "a model with an encoder reads a source, so it needs a source vocabulary; give source_vocab"
        )
    source = make_words(config["encoder"], config, source_vocab)
    if tie == "all":
        if source_vocab != target_vocab:
            raise OptionError(
                f"tie: all shares one table between {source_vocab} source and {target_vocab} target words; "
                "use a joint tokenizer, or tie: target"
            )
        source.table = target.table
    encoder = make_encoder(config["encoder"], config)
    decoder = make_decoder(config["decoder"], config, encoder)
    return Translator(
        source, encoder, target, decoder, _output(decoder, target, target_vocab, tie, bias=bool(bias))
    )


def _classifier(config: Spec, source_vocab: int | None, target_vocab: int) -> Classifier:
    assert source_vocab is not None
    source = make_words(config["encoder"], config, source_vocab)
    encoder = make_encoder(config["encoder"], config)
    pooling = make_pooling(config["pooling"], encoder.width)  # type: ignore[arg-type]
    head = Head(
        pooling.width, target_vocab - len(SPECIALS), config["head"]["layers"], config["head"]["width"],  # type: ignore[arg-type]
        activation=config["head"]["activation"], dropout=config["head"]["dropout"],
    )  # fmt: skip
    return Classifier(
        source, encoder, pooling, head, word_dropout=config["word_dropout"], prepend_bos=config["prepend_bos"]
    )


def _tagger(config: Spec, source_vocab: int | None, target_vocab: int) -> Any:
    from regard.models.tagger import build_tagger  # which takes its encoder from here

    return build_tagger(config, source_vocab, target_vocab)  # type: ignore[arg-type]


def _embedder(config: Spec, source_vocab: int | None, target_vocab: int) -> Any:
    from regard.models.embedder import build_embedder

    return build_embedder(config, target_vocab)


BUILDERS: dict[str, Callable[[Spec, int | None, int], Any]] = {
    "autoregressive": _autoregressive, "classifier": _classifier, "tagger": _tagger, "embedder": _embedder,
}  # fmt: skip


def make_words(spec: Spec, config: Spec, vocab: int) -> Embedding:
    dim = config["dim"]
    scale = (
        math.sqrt(dim) if config.get("scale_embeddings", True) else 1.0
    )  # folders of before have no such key
    return Embedding(vocab, dim, scale=scale, embedding_dropout=spec.get("embedding_dropout", 0.0))


def _output(decoder: nn.Module, target: Embedding, vocab: int, tie: str, *, bias: bool) -> Output:
    return Output(decoder.width, vocab, tied=None if tie == "none" else target.table, bias=bias)  # type: ignore[arg-type]


def _dropout(spec: Spec, config: Spec) -> float:
    return config["dropout"] if spec["dropout"] is None else spec["dropout"]


def make_encoder(spec: Spec, config: Spec) -> nn.Module:
    """Words of width dim → Memory."""
    dim = config["dim"]
    if spec["kind"] == "embedding":
        return EmbeddingEncoder(dim, dropout=_dropout(spec, config))
    if spec["kind"] == "kim":
        return KimEncoder(dim, spec["width"], spec["kernels"], dropout=_dropout(spec, config))
    if spec["kind"] == "transformer":
        return _transformer(spec, config, TransformerEncoder, cross_width=None)
    if spec["kind"] == "recurrent":
        dropout = _dropout(spec, config)
        stack = RecurrentStack(
            dim,
            spec["width"] or dim,
            cell=spec["cell"],
            layers=spec["layers"],
            bidirectional=spec["bidirectional"],
            dropout=dropout,
        )
        return RecurrentEncoder(stack, dropout=dropout)
    if spec["kind"] == "convolutional":
        position = make_position(spec["position"], dim, spec["max_positions"])
        return ConvolutionalEncoder(
            dim,
            spec["width"] or dim,
            spec["kernel"],
            spec["layers"],
            position=position,
            dropout=_dropout(spec, config),
        )
    return StackedEncoder(make_encoder(spec["below"], config), make_encoder(spec["above"], config))  # type: ignore[arg-type]


def make_pooling(spec: Spec, width: int) -> nn.Module:
    """States of that width → one vector, of `pooling.width`."""
    kind = spec["kind"]
    if kind == "attention":
        energy = make_energy(spec["energy"], width // spec["heads"], spec["heads"])
        normalize = make_normalizer(spec["normalize"])
        return AttentionPooling(
            width, queries=spec["queries"], heads=spec["heads"], energy=energy, normalize=normalize
        )
    if kind == "recurrent":
        return Recurrent(RecurrentStack(width, spec["width"] or width, cell=spec["cell"]))
    if kind == "concat":
        return Concatenated([make_pooling(each, width) for each in spec["of"]])
    return {"mean": Mean, "sum": Sum, "max": Max, "last": Last}[kind](width)


def make_decoder(spec: Spec, config: Spec, encoder: nn.Module | None) -> nn.Module:
    """Words of width dim, and a Memory where there is an encoder → features."""
    memory_width: int | None = None if encoder is None else encoder.width  # type: ignore[assignment]
    if spec["kind"] == "transformer":
        return _transformer(spec, config, TransformerDecoder, cross_width=memory_width)
    dim, dropout = config["dim"], _dropout(spec, config)
    width = spec["width"] or dim
    if spec["kind"] == "bahdanau":
        if memory_width is None:
            raise OptionError(
                "a bahdanau decoder attends to an encoder; for a language model use kind: recurrent or transformer"
            )
        stack = RecurrentStack(
            dim + memory_width, width, cell=spec["cell"], layers=spec["layers"], dropout=dropout
        )
        attention = AdditiveCrossAttention(width, memory_width, spec["attention_width"] or width)
        return BahdanauDecoder(
            dim,
            stack,
            initial_state=_initial_state(spec, encoder, stack),
            attention=attention,
            dropout=dropout,
        )
    attention = (
        None if memory_width is None else _cross_attention(spec, spec["last_width"] or width, memory_width)
    )
    fed = attention if spec["input_feeding"] else None
    if config["shared_recurrence"] and encoder is not None:
        stack = _shared(encoder, dim)
    else:
        stack = RecurrentStack(
            dim + (0 if fed is None else fed.width), width, cell=spec["cell"], layers=spec["layers"], last_width=spec["last_width"],
            dropout=dropout if spec["dropout_hidden"] is None else spec["dropout_hidden"], dropout_weight=spec["dropout_weight"],
        )  # type: ignore[operator]  # fmt: skip
    kind = RecurrentDecoder if fed is None else InputFeedingDecoder
    locked = {
        place: None if spec[key] is None else LockedDropout(spec[key])
        for place, key in (("before", "dropout_input"), ("after", "dropout_output"))
    }
    return kind(
        stack,
        initial_state=None if encoder is None else _initial_state(spec, encoder, stack),
        attention=attention,
        dropout=dropout,
        **locked,
    )


def _shared(encoder: nn.Module, dim: int) -> RecurrentStack:
    """The encoder's own recurrence: one W^h reads and writes."""
    stack = getattr(encoder, "stack", None)
    if not isinstance(stack, RecurrentStack) or stack.bidirectional or stack.dim != dim:
        raise OptionError(
            "shared_recurrence needs a recurrent encoder of one direction whose cell, layers and width the decoder takes over"
        )
    return stack


def _initial_state(spec: Spec, encoder: nn.Module | None, stack: RecurrentStack) -> nn.Module:
    assert encoder is not None
    if spec["initial_state"] != "copy":
        return LearnedInitialState(encoder.width, stack, of=spec["initial_state"])  # type: ignore[arg-type]
    source = getattr(encoder, "stack", None)
    if not isinstance(source, RecurrentStack) or source.widths != stack.widths or source.cell != stack.cell:
        raise OptionError(
            "initial_state: copy hands the encoder's last state on, so both need the same cell, layers and width; use initial_state: final"
        )
    return CopiedInitialState()


def _cross_attention(spec: Spec, query_width: int, memory_width: int) -> nn.Module | None:
    kind = spec["attention"]
    if kind == "none":
        return None
    if kind == "parameterised":
        return Parameterised(query_width, memory_width, spec["attention_width"] or query_width)
    return {"simple": Simple, "bilinear": BilinearCrossAttention}[kind](query_width, memory_width)


def _transformer(
    spec: Spec, config: Spec, kind: Callable[..., nn.Module], cross_width: int | None
) -> nn.Module:
    dim, dropout, eps = (
        config["dim"],
        _dropout(spec, config),
        spec.get("norm_eps"),
    )  # folders of before have no such key
    position = make_position(spec["position"], dim, spec["max_positions"], eps)
    final = make_norm(dim, "post" if spec["norm"] == "pre" else "none", spec["norm_kind"], eps)
    causal = kind is TransformerDecoder
    layers = [_layer(spec, dim, dropout, causal, cross_width) for _ in range(spec["layers"])]
    return kind(layers, position=position, norm=final, dropout=dropout)


def _layer(spec: Spec, dim: int, dropout: float, causal: bool, cross_width: int | None) -> TransformerLayer:
    around = lambda: Residual(  # noqa: E731
        dim, norm=spec["norm"], norm_kind=spec["norm_kind"], norm_eps=spec.get("norm_eps"), dropout=dropout
    )
    feed = FeedForward(dim, spec["inner"], activation=spec["activation"], dropout=spec["inner_dropout"])
    heads, wide = spec["heads"], dim // spec["heads"]
    options = {
        "mask": None if spec["mask"] is None else make_mask(spec["mask"]),
        "bias": _bias(spec, wide, causal),
        "rotary": Rotary(wide) if spec["position"] == "rotary" else None,
        "energy": make_energy(spec["energy"], wide, heads),
        "normalize": make_normalizer(spec["normalize"]),
        "dropout": spec["attention_dropout"],
    }
    if spec["sliced"]:
        attention = SlicedMultiHead(dim, heads, **options)
    else:
        attention = MultiHead(dim, heads, key_heads=spec["key_heads"], **options)
    cross = None
    if cross_width is not None:
        cross = MultiHead(
            dim, heads, key_heads=spec["key_heads"], memory_dim=cross_width, dropout=spec["attention_dropout"]
        )
    return TransformerLayer(attention, feed, around, cross)


def make_position(name: str, dim: int, longest: int, eps: float | None = None) -> nn.Module:
    """What is done to the words' vectors; schemes that act on energies or on queries and keys leave them alone."""
    if name == "sinusoidal":
        return Sinusoidal(dim)
    if name == "learned":
        return Learned(longest, dim)
    if name == "learned-norm":
        return Normed(Learned(longest, dim), make_norm(dim, "post", "layer", eps))
    return WithChannel(Channel(scale=0.01), dim) if name == "channel" else NoPosition()


def _bias(spec: Spec, wide: int, causal: bool) -> Bias | None:
    name = spec["position"]
    if name == "alibi":
        return ALiBi(spec["heads"])
    if name == "relative-buckets":
        return RelativeBuckets(spec["heads"], causal=causal)
    return RelativeVectors(wide) if name == "relative-vectors" else None


def make_energy(name: str, wide: int, heads: int) -> Energy:
    if name in ("additive", "bilinear"):
        return {"additive": Additive, "bilinear": Bilinear}[name](wide, heads=heads)
    return {"dot": Dot, "scaled-dot": ScaledDot, "cosine": lambda: Cosine(math.sqrt(wide))}[name]()


def make_normalizer(name: str) -> Normalizer:
    return {"softmax": Softmax, "sparsemax": Sparsemax, "entmax": Entmax, "sigmoid": Sigmoid}[name]()


def make_mask(spec: Spec) -> Mask:
    """A mask by name, joined ones by their parts."""
    kind = spec["kind"]
    if kind in ("and", "or"):
        parts = [make_mask(part) for part in spec["of"]]
        joined = parts[0]
        for part in parts[1:]:
            joined = joined & part if kind == "and" else joined | part
        return joined
    if kind == "not":
        return ~make_mask(spec["of"])
    makers: dict[str, Callable[[], Mask]] = {
        "causal": Causal,
        "diagonal": Diagonal,
        "window": lambda: Window(spec["left"], spec["right"]),
        "centered": lambda: Window.centered(spec["width"]),
        "dilated": lambda: Dilated(spec["step"]),
        "prefix": lambda: Prefix(spec["length"]),
    }
    return makers[kind]()
