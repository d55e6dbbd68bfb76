"""The service of a translator or language model: requests in, JSON out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from regard.data.tokenizer import EOS
from regard.decoding.beam import GREEDY, Beam, default_beam
from regard.decoding.constraints import Constraints
from regard.decoding.limits import LengthLimiter, Limits
from regard.decoding.sampling import Sample
from regard.decoding.strategy import Hypothesis, SearchTask, Strategy
from regard.errors import OptionError
from regard.models.autoregressive import require_autoregressive
from regard.models.target_language import add_target, target_languages, target_of
from regard.models.translator import Translator
from regard.pipelines.generate import generate, stream
from regard.pipelines.long_lines import LongLineSplitter, join_hypotheses, max_source_length
from regard.pipelines.sentence_split import Piece, gap
from regard.pipelines.text_form import as_read
from regard.pipelines.translate import Translation, translate
from regard.pipelines.translate import stream as stream_translation
from regard.serving.attention_answers import AttentionAnswers
from regard.serving.budget import Budget, check_tokens, encoded_constraints
from regard.serving.request_limits import RequestLimits
from regard.serving.requests import (
    AttentionRequest,
    ConstraintFields,
    GenerateRequest,
    SearchFields,
    SelfAttentionRequest,
    TranslateRequest,
)
from regard.serving.service import Cancelled, Service


class GenerationService(Service):
    """The service of a translator or language model.

    Args:
        model: with its tokenizers.
        name: of the model, as /health and the metrics show it.
        limits: of requests.
        engine: what searches; the model itself unless given.
        workers: threads; default: one per core, or one for a GPU.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        limits: RequestLimits | None = None,
        *,
        engine: Any = None,
        workers: int | None = None,
    ) -> None:
        self.engine = require_autoregressive(model, "HTTP answers") if engine is None else engine
        self.translates = isinstance(model, Translator)
        self.languages = target_languages(model)
        self.default = default_beam(getattr(model, "card", None)) if self.translates else GREEDY
        self.split = LongLineSplitter(model, max_source_length(model) if self.translates else None)
        self.attention = AttentionAnswers(model, (limits or RequestLimits()).weights)
        self._handlers = {
            TranslateRequest: self._translate,
            GenerateRequest: self._generate,
            AttentionRequest: self._attention,
            SelfAttentionRequest: self._self_attention,
        }
        super().__init__(model, name, limits, workers=workers)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "translator" if self.translates else "language model"

    @property
    def example(self) -> tuple[str, str]:  # type: ignore[override]
        if not self.translates:
            return "generate", '{"prompt": "Hello"}'
        to = f', "to": "{self.languages[0]}"' if self.languages else ""
        return "translate", f'{{"text": "Hello."{to}}}'

    def warm_up(self) -> None:
        to = self.languages[0] if self.languages else None
        request = TranslateRequest(to=to) if self.translates else GenerateRequest(max_length=2)  # type: ignore[call-arg]
        self.batcher.submit(request, ["a"]).result()

    def answers(self, options: Any, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        return self._handlers[type(options)](options, texts, cancelled)

    # Checks before the search

    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        if isinstance(options, GenerateRequest):
            self._check_generate(options, texts)
        elif isinstance(options, SelfAttentionRequest):
            for text in texts:
                tokens = self._tokens(text)
                check_tokens("the text", len(tokens), self.limits)
                self.attention.check(0, len(tokens), ("decoder",))
        elif isinstance(options, AttentionRequest) and options.target is not None:
            target = len(self.model.target_tokenizer.encode(options.target)) + 1
            check_tokens("target", target, self.limits)
            for text in texts:
                source = len(self._source_tokens(text, options)) + 1
                check_tokens("the text", source, self.limits)
                self.attention.check(source, target, options.kinds)
        else:
            self._check_search(options, texts, cancelled)

    def _check_search(
        self, options: TranslateRequest | AttentionRequest, texts: list[str], cancelled: Callable[[], bool]
    ) -> None:
        """Check every piece of every text, with the longest output that the search may give."""
        strategy = self._strategy(options)
        constraints = encoded_constraints(_constraints(options), self.model.target_tokenizer, self.limits)
        prefix, required = constraints.prefix_of(0), constraints.required_of(0)
        budget = Budget(self.limits, strategy.with_required() if required else strategy)
        limit = LengthLimiter(self.model, options.max_length, constraints)
        passes = 2 if isinstance(strategy, Beam) and strategy.coverage_penalty else 1
        for i, text in enumerate(texts):
            if cancelled():
                return
            name = f"text {i + 1}" if len(texts) > 1 else "the text"
            (text,) = add_target([text], self.model, options.to)
            pieces = [Piece(text, "", True)]
            if isinstance(options, TranslateRequest):
                (pieces,) = self._pieces([text], options)
            first = _constraints(options).only_where([at == 0 for at in range(len(pieces))])
            read, _ = as_read([piece.text for piece in pieces], self.model, first)
            encoded = self.model.source_tokenizer.encode_batch(read)
            for at, tokens in enumerate(encoded):
                check_tokens(name, len(tokens), self.limits)
                if isinstance(options, AttentionRequest):
                    self.attention.check(len(tokens) + 1, 1, options.kinds)
                # Prefix and required phrases are for the first piece.
                task = SearchTask(0, tokens, [] if at else prefix, [] if at else required, i)
                budget.add(name, limit(task), passes)

    def _check_generate(self, options: GenerateRequest, texts: list[str]) -> None:
        encoded_constraints(_constraints(options), self.model.target_tokenizer, self.limits)
        budget = Budget(self.limits, _strategy(options))
        for text in texts:
            tokens = self._tokens(text) if text else []
            check_tokens("the prompt with its continuation", len(tokens) + options.max_length, self.limits)
            budget.add("the prompt", SearchTask(options.max_length, tokens))

    def _cost(self, options: Any, text: str) -> int:
        sample, beam = getattr(options, "sample", None), getattr(options, "beam", None)
        if isinstance(options, SearchFields) and sample is None:
            beam = beam or self.default.size
        rows = sample.count if sample is not None and not beam else beam or 1
        required = getattr(options, "required", ())
        states = 1 + sum(len(self.model.target_tokenizer.encode(phrase)) for phrase in required)
        return (len(self._tokens(text)) + 1) * rows * states

    def _strategy(self, options: SearchFields) -> Strategy:
        """The search of a request that is not a stream: without `beam`, that of the model's card."""
        return _strategy(options, self.default.size)

    def _tokens(self, text: str) -> list[int]:
        return (self.model.source_tokenizer if self.translates else self.model.target_tokenizer).encode(text)

    def _source_tokens(self, text: str, options: AttentionRequest) -> list[int]:
        """The tokens of a source whose translation is given; its language is guessed if need be."""
        to = options.to or target_of([options.target or ""], self.model)
        (tagged,) = add_target([text], self.model, to)
        return self._tokens(tagged)

    # Answers

    def _translate(
        self, options: TranslateRequest, texts: list[str], cancelled: Cancelled
    ) -> list[dict[str, Any]]:
        """Translate; long texts in pieces, with prefix and required phrases for the first piece."""
        lines = self._pieces(
            [text for given in texts for text in add_target([given], self.model, options.to)], options
        )
        pieces = [piece.text for line in lines for piece in line]
        flags = [flag for line, flag in zip(lines, cancelled, strict=True) for _ in line]
        first = [i == 0 for line in lines for i in range(len(line))]
        translations = iter(self._search(options, pieces, first, flags))
        return [_translation(line, [next(translations) for _ in line]) for line in lines]

    def _pieces(self, texts: list[str], options: TranslateRequest) -> list[list[Piece]]:
        return self.split(texts, _constraints(options))

    def _search(
        self,
        options: TranslateRequest | AttentionRequest,
        texts: list[str],
        first: Sequence[bool],
        cancelled: Cancelled,
    ) -> list[Translation]:
        arguments: dict[str, Any] = {
            "to": options.to,
            "strategy": self._strategy(options),
            "constraints": _constraints(options).only_where(first),
            "limits": Limits(options.max_length, workers=1),
            "nbest": getattr(options, "nbest", None),
            "cancelled": cancelled,
        }
        if getattr(options, "coverage_penalty", 0):  # needs the attention weights
            with self.attention.lock:
                translations = translate(texts, self.attention.watched, **arguments)
        else:
            translations = translate(texts, self.engine, **arguments)
        self._count((t.source_tokens for t in translations), (t.hypotheses for t in translations))
        return translations

    def _generate(
        self, options: GenerateRequest, texts: list[str], cancelled: Cancelled
    ) -> list[dict[str, Any]]:
        generated = generate(
            texts,
            self.engine,
            strategy=_strategy(options),
            constraints=_constraints(options),
            limits=Limits(options.max_length, workers=1),
            cancelled=cancelled,
        )
        self._count(map(self._tokens, texts), (text.hypotheses for text in generated))
        return [{"texts": [_hypothesis(h) for h in text.hypotheses]} for text in generated]

    def _attention(self, options: AttentionRequest, texts: list[str], cancelled: Cancelled) -> list[Any]:
        """Return the attention for a given target, or for the best translation; None if cancelled."""
        if options.target is not None:
            target = [*self.model.target_tokenizer.encode(options.target), EOS]
            return [
                None
                if is_cancelled()
                else self.attention.answer(
                    options.target, None, self._source_tokens(text, options), target, options.kinds
                )
                for text, is_cancelled in zip(texts, cancelled, strict=True)
            ]
        translations = self._search(options, texts, [True] * len(texts), cancelled)
        return [
            None if is_cancelled() else self._attention_of_best(translation, options)
            for translation, is_cancelled in zip(translations, cancelled, strict=True)
        ]

    def _attention_of_best(self, translation: Translation, options: AttentionRequest) -> dict[str, Any]:
        if not translation.hypotheses:
            return {"text": str(translation), "score": None, "attention": []}
        best = translation.hypotheses[0]
        target = [*best.tokens, EOS] if best.ended else best.tokens
        score = round(best.score, 6)
        return self.attention.answer(best.text, score, translation.source_tokens, target, options.kinds)

    def _self_attention(
        self, options: SelfAttentionRequest, texts: list[str], cancelled: Cancelled
    ) -> list[Any]:
        return [
            None
            if is_cancelled()
            else self.attention.answer(text, None, None, self._tokens(text), ("decoder",))
            for text, is_cancelled in zip(texts, cancelled, strict=True)
        ]

    # Streams

    def stream(
        self, request: GenerateRequest | TranslateRequest, cancelled: Callable[[], bool] | None = None
    ) -> Iterator[str]:
        """Yield the pieces of one text as they are generated. Runs in a thread of its own."""
        torch.set_num_threads(1)  # in this thread
        if isinstance(request, TranslateRequest):
            return self._stream_translation(request, cancelled)
        if (request.beam or 1) > 1:
            raise OptionError("a stream needs greedy search or sampling; leave out stream, or set beam to 1")
        return stream(
            request.prompt,
            self.engine,
            strategy=_strategy(request),
            constraints=_constraints(request),
            limits=Limits(request.max_length),
            cancelled=cancelled,
        )

    def _stream_translation(
        self, request: TranslateRequest, cancelled: Callable[[], bool] | None
    ) -> Iterator[str]:
        """Translate the pieces of a long text one after the other; the text is that of `_translate`."""
        arguments = {
            "strategy": _strategy(request),
            "limits": Limits(request.max_length),
            "cancelled": cancelled,
        }
        (pieces,) = self._pieces(add_target([request.text or ""], self.model, request.to), request)
        text = ""
        for i, piece in enumerate(pieces):
            constraints, begun = _constraints(request).only_where([i == 0]), False
            for part in stream_translation(
                piece.text, self.engine, request.to, constraints=constraints, **arguments
            ):
                part = part.upper() if piece.capitals else part
                part = part if begun or not i else gap(pieces[i - 1], text, part) + part
                text, begun = text + part, True
                yield part
            if i and not begun:
                text += pieces[i - 1].gap
                yield pieces[i - 1].gap

    def _count(self, sources: Iterable[Sequence[int]], outputs: Iterable[Sequence[Hypothesis]]) -> None:
        """Add tokens to the metrics."""
        self.metrics.tokens.labels("source").inc(sum(map(len, sources)))
        self.metrics.tokens.labels("target").inc(sum(len(h.tokens) for h in chain.from_iterable(outputs)))


def _hypothesis(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "text": hypothesis.text,
        "score": round(hypothesis.score, 6),
        "log_p": round(hypothesis.log_p, 6),
        "tokens": len(hypothesis.tokens),
        "ended": hypothesis.ended,
    }


def _translation(pieces: Sequence[Piece], parts: Sequence[Translation]) -> dict[str, Any]:
    """Return the answer to one text; in several parts, scores are averaged and log-probabilities summed."""
    hypotheses = [_joined(text, chosen) for text, chosen in join_hypotheses(pieces, parts)]
    if not hypotheses:
        return _joined("", [])
    return hypotheses[0] if len(hypotheses) == 1 else hypotheses[0] | {"hypotheses": hypotheses}


def _joined(text: str, chosen: Sequence[Hypothesis]) -> dict[str, Any]:
    if not chosen:
        return {"text": text, "score": None, "log_p": None, "tokens": 0, "ended": True}
    if len(chosen) == 1:
        return _hypothesis(chosen[0]) | {"text": text}
    return {
        "text": text,
        "score": round(sum(h.score for h in chosen) / len(chosen), 6),
        "log_p": round(sum(h.log_p for h in chosen), 6),
        "tokens": sum(len(h.tokens) for h in chosen),
        "ended": all(h.ended for h in chosen),
        "parts": len(chosen),
    }


def _strategy(request: SearchFields | GenerateRequest, default: int = 1) -> Strategy:
    """Return sampling if the request has a `sample` (and, to generate, no `beam`), otherwise beam search."""
    sample = getattr(request, "sample", None)
    if sample is not None and not (isinstance(request, GenerateRequest) and request.beam is not None):
        return Sample(**sample.model_dump())
    names = ("length_penalty", "coverage_penalty", "groups", "diversity")
    return Beam(
        request.beam or default, **{name: getattr(request, name) for name in names if hasattr(request, name)}
    )


def _constraints(request: SearchFields | GenerateRequest) -> Constraints:
    """Return the constraints of a request."""
    prefix, required = getattr(request, "prefix", None) or "", getattr(request, "required", ())
    if not isinstance(request, ConstraintFields):
        return Constraints()
    return Constraints(prefix, required, request.forbidden, request.no_repeat, request.min_length)
