"""A classifier: any encoder, any pooling, and a head that scores the labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.data.tokenizer import EOS, PAD, SPECIALS, UNK
from regard.files.progress import track
from regard.layers.dropout import Dropout
from regard.layers.feedforward import ACTIVATIONS
from regard.models.embedding import Embedding, put_bos_first
from regard.models.encoder import positions
from regard.models.loss import Loss
from regard.models.memory import Memory
from regard.models.model import Model

BATCH = 8192  # tokens that are read at a time


class Head(nn.Module):
    """Hidden layers between a text's vector and the scores of the labels."""

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
        wide = [width] + [inner] * layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(wide))
        self.labels = nn.Linear(wide[-1], labels)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = ACTIVATIONS[self.activation](layer(self.dropout(x)))
        return self.labels(self.dropout(x))


class Classifier(Model):
    """p(label | text) = softmax(head(pooling(encoder(words)))).

    In training every word is unknown with probability `word_dropout`, so that no answer hangs on one word and the vector of
    unknown words means something. `prepend_bos` puts BOS in front of a text, where BERT has its CLS.
    """

    kind = "classifier"

    def __init__(
        self,
        source: Embedding,
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
        """What is told apart, in the order of the scores."""
        return self.target_tokenizer.entries

    def encode(self, tokens: Tensor, lengths: Tensor | None = None) -> Memory:
        """Words (batch, S) → the states that are pooled."""
        if self.training and self.word_dropout:
            lost = torch.empty(tokens.shape, device=tokens.device).bernoulli_(self.word_dropout).bool() & (
                tokens > EOS
            )
            tokens = tokens.masked_fill(lost, UNK)
        if self.prepend_bos:
            tokens, lengths = put_bos_first(tokens, lengths)
        return self.encoder(self.source(tokens), lengths)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Scores of the labels: (batch, S) → (batch, labels)."""
        return self.head(self.pooling(self.encode(tokens, lengths)))

    def counted(self, source: Tensor, target: Tensor) -> Tensor:
        return self(source)

    def loss(self, batch: Batch, smoothing: float = 0.0, state: Any = None, agreement: float = 0.0) -> Loss:
        """The label is the one token of the target. With `agreement` each text is read twice under different dropout."""
        assert batch.source is not None
        tokens, lengths = batch.source, batch.source_lengths
        if agreement:
            tokens, lengths = tokens.repeat(2, 1), None if lengths is None else lengths.repeat(2)
        scores = self(tokens, lengths)
        return label_loss(scores, batch.target[:, 1] - len(SPECIALS), smoothing, agreement)


def label_loss(scores: Tensor, labels: Tensor, smoothing: float = 0.0, agreement: float = 0.0) -> Loss:
    """Σ −log softmax(scores)[label], smoothed and with R-Drop's agreement as in `regard.models.loss.cross_entropy`.

    scores (batch, labels), or twice as many rows with `agreement`: two readings of the same texts.
    """
    log_p = torch.log_softmax(scores if scores.dtype == torch.float64 else scores.float(), -1)
    log_p = log_p.unflatten(0, (2 if agreement else 1, len(labels)))  # (readings, batch, labels)
    wrong = -log_p.gather(-1, labels.expand(len(log_p), -1)[..., None]).sum((1, 2)).mean()
    total = wrong if not smoothing else (1 - smoothing) * wrong - smoothing * log_p.mean(-1).sum(-1).mean()
    if agreement:
        one, other = log_p
        total = total + agreement / 4 * ((one.exp() - other.exp()) * (one - other)).sum()  # KL there and back
    return Loss(total, wrong.detach(), len(labels))


@torch.no_grad()
def predict(
    model: Classifier, texts: Sequence[str], batch_tokens: int = BATCH, *, progress: bool = False
) -> tuple[list[str], NDArray[np.float32]]:
    """The likeliest label of each text, and the probabilities of all, (texts, labels), in the order of `model.labels`.

    Texts of similar length are read together; every answer stands where its text stood.
    """
    training, found = model.training, np.zeros((len(texts), len(model.labels)), np.float32)
    model.eval()
    with track(len(texts), "classifying", "texts") if progress else nullcontext() as bar:
        most = positions(model.encoder)
        for rows, tokens, lengths in batches(model, texts, batch_tokens, most and most - model.prepend_bos):
            scores = model(tokens.to(model.device), lengths.to(model.device))
            found[rows] = torch.softmax(scores.double(), -1).float().cpu().numpy()
            if bar is not None:
                bar.advance(len(rows))
    model.train(training)
    return [model.labels[best] for best in found.argmax(-1)], found


def batches(
    model: Any, texts: Sequence[str], batch_tokens: int = BATCH, longest: int | None = None
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Texts as tokens x1 … xn EOS, those of similar length together: their places, (batch, S) and lengths. With `longest` a
    text is cut to that many tokens.
    """
    kept = None if longest is None else longest - 1
    ids = [[*each[:kept], EOS] for each in model.source_tokenizer.encode_batch(list(texts))]
    order = sorted(range(len(ids)), key=lambda at: -len(ids[at]))
    start = 0
    while start < len(order):
        width = len(ids[order[start]])
        rows = order[start : start + max(1, batch_tokens // width)]
        start += len(rows)
        tokens = np.full(
            (len(rows), width), PAD
        )  # filled here: a tensor for each text would take longer than reading it
        for place, at in enumerate(rows):
            tokens[place, : len(ids[at])] = ids[at]
        yield rows, torch.from_numpy(tokens), torch.tensor([len(ids[at]) for at in rows])
