"""`classify`: texts in, labels with probabilities out; `word_attention`: the attention to each word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from regard import arguments
from regard.attention.watching import Seen, watch
from regard.data.sequence_files import is_sequence
from regard.decoding.attention_weights import AttentionMaps
from regard.decoding.batching import evaluation_mode
from regard.errors import OptionError
from regard.models.classifier import Classifier, ClassifierEnsemble, predict
from regard.models.default import as_model
from regard.models.encoder import max_positions
from regard.models.text_model import BATCH_TOKENS, batches
from regard.pipelines.encoder_attention import ATTENTION_TOKENS, check_single, encoder_attention
from regard.pipelines.text_warnings import warn_of_unknown_characters
from regard.pipelines.token_words import Words


class Classification(str):
    """The label of a text, a string with attributes; empty for a blank text and below the threshold.

    Attributes:
        probabilities: the probability of every label, most likely first; empty for a blank text.
        attention: the attention maps, with `classify(…, attention=True)`; None for a blank text.
    """

    probabilities: dict[str, float]
    attention: AttentionMaps | None

    def __new__(cls, label: str, probabilities: dict[str, float] | None = None) -> Classification:
        classification = super().__new__(cls, label)
        classification.probabilities = {} if probabilities is None else probabilities
        classification.attention = None
        return classification

    @property
    def probability(self) -> float | None:
        """The probability of the most likely label; None for a blank text."""
        return next(iter(self.probabilities.values()), None)


@dataclass(frozen=True)
class WordWeights:
    """The attention to each word of a text; the rest to 1 is attention to the end-of-sentence token."""

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
    attention: bool = False,
    progress: bool = False,
) -> Classification | list[Classification]:
    """Classify a text or a list of texts.

    >>> regard.classify("a film to remember", "film-reviews")
    'positive'
    >>> probabilities = regard.classify(["a film to remember", "a bore"], "film-reviews")[0].probabilities
    >>> round(probabilities["positive"], 2)
    0.86

    Args:
        texts: one text or a list of texts; the result has the same form and order. A text that is longer than
            the model's positions is truncated; a blank text gets no label. A model of sequences of numbers
            takes files (.npy, .csv) or arrays (frames, channels) instead.
        model: a model folder, a name of `regard models`, a loaded classifier or a `ClassifierEnsemble` of
            them. By default the folder in REGARD_MODEL, else a bundled model.
        threshold: give no label if the most likely one is below this probability.
        batch_tokens: maximum size of a batch.
        attention: store the attention maps of all layers and heads in `Classification.attention`, which
            `plot` draws.
        progress: show a progress bar.
    """
    attention, progress = arguments.flag("attention", attention), arguments.flag("progress", progress)
    texts = arguments.reusable(texts)
    if not is_sequence(texts):
        arguments.one_or_more("texts", texts)
    model = as_model(model, "classify")
    _check(model, threshold, batch_tokens)
    if attention:
        check_single(model)
    tokenizer = model.source_tokenizer
    texts, single = tokenizer.inputs(texts)
    warn_of_unknown_characters(texts, tokenizer)
    not_blank = [i for i, text in enumerate(texts) if not tokenizer.is_blank(text)]
    truncated = truncate(model, [texts[i] for i in not_blank])
    labels, probabilities = predict(model, truncated, batch_tokens, progress=progress)
    results = [Classification("") for _ in texts]
    order = (-probabilities).argsort(1, kind="stable")  # equal ones in the model's order of labels
    rows = zip(not_blank, labels, probabilities.tolist(), order.tolist(), strict=True)
    for i, label, row, best_first in rows:
        sure = row[best_first[0]] >= threshold
        results[i] = Classification(label if sure else "", {model.labels[j]: row[j] for j in best_first})
    if attention:
        for i, maps in zip(not_blank, encoder_attention(truncated, model), strict=True):
            results[i].attention = maps
    return results[0] if single else results


def truncate(model: Classifier | ClassifierEnsemble, texts: Sequence[str]) -> list[str]:
    """Truncate texts to the model's learned positions, of which one is for the end-of-sentence token.

    The models of an ensemble truncate texts themselves.
    """
    positions = max_positions(model.encoder)
    if isinstance(model, ClassifierEnsemble) or positions is None or model.source_tokenizer.kind == "frames":
        return list(texts)
    limit = positions - model.prepend_bos - 1
    truncated = list(texts)
    for i, text in enumerate(texts):
        if len(text.encode("utf-8", "surrogatepass")) < limit:  # a token has at least one byte
            continue
        spans = model.source_tokenizer.spans(text)
        if len(spans) > limit:
            truncated[i] = text[: spans[limit - 1][1]] if limit > 0 else ""
    return truncated


@torch.no_grad()
def word_attention(
    texts: Sequence[str], model: Any, batch_tokens: int = ATTENTION_TOKENS
) -> list[WordWeights]:
    """Return the attention to each word of each text, in order.

    With attention pooling these are its weights, the mean over queries and heads. Otherwise it is the mean
    attention that a word receives from all tokens in the last layer with attention. The weight of a word is
    the sum over its tokens.
    """
    _check(model, 0.0, batch_tokens)
    check_single(model)
    texts = truncate(model, _inputs(model, texts))
    weights = token_attention(texts, model, batch_tokens)
    return [_by_word(model, text, w) for text, w in zip(texts, weights, strict=True)]


@torch.no_grad()
def token_attention(
    texts: Sequence[str], model: Classifier, batch_tokens: int = ATTENTION_TOKENS
) -> list[list[float]]:
    """Return the attention to each token of each text, EOS last; see `word_attention`."""
    _check(model, 0.0, batch_tokens)
    check_single(model)
    texts = truncate(model, _inputs(model, texts))
    weights: dict[int, list[float]] = {}
    with evaluation_mode(model):
        for rows, tokens, lengths in batches(model, texts, batch_tokens):
            with watch(model) as seen:
                model(tokens.to(model.device), lengths.to(model.device))
            received = _received(seen, (lengths + model.prepend_bos).tolist())
            for i, of_tokens in zip(rows, received, strict=True):
                weights[i] = of_tokens[model.prepend_bos :].tolist()
    return [weights[i] for i in range(len(texts))]


def _received(seen: Seen, lengths: list[int]) -> Iterator[Tensor]:
    """Yield the weight of every token, (S,), for each text of a batch."""
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
            "this model has no attention to show; use one with attention pooling or a Transformer encoder, "
            "such as that of the recipe sst2-attention"
        )


def _inputs(model: Classifier, texts: Any) -> list[Any]:
    """The texts or sequences as a list."""
    is_text = model.source_tokenizer.kind != "frames"
    return arguments.string_list("texts", texts) if is_text else model.source_tokenizer.inputs(texts)[0]


def _by_word(model: Classifier, text: str, weights: list[float]) -> WordWeights:
    if model.source_tokenizer.kind == "frames":
        return WordWeights([str(i) for i in range(len(weights))], weights)
    words = Words.of_text(model.source_tokenizer, text)
    of_tokens = torch.tensor(weights[: len(words.owner)], dtype=torch.float64)
    return WordWeights(words.words, (of_tokens @ words.owner).tolist())


def _check(model: Any, threshold: float, batch_tokens: int) -> None:
    if (
        not isinstance(model, Classifier | ClassifierEnsemble)
        or getattr(model, "source_tokenizer", None) is None
    ):
        raise OptionError("classify takes a classifier with its tokenizers, as regard.load returns it")
    arguments.number("threshold", threshold, 0, 1)
    arguments.integer("batch_tokens", batch_tokens)
