"""A diagnostic for attention: does it help another model? (Wiegreffe & Pinter 2019, section 3.4)

A perceptron scores each token without context, and the scores are averaged by given weights: uniform ones,
ones that it learns, or the frozen attention of the model. If the model's attention gives the best classifier,
its weights tell which tokens matter for the task, not only inside the model. Sequences of numbers have frames
in place of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard import arguments
from regard.data.frame_encoder import FrameEncoder
from regard.data.tokenizer import PAD, Tokenizer
from regard.errors import DataError, OptionError
from regard.files.progress import Progress, track
from regard.models.classifier import Classifier
from regard.pipelines.classify import token_attention, truncate

GUIDES = ("uniform", "learned", "model")
WIDTH, BATCH, EPOCHS, LEARNING_RATE, DROPOUT = 48, 128, 5, 4e-3, 0.3


@dataclass(frozen=True)
class DiagnosticResult:
    """Accuracy of the perceptron on the test texts by guide, one entry per repetition.

    Attributes:
        uniform: guided by equal weights.
        learned: guided by attention weights that it learns itself.
        model: guided by the frozen attention of the model.
    """

    uniform: list[float]
    learned: list[float]
    model: list[float]

    @property
    def means(self) -> dict[str, float]:
        """The mean accuracy of each guide."""
        return {guide: float(np.mean(getattr(self, guide))) for guide in GUIDES}

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {guide: list(getattr(self, guide)) for guide in GUIDES} | {"means": self.means}

    def __str__(self) -> str:
        means = self.means
        return (
            "diagnostic perceptron:\n"
            f"    Without context, its accuracy is {means['model']:.3f} with the model's attention, "
            f"{means['uniform']:.3f} with uniform weights, {means['learned']:.3f} with weights it learns."
        )


class TokenPerceptron(nn.Module):
    """softmax(W Σ_t a_t tanh(V e_t)): tokens without context, averaged by weights a.

    e is the embedding of a token, or a linear map of a frame.
    """

    def __init__(self, source: Tokenizer, labels: int, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = (
            nn.Linear(len(source), width)
            if isinstance(source, FrameEncoder)
            else nn.Embedding(len(source), width, padding_idx=PAD)
        )
        self.hidden, self.labels = nn.Linear(width, width), nn.Linear(width, labels)
        self.energy = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1, bias=False))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, tokens: Tensor, inside: Tensor, weights: Tensor | None) -> Tensor:
        """Tokens (batch, S) or frames (batch, S, channels) → scores (batch, labels).

        `inside` (batch, S) is False at padding. Without weights (batch, S) it computes its own.
        """
        hidden = torch.tanh(self.hidden(self.dropout(self.embedding(tokens))))  # (batch, S, width)
        if weights is None:
            energy = self.energy(hidden)[..., 0].masked_fill(~inside, -torch.inf)
            weights = torch.softmax(energy, -1)
        return self.labels(self.dropout((weights[..., None] * hidden).sum(1)))


def diagnostic_mlp(
    model: Classifier,
    train: tuple[Sequence[str], Sequence[str]],
    test: tuple[Sequence[str], Sequence[str]],
    *,
    repeats: int = 3,
    epochs: int = EPOCHS,
    seed: int = 0,
    progress: bool = False,
) -> DiagnosticResult:
    """Train the perceptron with each guide and compare the accuracies.

    Args:
        model: a classifier with attention.
        train: texts, or sequences of numbers, and labels to learn from.
        test: texts, or sequences of numbers, and labels to score.
        repeats: trainings with different seeds, per guide.
        epochs: passes over the training texts.
        seed: the first seed.
        progress: show a progress bar.
    """
    if not isinstance(model, Classifier):
        what = getattr(model, "what", type(model).__name__)
        raise OptionError(f"the diagnostic perceptron is for classifiers, got {what}")
    for name, value in {"repeats": repeats, "epochs": epochs}.items():
        arguments.integer(name, value)
    arguments.integer("seed", seed, 0)
    train_texts, test_texts = _Texts.of(model, "train", train), _Texts.of(model, "test", test)
    accuracies: dict[str, list[float]] = {guide: [] for guide in GUIDES}
    total = len(GUIDES) * repeats * epochs * len(train_texts.labels)
    with track(total, "diagnostic perceptron", "rows") if progress else nullcontext() as bar:
        for guide in GUIDES:
            for repeat in range(repeats):
                accuracy = _train(model, train_texts, test_texts, guide, seed + repeat, epochs, bar)
                accuracies[guide].append(accuracy)
    return DiagnosticResult(**accuracies)


@dataclass(frozen=True)
class _Texts:
    tokens: Tensor  # (texts, S), or frames (texts, S, channels)
    inside: Tensor  # (texts, S), False at padding
    weights: dict[str, Tensor | None]  # by guide: (texts, S)
    labels: Tensor  # (texts,)

    @classmethod
    def of(cls, model: Classifier, name: str, pair: tuple[Sequence[str], Sequence[str]]) -> _Texts:
        if not isinstance(pair, tuple) or len(pair) != 2 or len(pair[0]) != len(pair[1]) or not len(pair[0]):
            raise DataError(f"{name} must be a pair of texts and as many labels")
        texts, labels = pair
        index = {label: i for i, label in enumerate(model.labels)}
        if unknown := set(labels) - set(index):
            raise DataError(f"{name} has the label {min(unknown)!r}, which the model does not know")
        source = model.source_tokenizer
        dtype = torch.float32 if isinstance(source, FrameEncoder) else torch.long
        ids = [torch.as_tensor(row, dtype=dtype) for row in source.encode_batch(truncate(model, texts))]
        attention = zip(ids, token_attention(texts, model), strict=True)
        tokens = pad_sequence(ids, batch_first=True, padding_value=PAD)
        weights = pad_sequence([torch.tensor(w[: len(row)]) for row, w in attention], True)  # without EOS
        inside = torch.arange(tokens.shape[1]) < torch.tensor([[len(row)] for row in ids])
        uniform = inside / inside.sum(1, keepdim=True).clamp(min=1)
        frozen = weights / weights.sum(1, keepdim=True).clamp(min=1e-12)
        guides = {"uniform": uniform, "learned": None, "model": frozen}
        return cls(tokens, inside, guides, torch.tensor([index[label] for label in labels]))

    def batch(self, rows: Tensor, guide: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens, where they are, and weights of some texts, as wide as the longest of them."""
        width = max(1, int(self.inside[rows].sum(1).max()))
        weights = self.weights[guide]
        return (
            self.tokens[rows, :width],
            self.inside[rows, :width],
            None if weights is None else weights[rows, :width],
        )


def _train(
    model: Classifier, train: _Texts, test: _Texts, guide: str, seed: int, epochs: int, bar: Progress | None
) -> float:
    """Train one perceptron; return its accuracy on the test texts."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        perceptron = TokenPerceptron(model.source_tokenizer, len(model.labels))
        optimizer = torch.optim.Adam(perceptron.parameters(), lr=LEARNING_RATE)
        for _ in range(epochs):
            for rows in torch.randperm(len(train.labels)).split(BATCH):
                scores = perceptron(*train.batch(rows, guide))
                optimizer.zero_grad()
                nn.functional.cross_entropy(scores, train.labels[rows]).backward()
                optimizer.step()
                if bar is not None:
                    bar.advance(len(rows))
    perceptron.eval()
    with torch.no_grad():
        scores = [perceptron(*test.batch(rows, guide)) for rows in torch.arange(len(test.labels)).split(256)]
    return float((torch.cat(scores).argmax(-1) == test.labels).double().mean())
