"""A text classifier: encoder, pooling, and a head that scores the labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from regard import arguments
from regard.data.batch import Batch
from regard.data.tokenizer import EOS, SPECIALS, UNK
from regard.errors import OptionError
from regard.files.progress import track
from regard.layers.dropout import Dropout
from regard.layers.feedforward import ACTIVATIONS
from regard.models.chunked_loss import Loss
from regard.models.embedding import Embedding, prepend_bos
from regard.models.encoder import max_positions
from regard.models.frames import FrameProjection
from regard.models.memory import Memory
from regard.models.model import Model
from regard.models.ngrams import NgramEmbedding
from regard.models.options import MODELS, Block, PoolingOptions, Size, build_encoder
from regard.models.options import Dropout as DropoutRate
from regard.models.pooling import MaxPoolingOptions
from regard.models.text_model import BATCH_TOKENS, TextModelOptions, batches


class HeadOptions(Block):
    """The layers that score the labels from the vector of a text."""

    layers: Annotated[int, Field(ge=0)] = Field(
        default=0, description="hidden layers; 0: a linear layer only"
    )
    width: Size = Field(default=128, description="width of the hidden layers")
    activation: Literal["relu", "gelu", "swish", "tanh"] = Field(
        default="relu", description="activation of the hidden layers"
    )
    dropout: DropoutRate = Field(default=0.0, description="dropout of the text vector and the hidden layers")


@MODELS.add("classifier")
class ClassifierOptions(TextModelOptions):
    """One label for a text."""

    kind: Literal["classifier"] = "classifier"
    pooling: PoolingOptions = Field(
        default=MaxPoolingOptions(), description="how the states of a text become one vector"
    )
    head: HeadOptions = HeadOptions()

    def check(self) -> Iterator[str]:
        yield from super().check()
        yield from self.pooling.check(self.encoder.width_of(self.dim), "model.pooling")

    def build(self, source_vocab: int | None, target_vocab: int) -> Classifier:
        assert source_vocab is not None
        rate = getattr(self.encoder, "embedding_dropout", 0.0)
        source: Any = self.input.build_input(
            source_vocab, self.dim, scaled=self.scale_embeddings, embedding_dropout=rate
        )
        encoder = build_encoder(self.encoder, self.dim, self.dropout)
        pooling: Any = self.pooling.build(encoder.width)
        head = Head(
            pooling.width,
            target_vocab - len(SPECIALS),
            self.head.layers,
            self.head.width,
            activation=self.head.activation,
            dropout=self.head.dropout,
        )
        options = {"word_dropout": self.word_dropout, "prepend_bos": self.prepend_bos}
        return Classifier(source, encoder, pooling, head, **options)


class Head(nn.Module):
    """Hidden layers between the vector of a text and the scores of the labels."""

    def __init__(
        self,
        width: int,
        labels: int,
        layers: int = 0,
        inner: int = 128,
        *,
        activation: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation, self.dropout = activation, Dropout(dropout)
        widths = [width] + [inner] * layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.labels = nn.Linear(widths[-1], labels)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = ACTIVATIONS[self.activation](layer(self.dropout(x)))
        return self.labels(self.dropout(x))


class Classifier(Model):
    """p(label | text) = softmax(head(pooling(encoder(embedding(tokens))))).

    In training, tokens are replaced by UNK with probability `word_dropout`: this regularizes and trains the
    embedding of UNK. `prepend_bos` puts BOS before a text, like BERT's CLS token.
    """

    kind = "classifier"

    def __init__(
        self,
        source: Embedding | NgramEmbedding | FrameProjection,
        encoder: nn.Module,
        pooling: nn.Module,
        head: Head,
        *,
        word_dropout: float = 0.0,
        prepend_bos: bool = False,
    ) -> None:
        super().__init__()
        self.source, self.encoder, self.pooling, self.head = source, encoder, pooling, head
        self.word_dropout, self.prepend_bos = word_dropout, prepend_bos

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the scores."""
        return self.target_tokenizer.entries

    def encode(self, tokens: Tensor, lengths: Tensor | None = None) -> Memory:
        """Tokens (batch, S) or frames (batch, S, channels) → encoder states, before pooling."""
        if self.training and self.word_dropout:
            drawn = torch.empty(tokens.shape, device=tokens.device).bernoulli_(self.word_dropout).bool()
            tokens = tokens.masked_fill(drawn & (tokens > EOS), UNK)
        if self.prepend_bos:
            tokens, lengths = prepend_bos(tokens, lengths)
        return self.encoder(self.source(tokens), lengths)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Scores of the labels: (batch, S) → (batch, labels)."""
        return self.head(self.pooling(self.encode(tokens, lengths)))

    def forward_for_flops(self, source: Tensor, target: Tensor) -> Tensor:
        return self(source)

    def loss(self, batch: Batch, smoothing: float = 0.0, state: Any = None, agreement: float = 0.0) -> Loss:
        """Cross-entropy of the label, the only target token. With `agreement`, two passes and R-Drop."""
        assert batch.source is not None
        tokens, lengths = batch.source, batch.source_lengths
        if agreement:
            tokens, lengths = torch.cat([tokens] * 2), None if lengths is None else lengths.repeat(2)
        scores = self(tokens, lengths)
        return label_loss(scores, batch.target[:, 1] - len(SPECIALS), smoothing, agreement)


def label_loss(scores: Tensor, labels: Tensor, smoothing: float = 0.0, agreement: float = 0.0) -> Loss:
    """Σ −log softmax(scores)[label], with label smoothing and R-Drop as in `chunked_loss.cross_entropy`.

    scores is (batch, labels), or (2 · batch, labels) with `agreement`: two passes over the same texts.
    """
    log_p = torch.log_softmax(scores if scores.dtype == torch.float64 else scores.float(), -1)
    log_p = log_p.unflatten(0, (2 if agreement else 1, len(labels)))  # (passes, batch, labels)
    nll = -log_p.gather(-1, labels.expand(len(log_p), -1)[..., None]).sum((1, 2)).mean()
    total = nll if not smoothing else (1 - smoothing) * nll - smoothing * log_p.mean(-1).sum(-1).mean()
    if agreement:
        one, other = log_p
        # KL in both directions.
        total = total + agreement / 4 * ((one.exp() - other.exp()) * (one - other)).sum()
    return Loss(total, nll.detach(), len(labels))


class ClassifierEnsemble:
    """Several classifiers as one: the probability of a label is the mean of theirs.

    >>> first, second = regard.load("runs/trec"), regard.load("runs/trec-ngrams")  # doctest: +SKIP
    >>> regard.classify("Who was Galileo ?", ClassifierEnsemble([first, second]))  # doctest: +SKIP
    'HUM'

    The models must have the same labels and be on one device; tokenizers, encoders and sizes may differ.
    """

    kind, encoder = Classifier.kind, None  # each model has its own encoder

    def __init__(self, models: Sequence[Classifier]) -> None:
        self.models = arguments.as_list("models", models, "a list of classifiers")
        if not self.models:
            raise OptionError("an ensemble needs at least one model, got none")
        for i, model in enumerate(self.models, 1):
            if not isinstance(model, Classifier):
                raise OptionError(f"model {i} of the ensemble is not a classifier; leave it out")
            self._check(i, model)
        first = self.models[0]
        self.labels, self.device = first.labels, first.device
        self.what, self.command = first.what, first.command
        card = getattr(first, "card", {})
        self.card = {key: card[key] for key in ("name", "recipe") if key in card}  # not its scores and cost
        self.source_tokenizer, self.target_tokenizer = first.source_tokenizer, first.target_tokenizer

    def _check(self, number: int, model: Classifier) -> None:
        """Compare a model with the first."""
        first = self.models[0]
        reads_text = [m.source_tokenizer.kind != "frames" for m in (first, model)]
        if reads_text[0] != reads_text[1]:
            raise OptionError(
                f"model 1 and model {number} of the ensemble read different inputs, text and sequences of "
                "numbers; use models that read the same"
            )
        if different := set(first.labels) ^ set(model.labels):
            raise OptionError(
                f"model 1 and model {number} of the ensemble have different labels, such as "
                f"{min(different)!r}; use models with the same labels"
            )
        if model.device != first.device:
            raise OptionError("the models of an ensemble are on different devices; load them on one")


@torch.no_grad()
def predict(
    model: Classifier | ClassifierEnsemble,
    texts: Sequence[str],
    batch_tokens: int = BATCH_TOKENS,
    *,
    progress: bool = False,
) -> tuple[list[str], NDArray[np.float32]]:
    """The most likely label of each text, and all probabilities, (texts, labels).

    Columns are in the order of `model.labels`, rows in that of the texts. Texts of similar length form a
    batch.
    """
    models = model.models if isinstance(model, ClassifierEnsemble) else [model]
    probabilities = np.zeros((len(texts), len(model.labels)), np.float32)
    with track(len(models) * len(texts), "classifying", "texts") if progress else nullcontext() as bar:
        for member in models:
            probabilities += _probabilities(member, texts, batch_tokens, bar)
    probabilities /= len(models)
    return [model.labels[best] for best in probabilities.argmax(-1)], probabilities


def _probabilities(
    model: Classifier, texts: Sequence[str], batch_tokens: int, bar: Any
) -> NDArray[np.float32]:
    """The probabilities of one model; `bar` shows the progress, or is None."""
    training, probabilities = model.training, np.zeros((len(texts), len(model.labels)), np.float32)
    model.eval()
    most = max_positions(model.encoder)
    longest = None if most is None else most - model.prepend_bos
    for rows, tokens, lengths in batches(model, texts, batch_tokens, longest):
        scores = model(tokens.to(model.device), lengths.to(model.device))
        probabilities[rows] = torch.softmax(scores.double(), -1).float().cpu().numpy()
        if bar is not None:
            bar.advance(len(rows))
    model.train(training)
    return probabilities
