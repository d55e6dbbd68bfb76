"""The services of classifiers, taggers and embedders, and the choice of a service for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from regard.models.autoregressive import AutoregressiveModel
from regard.models.classifier import Classifier
from regard.models.embedder import Embedder
from regard.models.frames import require_text
from regard.models.tagger import Tagger
from regard.pipelines.classify import classify, truncate
from regard.pipelines.embed import embed
from regard.pipelines.input import Chunk, Row
from regard.pipelines.tag_file import JsonFormat, TagJob, TagOptions
from regard.serving.budget import check_tokens
from regard.serving.generation_service import GenerationService
from regard.serving.request_limits import RequestLimits
from regard.serving.requests import ClassifyRequest, EmbedRequest, TagRequest, Texts
from regard.serving.service import Cancelled, Service


class TextService(Service):
    """A model that answers with one forward pass, which cannot be cancelled."""

    body: ClassVar[type[Texts]]
    summary: ClassVar[str]
    field: ClassVar[str]  # of the response, with the answers

    def warm_up(self) -> None:
        self.batcher.submit(self.body.model_validate({}), ["a"]).result()

    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        """Nothing to check: batches are bounded by their tokens, and the pipelines truncate long texts."""

    def _tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(tokens) for tokens in self.model.source_tokenizer.encode_batch(list(texts))]

    def _cost(self, options: Any, text: str) -> int:
        return self._tokens([text])[0] + 1

    def _count(self, texts: list[str]) -> None:
        self.metrics.tokens.labels("source").inc(sum(self._tokens(texts)))


class ClassifyService(TextService):
    kind, body, summary, field = "classifier", ClassifyRequest, "Label texts", "labels"
    example = ("classify", '{"text": "Hello."}')

    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        for i, count in enumerate(self._tokens(truncate(self.model, texts))):
            check_tokens(f"text {i + 1}" if len(texts) > 1 else "the text", count, self.limits)

    def answers(self, options: ClassifyRequest, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        predictions = classify(
            texts, self.model, threshold=options.threshold, batch_tokens=self.limits.batch_tokens
        )
        self._count(texts)
        return [
            {
                "label": str(prediction) or None,
                "probability": None if prediction.probability is None else round(prediction.probability, 6),
                "probabilities": {
                    label: round(p, 6) for label, p in list(prediction.probabilities.items())[: options.top]
                },
            }
            for prediction in predictions
        ]


class TagService(TextService):
    kind, body, summary, field = "tagger", TagRequest, "Tag the words of texts", "texts"
    example = ("tag", '{"text": "Hello."}')

    def answers(self, options: TagRequest, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        settings = TagOptions(
            spaced=options.spaced, scheme=options.scheme, batch_tokens=self.limits.batch_tokens
        )
        tagged = TagJob(self.model, settings, JsonFormat()).results(
            Chunk(0, [Row(text, text) for text in texts], "")
        )
        self._count(texts)
        return [
            {
                "words": [word.text for word in line.words],
                "tags": list(line.tags),
                "spans": [
                    {"start": a, "end": b, "type": span.type, "text": text}
                    for span, text, a, b in line.spans()
                ],
            }
            for line in tagged
        ]


class EmbedService(TextService):
    kind, body, summary, field = "embedder", EmbedRequest, "Embed texts", "embeddings"
    example = ("embed", '{"text": "Hello."}')

    def answers(self, options: EmbedRequest, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        vectors = embed(texts, self.model, batch_tokens=self.limits.batch_tokens, workers=1)
        self._count(texts)
        return [[round(x, 7) for x in row] for row in vectors.tolist()]


SERVICES: dict[type[Any], type[TextService]] = {
    Classifier: ClassifyService,
    Tagger: TagService,
    Embedder: EmbedService,
}


def make_service(
    model: Any, name: str, limits: RequestLimits, *, engine: Any = None, workers: int | None = None
) -> Service:
    """Return the service for a model; `engine` is a faster form of an autoregressive model."""
    require_text(model, "serving")
    if isinstance(model, AutoregressiveModel):
        return GenerationService(model, name, limits, engine=engine, workers=workers)
    return SERVICES[type(model)](model, name, limits, workers=workers)
