"""Classifiers, taggers and embedders behind HTTP: the pipelines of `regard classify`, `tag` and `embed`, text by text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from regard.models.autoregressive import AutoregressiveModel
from regard.models.classifier import Classifier
from regard.models.embedder import Embedder
from regard.models.tagger import Tagger
from regard.pipelines.classify import classify, truncate
from regard.pipelines.embed import embed
from regard.pipelines.input import Chunk, Row
from regard.pipelines.tag_file import Json, TagJob, TagOptions
from regard.serving.budget import read_tokens
from regard.serving.request_limits import RequestLimits
from regard.serving.requests import Classify, Embed, Sentences, Tag
from regard.serving.service_base import BaseService, Cancelled
from regard.serving.text_generation_service import GenerationService


class TextService(BaseService):
    """A model that reads a text and answers at once. A batch is one forward pass, so there is nothing to stop within it."""

    body: ClassVar[type[Sentences]]
    summary: ClassVar[str]
    field: ClassVar[str]  # that holds the answers

    def warm_up(self) -> None:
        self.batcher.submit(self.body.model_validate({}), ["a"]).result()

    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        """A batch is bounded by its tokens, and long texts are cut as the pipelines do it."""

    def _tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(tokens) for tokens in self.model.source_tokenizer.encode_batch(list(texts))]

    def _cost(self, options: Any, text: str) -> int:
        return self._tokens([text])[0] + 1

    def _count(self, texts: list[str]) -> None:
        self.metrics.tokens.labels("source").inc(sum(self._tokens(texts)))


class ClassifyService(TextService):
    kind, body, summary, field = "classifier", Classify, "Label texts", "labels"
    example = ("classify", '{"text": "Hello."}')

    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        for i, count in enumerate(self._tokens(truncate(self.model, texts))):
            read_tokens(f"text {i + 1}" if len(texts) > 1 else "the text", count, self.limits)

    def answers(self, options: Classify, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        found = classify(
            texts, self.model, threshold=options.threshold, batch_tokens=self.limits.batch_tokens
        )
        self._count(texts)
        return [
            {
                "label": str(each) or None,
                "probability": None if each.probability is None else round(each.probability, 6),
                "probabilities": {
                    label: round(p, 6) for label, p in list(each.probabilities.items())[: options.top]
                },
            }
            for each in found
        ]


class TagService(TextService):
    kind, body, summary, field = "tagger", Tag, "Tag the words of texts", "texts"
    example = ("tag", '{"text": "Hello."}')

    def answers(self, options: Tag, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        settings = TagOptions(
            spaced=options.spaced, scheme=options.scheme, batch_tokens=self.limits.batch_tokens
        )
        found = TagJob(self.model, settings, Json()).results(
            Chunk(0, [Row(text, text) for text in texts], "")
        )
        self._count(texts)
        return [
            {
                "words": [word.text for word in each.words],
                "tags": list(each.tags),
                "spans": [
                    {"start": a, "end": b, "type": span.type, "text": text}
                    for span, text, a, b in each.spans()
                ],
            }
            for each in found
        ]


class EmbedService(TextService):
    kind, body, summary, field = "embedder", Embed, "Embed texts", "embeddings"
    example = ("embed", '{"text": "Hello."}')

    def answers(self, options: Embed, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        found = embed(texts, self.model, batch_tokens=self.limits.batch_tokens, workers=1)
        self._count(texts)
        return [[round(x, 7) for x in row] for row in found.tolist()]


SERVICES: dict[type[Any], type[TextService]] = {
    Classifier: ClassifyService,
    Tagger: TagService,
    Embedder: EmbedService,
}


def make_service(
    model: Any, name: str, limits: RequestLimits, *, writer: Any = None, workers: int | None = None
) -> BaseService:
    """The service for a model of any kind; `writer` is a faster form of one that writes."""
    if isinstance(model, AutoregressiveModel):
        return GenerationService(model, name, limits, writer=writer, workers=workers)
    return SERVICES[type(model)](model, name, limits, workers=workers)
