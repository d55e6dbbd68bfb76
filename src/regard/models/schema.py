"""The `model:` block of a recipe: encoders, decoders and masks by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

LARGEST = 1 << 31  # of any count; torch and numpy fail beyond, each in its own way
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Size = Annotated[int, Field(ge=1, le=1 << 24)]  # of a model: no folder with a larger one is read
Dropout = Annotated[float, Field(ge=0, lt=1)]
Position = Literal[
    "sinusoidal", "learned", "learned-norm", "channel", "rotary", "alibi", "relative-buckets", "relative-vectors", "none",
]  # fmt: skip


class Block(BaseModel):
    """The parent of every block: no unknown key, no silent conversion, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def by_kind(default: str | None) -> Discriminator:
    """Which class a block is, by its `kind`; `default` when it has none."""

    def of(value: Any) -> str | None:
        kind = value.get("kind", default) if isinstance(value, dict) else getattr(value, "kind", None)
        return kind if isinstance(kind, str) else None

    return Discriminator(of)


class CausalMask(Block):
    """No token after oneself."""

    kind: Literal["causal"] = "causal"


class WindowMask(Block):
    """Neighbours: t − left ≤ s ≤ t + right; null leaves a side open."""

    kind: Literal["window"] = "window"
    left: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="how many tokens to the left are seen; null: all"
    )
    right: Annotated[int, Field(ge=0)] | None = Field(
        default=0, description="how many tokens to the right are seen; null: all"
    )


class CenteredMask(Block):
    """Schmidt-Thieme's restricted attention: distance at most width/2."""

    kind: Literal["centered"] = "centered"
    width: Annotated[int, Field(ge=0)] = Field(description="Schmidt-Thieme's K: K/2 tokens on each side")


class DilatedMask(Block):
    """Every step-th token."""

    kind: Literal["dilated"] = "dilated"
    step: Size = Field(description="a token is seen when its distance is divisible by this")


class DiagonalMask(Block):
    """Oneself alone; inside `not`, all but oneself."""

    kind: Literal["diagonal"] = "diagonal"


class PrefixMask(Block):
    """The first tokens are seen by all."""

    kind: Literal["prefix"] = "prefix"
    length: Annotated[int, Field(ge=0)] = Field(description="how many tokens the prefix has")


class BothMask(Block):
    """Allowed by every one of several masks."""

    kind: Literal["and"] = "and"
    of: Annotated[list[Mask], Field(min_length=1)] = Field(description="the masks that are joined")


class EitherMask(Block):
    """Allowed by any of several masks."""

    kind: Literal["or"] = "or"
    of: Annotated[list[Mask], Field(min_length=1)] = Field(description="the masks that are joined")


class NotMask(Block):
    """Allowed where the other forbids."""

    kind: Literal["not"] = "not"
    of: Mask = Field(description="the mask that is turned round")


def spelled_out(value: Any) -> Any:
    return (
        {"kind": value} if isinstance(value, str) else value
    )  # `mask: diagonal` is `mask: {kind: diagonal}`


Mask = Annotated[
    Annotated[CausalMask, Tag("causal")]
    | Annotated[WindowMask, Tag("window")]
    | Annotated[CenteredMask, Tag("centered")]
    | Annotated[DilatedMask, Tag("dilated")]
    | Annotated[DiagonalMask, Tag("diagonal")]
    | Annotated[PrefixMask, Tag("prefix")]
    | Annotated[BothMask, Tag("and")]
    | Annotated[EitherMask, Tag("or")]
    | Annotated[NotMask, Tag("not")],
    by_kind(None),
    BeforeValidator(spelled_out),
]
for _block in (BothMask, EitherMask, NotMask):  # which name masks before there are any
    _block.model_rebuild()


