"""Texts in, labels out, with their probabilities, and on which words the model looked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from regard import arguments
from regard.attention.watching import Seen, watch
from regard.decoding.limits import max_positions
from regard.errors import OptionError
from regard.models.classifier import Classifier, predict
from regard.models.default import as_model
from regard.models.text_model import BATCH_TOKENS, batches
from regard.pipelines.token_words import Words

LOOKED = 4096  # tokens whose attention is in memory at once


class Classification(str):
    """The label of a text, with the probability of every label in `.probabilities`, likeliest first.

    It is empty for a blank text, which has no probabilities, and where the likeliest label is less likely than was asked for.
    """

    probabilities: dict[str, float]

    def __new__(cls, label: str, probabilities: dict[str, float] | None = None) -> Classification:
        made = super().__new__(cls, label)
        made.probabilities = {} if probabilities is None else probabilities
        return made

    @property
    def probability(self) -> float | None:
        """Of the likeliest label; None for a blank text."""
        return next(iter(self.probabilities.values()), None)


@dataclass(frozen=True)
class WordWeights:
    """How much attention each word of a text got. What is missing to 1 went to the mark at the end."""

    words: list[str]
    weights: list[float]


@overload
def classify(texts: str, model: Any = None, **options: Any) -> Classification: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def classify(texts: Sequence[str], model: Any = None, **options: Any) -> list[Classification]: ...


def classify(  # pyright: ignore[reportInconsistentOverload]
    texts: str | Sequence[str],
    model: Any = None,
    *,
    threshold: float = 0.0,
    batch_tokens: int = BATCH_TOKENS,
    progress: bool = False,
) -> Classification | list[Classification]:
    """Label one text, or a list of them in order, with probabilities.

    >>> regard.classify("a film to remember", "runs/sst2")
    'positive'
    >>> regard.classify(["a film to remember", "a bore"], model)[1].probabilities
    {'negative': 0.97, 'positive': 0.03}

    `model` is a folder, a loaded classifier, or left out for the default (the folder in REGARD_MODEL). A blank text stays
    without a label, and so does one whose likeliest label is below `threshold`. A text longer than
    the model's table of positions is labelled by its beginning; see `fitting`.
    """
    texts, one = arguments.one_or_more("texts", texts)
    model = as_model(model, "classify")
    _check(model, threshold, batch_tokens)
    progress = arguments.flag("progress", progress)
    filled = [i for i, text in enumerate(texts) if text.strip()]
    labels, found = predict(
        model, fitting(model, [texts[i] for i in filled]), batch_tokens, progress=progress
    )
    answers = [Classification("") for _ in texts]
    order = (-found).argsort(1, kind="stable")  # equal ones as the model orders its labels
    for i, label, row, best in zip(filled, labels, found.tolist(), order.tolist(), strict=True):
        sure = row[best[0]] >= threshold
        answers[i] = Classification(label if sure else "", {model.labels[at]: row[at] for at in best})
    return answers[0] if one else answers


def fitting(model: Classifier, texts: Sequence[str]) -> list[str]:
    """The texts, cut where a learned table of positions ends (the mark at the end takes one)."""
    most = max_positions(model.encoder)
    if most is None:
        return list(texts)
    room = most - model.prepend_bos
    found = list(texts)
    for i, text in enumerate(texts):
        if len(text.encode("utf-8", "surrogatepass")) < room - 1:  # no token is less than a byte
            continue
        spans = model.source_tokenizer._inner.encode(text, add_special_tokens=False).offsets
        if len(spans) > room - 1:
            found[i] = text[: spans[room - 2][1]] if room > 1 else ""
    return found


@torch.no_grad()
def word_attention(texts: Sequence[str], model: Classifier, batch_tokens: int = LOOKED) -> list[WordWeights]:
    """How much attention the words of each text got, in order.

    With attention pooling: the weights it takes the states by, the mean over queries and heads. Else, of the last layer with
    attention, what a word gets from all words of its text, the mean over them and over heads. A word gets what its pieces get.
    """
    _check(model, 0.0, batch_tokens)
    training, texts = model.training, fitting(model, arguments.string_list("texts", texts))
    found: dict[int, list[float]] = {}
    model.eval()
    try:
        for rows, tokens, lengths in batches(model, texts, batch_tokens):
            with watch(model) as seen:
                model(tokens.to(model.device), lengths.to(model.device))
            for i, weights in zip(rows, _received(seen, (lengths + model.prepend_bos).tolist()), strict=True):
                found[i] = weights[model.prepend_bos :].tolist()
    finally:
        model.train(training)
    return [_by_word(model, text, found[i]) for i, text in enumerate(texts)]


def _received(seen: Seen, lengths: list[int]) -> Iterator[Tensor]:
    """For each text of a batch the weight of every token, (S,)."""
    pooling = [name for name in seen if name.startswith("pooling")]
    encoder = [name for name in seen if name.startswith("encoder")]
    if pooling:
        weights = torch.stack([seen[name].weights().mean((1, 2)) for name in pooling]).mean(0)
        yield from (row[:length].double().cpu() for row, length in zip(weights, lengths, strict=True))
    elif encoder:
        last = seen[encoder[-1]]
        for i, length in enumerate(lengths):
            yield (last.column_sums(batch=i, query=slice(0, length)).mean(0)[:length] / length).double().cpu()
    else:
        raise OptionError(
            "this model has no attention, so there are no weights to show; use one with attention pooling or a Transformer "
            "encoder, as recipe sst2-attention trains"
        )


def _by_word(model: Classifier, text: str, weights: list[float]) -> WordWeights:
    words = Words.of_text(model.source_tokenizer, text)
    pieces = torch.tensor(weights[: len(words.owner)], dtype=torch.float64)
    return WordWeights(words.words, (pieces @ words.owner).tolist())


def _check(model: Any, threshold: float, batch_tokens: int) -> None:
    if not isinstance(model, Classifier) or getattr(model, "source_tokenizer", None) is None:
        raise OptionError("classify takes a classifier with its tokenizers, as regard.load gives it")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise OptionError(f"threshold is a probability between 0 and 1, got {threshold!r}")
    arguments.integer("batch_tokens", batch_tokens)
