"""A translator or language model that answers many at once: requests in, JSON out."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from regard.data.tokenizer import EOS
from regard.decoding.attention_weights import AttentionMaps, attention_maps, kind_of
from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints
from regard.decoding.limits import LengthLimiter, Limits
from regard.decoding.sampling import Sample
from regard.decoding.strategy import Hypothesis, SearchTask, Strategy
from regard.errors import OptionError
from regard.models.autoregressive import require_autoregressive
from regard.models.translator import Translator
from regard.pipelines.generate import generate, stream
from regard.pipelines.long_lines import LongLineSplitter, join_hypotheses, max_source_length
from regard.pipelines.sentence_split import Piece, gap
from regard.pipelines.translate import Translation, translate
from regard.pipelines.translate import stream as translated
from regard.serving.budget import Budget, encoded_constraints, read_tokens
from regard.serving.request_limits import Refusal, RequestLimits
from regard.serving.requests import Generate, Look, LookBack, Ruled, Search, Translate
from regard.serving.service_base import BaseService, Cancelled


class GenerationService(BaseService):
    """The model, its workers, and what they have counted. `writer` is what searches: the model itself or a faster form of it."""

    def __init__(
        self,
        model: Any,
        name: str,
        limits: RequestLimits | None = None,
        *,
        writer: Any = None,
        workers: int | None = None,
    ) -> None:
        self.writer = require_autoregressive(model, "HTTP answers") if writer is None else writer
        self.translates = isinstance(model, Translator)
        self.cut = LongLineSplitter(model, max_source_length(model) if self.translates else None)
        self._looking = threading.Lock()
        self._does = {
            Translate: self._translate,
            Generate: self._generate,
            Look: self._look,
            LookBack: self._look_back,
        }
        super().__init__(model, name, limits, workers=workers)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "translator" if self.translates else "language model"

    @property
    def example(self) -> tuple[str, str]:  # type: ignore[override]
        return ("translate", '{"text": "Hello."}') if self.translates else ("generate", '{"prompt": "Hello"}')

    def warm_up(self) -> None:
        """Answer once before anybody asks: what is slow the first time is over, and what cannot work is seen now."""
        self.batcher.submit(
            Translate.model_validate({}) if self.translates else Generate.model_validate({"max_length": 2}),
            ["a"],
        ).result()

    def answers(self, options: Any, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        return self._does[type(options)](options, texts, cancelled)

    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        if isinstance(options, Generate):
            self._check_generate(options, texts)
        elif isinstance(options, LookBack):
            for text in texts:
                tokens = self._tokens(text)
                read_tokens("the text", len(tokens), self.limits)
                self._check_weights(0, len(tokens), ("decoder",))
        elif isinstance(options, Look) and options.target is not None:
            target = len(self.model.target_tokenizer.encode(options.target)) + 1
            read_tokens("target", target, self.limits)
            for text in texts:
                source = len(self._tokens(text)) + 1
                read_tokens("the text", source, self.limits)
                self._check_weights(source, target, options.kinds)
        else:
            self._check_search(options, texts, cancelled)

    def _check_search(
        self, options: Translate | Look, texts: list[str], cancelled: Callable[[], bool]
    ) -> None:
        """Every part of every text, with the longest answer that the search may give."""
        strategy = _strategy(options)
        constraints = encoded_constraints(_constraints(options), self.model.target_tokenizer, self.limits)
        prefix, required = constraints.prefix_of(0), constraints.required_of(0)
        budget = Budget(self.limits, strategy.with_required() if required else strategy)
        limit = LengthLimiter(self.model, options.max_length, constraints)
        passes = 2 if isinstance(strategy, Beam) and strategy.coverage_penalty else 1
        for i, text in enumerate(texts):
            if cancelled():
                return
            name = f"text {i + 1}" if len(texts) > 1 else "the text"
            parts = self.cut([text])[0] if isinstance(options, Translate) else [Piece(text, "", True)]
            for at, given in enumerate(
                self.model.source_tokenizer.encode_batch([part.text for part in parts])
            ):
                read_tokens(name, len(given), self.limits)
                if isinstance(options, Look):
                    self._check_weights(len(given) + 1, 1, options.kinds)
                budget.add(
                    name, limit(SearchTask(0, given, [] if at else prefix, [] if at else required, i)), passes
                )

    def _check_generate(self, options: Generate, texts: list[str]) -> None:
        encoded_constraints(_constraints(options), self.model.target_tokenizer, self.limits)
        budget = Budget(self.limits, _strategy(options))
        for text in texts:
            tokens = self._tokens(text) if text else []
            read_tokens("the prompt with its answer", len(tokens) + options.max_length, self.limits)
            budget.add("the prompt", SearchTask(options.max_length, tokens))

    def _cost(self, options: Any, text: str) -> int:
        sample, required = getattr(options, "sample", None), getattr(options, "required", ())
        rows = (
            getattr(options, "beam", 1) or 1
            if sample is None or getattr(options, "beam", None)
            else sample.count
        )
        states = 1 + sum(len(self.model.target_tokenizer.encode(word)) for word in required)
        return (len(self._tokens(text)) + 1) * rows * states

    def _tokens(self, text: str) -> list[int]:
        return (self.model.source_tokenizer if self.translates else self.model.target_tokenizer).encode(text)

    def _translate(self, options: Translate, texts: list[str], cancelled: Cancelled) -> list[dict[str, Any]]:
        """Texts longer than the model holds are translated in parts; what a text must begin with and hold is up to its first."""
        cut = self.cut(texts)
        flat = [piece.text for line in cut for piece in line]
        flags = [flag for line, flag in zip(cut, cancelled, strict=True) for _ in line]
        found = iter(self._found(options, flat, [i == 0 for line in cut for i in range(len(line))], flags))
        return [_translation(line, [next(found) for _ in line]) for line in cut]

    def _found(
        self, options: Search, texts: list[str], leads: Sequence[bool], cancelled: Cancelled
    ) -> list[Translation]:
        given: dict[str, Any] = {
            "to": getattr(options, "to", None),
            "strategy": _strategy(options),
            "constraints": _constraints(options).only_where(leads),
            "limits": Limits(options.max_length, workers=1),
            "nbest": getattr(options, "nbest", None),
            "cancelled": cancelled,
        }
        if getattr(options, "coverage_penalty", 0):  # which is seen by watching
            with self._looking:
                found = translate(texts, self._watched, **given)
        else:
            found = translate(texts, self.writer, **given)
        self._count((t.source_tokens for t in found), chain.from_iterable(t.hypotheses for t in found))
        return found

    def _generate(self, options: Generate, texts: list[str], cancelled: Cancelled) -> list[dict[str, Any]]:
        found = generate(
            texts,
            self.writer,
            strategy=_strategy(options),
            constraints=_constraints(options),
            limits=Limits(options.max_length, workers=1),
            cancelled=cancelled,
        )
        self._count(map(self._tokens, texts), chain.from_iterable(g.hypotheses for g in found))
        return [{"texts": [_hypothesis(h) for h in g.hypotheses]} for g in found]

    def stream(
        self, asked: Generate | Translate, cancelled: Callable[[], bool] | None = None
    ) -> Iterator[str]:
        """The words of one text as they are found."""
        if isinstance(asked, Translate):
            return self._stream_translation(asked, cancelled)
        if (asked.beam or 1) > 1:
            raise OptionError(
                "a stream is written word by word, which a beam is not; leave out stream, or set beam to 1"
            )
        torch.set_num_threads(1)  # of the thread that this is
        return stream(
            asked.prompt,
            self.writer,
            strategy=_strategy(asked),
            constraints=_constraints(asked),
            limits=Limits(asked.max_length),
            cancelled=cancelled,
        )

    def _stream_translation(self, asked: Translate, cancelled: Callable[[], bool] | None) -> Iterator[str]:
        """Of a long text, the parts one after the other; together the pieces are what `_translate` gives."""
        torch.set_num_threads(1)  # of the thread that this is
        given = {"strategy": _strategy(asked), "limits": Limits(asked.max_length), "cancelled": cancelled}
        parts, text = self.cut([asked.text or ""])[0], ""
        for i, part in enumerate(parts):
            constraints, begun = _constraints(asked).only_where([i == 0]), False
            for piece in translated(part.text, self.writer, asked.to, constraints=constraints, **given):
                piece = piece if begun or not i else gap(parts[i - 1], text, piece) + piece
                text, begun = text + piece, True
                yield piece
            if i and not begun:
                text += parts[i - 1].gap
                yield parts[i - 1].gap

    def _look(self, options: Look, texts: list[str], cancelled: Cancelled) -> list[Any]:
        if options.target is not None:
            tokens = [*self.model.target_tokenizer.encode(options.target), EOS]
            return [
                None
                if over()
                else self._looked(options.target, None, self._tokens(text), tokens, options.kinds)
                for text, over in zip(texts, cancelled, strict=True)
            ]
        found = self._found(options, texts, [True] * len(texts), cancelled)
        return [
            None if over() else self._looked_at_best(each, options)
            for each, over in zip(found, cancelled, strict=True)
        ]

    def _look_back(self, options: LookBack, texts: list[str], cancelled: Cancelled) -> list[Any]:
        return [
            None if over() else self._looked(text, None, None, self._tokens(text), ("decoder",))
            for text, over in zip(texts, cancelled, strict=True)
        ]

    def _looked_at_best(self, found: Translation, options: Look) -> dict[str, Any]:
        if not found.hypotheses:
            return {"text": "", "score": None, "attention": []}
        best = found.hypotheses[0]
        tokens = [*best.tokens, EOS] if best.ended else best.tokens
        return self._looked(best.text, round(best.score, 6), found.source_tokens, tokens, options.kinds)

    def _looked(
        self,
        text: str,
        score: float | None,
        source: list[int] | None,
        target: list[int],
        kinds: Sequence[str],
    ) -> dict[str, Any]:
        self._check_weights(len(source or ()) + 1, len(target), kinds)
        if not target:
            return {"text": text, "score": score, "attention": []}
        with (
            self._looking
        ):  # watching hangs hooks into the modules, so these are not those that the others run
            found = attention_maps(None if source is None else [source], [target], self._watched, kinds)[0]
        return {"text": text, "score": score, "attention": [_matrix(found, name) for name in found]}

    def _check_weights(self, source: int, target: int, kinds: Sequence[str]) -> None:
        numbers, most = self._numbers(source, target, kinds), self.limits.weights
        if numbers > most:
            raise Refusal(
                422,
                f"this attention is {numbers:,} numbers and at most {most:,} are sent; ask for fewer kinds or less text",
            )

    @cached_property
    def _watched(self) -> Any:
        """A second tree of modules over the same weights."""
        return copy.deepcopy(
            self.model, {id(x): x for x in (*self.model.parameters(), *self.model.buffers())}
        )

    def _numbers(self, source: int, target: int, kinds: Sequence[str]) -> int:
        """How many weights a look would give, known before they fill the memory."""
        sides = {"encoder": source * source, "decoder": target * target, "cross": target * source}
        return sum(sides[kind] * heads for kind, heads in self._heads if kind in kinds)

    @cached_property
    def _heads(self) -> list[tuple[str, int]]:
        """The kind and heads of every attention, seen by looking once."""
        with self._looking:
            found = attention_maps([[EOS]] if self.translates else None, [[EOS]], self._watched)[0]
        return [(kind_of(name), len(found[name])) for name in found]

    def _count(self, read: Iterator[Sequence[int]], written: Iterator[Hypothesis]) -> None:
        self.metrics.tokens.labels("source").inc(sum(map(len, read)))
        self.metrics.tokens.labels("target").inc(sum(len(h.tokens) for h in written))


def _hypothesis(found: Hypothesis) -> dict[str, Any]:
    return {
        "text": found.text,
        "score": round(found.score, 6),
        "log_p": round(found.log_p, 6),
        "tokens": len(found.tokens),
        "ended": found.ended,
    }


def _translation(pieces: Sequence[Piece], parts: Sequence[Translation]) -> dict[str, Any]:
    """The answer to one text. In parts, its score is the mean of theirs and its log p their sum."""
    found = [_together(text, chosen) for text, chosen in join_hypotheses(pieces, parts)]
    if not found:
        return {"text": "", "score": None, "log_p": None, "tokens": 0, "ended": True}
    return found[0] if len(found) == 1 else found[0] | {"hypotheses": found}


def _together(text: str, chosen: Sequence[Hypothesis]) -> dict[str, Any]:
    if len(chosen) == 1:
        return _hypothesis(chosen[0])
    return {
        "text": text,
        "score": round(sum(h.score for h in chosen) / len(chosen), 6),
        "log_p": round(sum(h.log_p for h in chosen), 6),
        "tokens": sum(len(h.tokens) for h in chosen),
        "ended": all(h.ended for h in chosen),
        "parts": len(chosen),
    }


def _matrix(found: AttentionMaps, name: str) -> dict[str, Any]:
    rows, columns = found.pieces(name)
    weights = (found[name].double() * 1e6).round().div(1e6).tolist()
    return {"name": name, "kind": kind_of(name), "rows": rows, "columns": columns, "weights": weights}


def _strategy(asked: Search | Generate) -> Strategy:
    """The strategy of a request: sampling if it has a `sample`, for `generate` unless it has a `beam`."""
    sample = getattr(asked, "sample", None)
    if sample is not None and not (isinstance(asked, Generate) and asked.beam is not None):
        return Sample(**sample.model_dump())
    names = ("length_penalty", "coverage_penalty", "groups", "diversity")
    return Beam(asked.beam or 1, **{name: getattr(asked, name) for name in names if hasattr(asked, name)})


def _constraints(asked: Search | Generate) -> Constraints:
    """The constraints of a request; prefix and required words are for its first text or piece."""
    prefix, required = getattr(asked, "prefix", None) or "", getattr(asked, "required", ())
    if not isinstance(asked, Ruled):
        return Constraints()
    return Constraints(prefix, required, asked.forbidden, asked.no_repeat, asked.min_length)