class Transformer(Block):
    """Self-attention and a feed-forward sublayer, stacked (Vaswani et al. 2017); the width is the model's `dim`."""

    kind: Literal["transformer"] = "transformer"
    layers: Size = Field(default=6, description="how many layers")
    heads: Size = Field(default=8, description="heads of each attention; they divide the width")
    key_heads: Size | None = Field(
        default=None, description="heads of keys and values, shared in groups; null: as many as heads"
    )
    inner: Size = Field(default=2048, description="width inside the feed-forward sublayer")
    norm: Literal["post", "pre", "none"] = Field(
        default="post", description="normalise after each residual sum, before each branch, never"
    )
    norm_kind: Literal["layer", "rms"] = Field(default="layer", description="LayerNorm or RMSNorm")
    norm_eps: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="added to the variance by which it divides; null: torch's own"
    )
    activation: Literal["relu", "gelu", "gelu-tanh", "swish", "swiglu"] = Field(
        default="relu", description="of the feed-forward sublayer"
    )
    position: Position = Field(default="sinusoidal", description="how order enters")
    max_positions: Size = Field(default=1024, description="rows of a learned position table")
    mask: Mask | None = Field(
        default=None,
        description="which tokens self-attention may see, beside padding (and the future, in a decoder)",
    )
    sliced: bool = Field(
        default=False,
        description="heads that each see a slice of the input (Schmidt-Thieme's form), not a full projection",
    )
    energy: Literal["dot", "scaled-dot", "cosine", "additive", "bilinear"] = Field(
        default="scaled-dot", description="of self-attention"
    )
    normalize: Literal["softmax", "sparsemax", "entmax", "sigmoid"] = Field(
        default="softmax", description="of self-attention"
    )
    dropout: Dropout | None = Field(
        default=None, description="of embeddings and residual branches; null: the model's"
    )
    attention_dropout: Dropout = Field(default=0.0, description="of the attention weights")
    inner_dropout: Dropout = Field(default=0.0, description="inside the feed-forward sublayer")


class EmbeddingOnly(Block):
    """The words' own vectors, not read any further: a bag of words."""

    kind: Literal["embedding"] = "embedding"
    dropout: Dropout | None = Field(default=None, description="of embeddings; null: the model's")
    embedding_dropout: Dropout = Field(
        default=0.0, description="whole words of the embedding table (Gal & Ghahramani 2016)"
    )


class Kim(Block):
    """Convolutions of several widths side by side (Kim 2014), for max pooling."""

    kind: Literal["kim"] = "kim"
    kernels: Annotated[list[Size], Field(min_length=1)] = Field(
        default=[3, 4, 5], description="words that each one reads together"
    )
    width: Size = Field(default=100, description="features of each kernel")
    dropout: Dropout | None = Field(default=None, description="of embeddings; null: the model's")


class Recurrent(Block):
    """An RNN, GRU or LSTM that reads."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = Field(default="gru", description="the recurrent cell")
    layers: Size = Field(default=1, description="how many layers")
    width: Size | None = Field(
        default=None, description="width of each layer's output, both directions together; null: dim"
    )
    bidirectional: bool = Field(default=True, description="read from both ends, half the width each")
    dropout: Dropout | None = Field(
        default=None, description="of embeddings and between layers; null: the model's"
    )


class Convolutional(Block):
    """Stacked convolutions that read."""

    kind: Literal["convolutional"] = "convolutional"
    layers: Size = Field(default=4, description="how many layers")
    kernel: Size = Field(default=3, description="neighbours each layer sees")
    width: Size | None = Field(default=None, description="width of each layer's output; null: dim")
    position: Literal["sinusoidal", "learned", "channel", "none"] = Field(
        default="sinusoidal", description="how order enters"
    )
    max_positions: Size = Field(default=1024, description="rows of a learned position table")
    dropout: Dropout | None = Field(
        default=None, description="of embeddings and residual branches; null: the model's"
    )


class Above(Transformer):
    """The self-attention of a stacked encoder, whose order is already in what it reads."""

    layers: Size = Field(default=1, description="how many layers")
    position: Position = Field(default="none", description="how order enters")


class Stacked(Block):
    """Self-attention on top of a recurrent or convolutional encoder."""

    kind: Literal["stacked"] = "stacked"
    below: Annotated[
        Annotated[Recurrent, Tag("recurrent")] | Annotated[Convolutional, Tag("convolutional")],
        by_kind("recurrent"),
    ] = Field(default=Recurrent(), description="the encoder that reads the words")
    above: Above = Field(default=Above(), description="the self-attention on top of it")


Encoder = Annotated[
    Annotated[Transformer, Tag("transformer")]
    | Annotated[Recurrent, Tag("recurrent")]
    | Annotated[Convolutional, Tag("convolutional")]
    | Annotated[Stacked, Tag("stacked")]
    | Annotated[EmbeddingOnly, Tag("embedding")]
    | Annotated[Kim, Tag("kim")],
    by_kind("transformer"),
]


class RecurrentDecoder(Block):
    """A recurrent decoder whose attention, if any, does not enter the recurrence unless `input_feeding` says so."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = Field(default="gru", description="the recurrent cell")
    layers: Size = Field(default=1, description="how many layers")
    width: Size | None = Field(default=None, description="width of each layer; null: dim")
    last_width: Size | None = Field(
        default=None, description="width of the last layer, where it differs; null: width"
    )
    attention: Literal["none", "simple", "parameterised", "bilinear"] = Field(
        default="none", description="attention to the encoder's states"
    )
    attention_width: Size | None = Field(
        default=None, description="width of queries, keys and values of a parameterised attention"
    )
    input_feeding: bool = Field(
        default=False, description="the last attention vector is part of the next input (Luong et al. 2015)"
    )
    initial_state: Literal["final", "mean", "copy"] = Field(
        default="final",
        description="initial state: a learned map of the encoder's final or mean state, or the final state itself",
    )
    dropout: Dropout | None = Field(
        default=None, description="of embeddings and between layers; null: the model's"
    )
    dropout_input: Dropout | None = Field(
        default=None, description="of the embedded words, one mask for a whole sequence; null: `dropout`"
    )
    dropout_hidden: Dropout | None = Field(
        default=None, description="between layers, one mask for a whole sequence; null: `dropout`"
    )
    dropout_output: Dropout | None = Field(
        default=None, description="of the last layer, one mask for a whole sequence; null: `dropout`"
    )
    dropout_weight: Dropout = Field(
        default=0.0, description="DropConnect on the recurrent matrices (Merity et al. 2018)"
    )
    embedding_dropout: Dropout = Field(
        default=0.0, description="whole words of the embedding table (Gal & Ghahramani 2016)"
    )


class Bahdanau(Block):
    """Additive attention of the last state, whose context enters the recurrence (Bahdanau et al. 2015)."""

    kind: Literal["bahdanau"] = "bahdanau"
    cell: Literal["rnn", "gru", "lstm"] = Field(default="gru", description="the recurrent cell")
    layers: Size = Field(default=1, description="how many layers")
    width: Size | None = Field(default=None, description="width of each layer; null: dim")
    attention_width: Size | None = Field(
        default=None, description="width inside the additive energy; null: the layer's width"
    )
    initial_state: Literal["final", "mean", "copy"] = Field(
        default="final",
        description="initial state: a learned map of the encoder's final or mean state, or the final state itself",
    )
    dropout: Dropout | None = Field(
        default=None, description="of embeddings and between layers; null: the model's"
    )


Decoder = Annotated[
    Annotated[Transformer, Tag("transformer")]
    | Annotated[RecurrentDecoder, Tag("recurrent")]
    | Annotated[Bahdanau, Tag("bahdanau")],
    by_kind("transformer"),
]


class AutoregressiveBlock(Block):
    """What writes a text: a translator, or a language model."""

    kind: Literal["autoregressive"] = "autoregressive"
    dim: Size = Field(default=512, description="width of the embeddings and of a Transformer")
    tie: Literal["all", "target", "none"] = Field(
        default="all",
        description="one matrix for source, target and output words; for target and output; for none",
    )
    scale_embeddings: bool = Field(
        default=True, description="word vectors times √dim, as a table that the output shares needs"
    )
    output_bias: bool | None = Field(
        default=None,
        description="a number per word that is added to the scores; null: in language models alone",
    )
    dropout: Dropout = Field(
        default=0.1, description="of embeddings and residual branches, where encoder and decoder say nothing"
    )
    shared_recurrence: bool = Field(
        default=False, description="one recurrence reads and writes: one W^h for encoder and decoder"
    )
    encoder: Encoder | None = Field(
        default=None,
        description="what reads the source; null: a Transformer in translators, and language models have none",
    )
    decoder: Decoder = Field(default=Transformer(), description="what writes the target")
