"""A model that answers many at once: requests in, JSON out."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from regard.data.tokenizer import EOS
from regard.decoding.attention import Attention, kind_of, look
from regard.decoding.cutting import Cutting, joined, longest
from regard.decoding.generate import generate, stream
from regard.decoding.search import Hypothesis, Sample
from regard.decoding.sentences import Piece
from regard.decoding.translate import Translation, translate
from regard.errors import OptionError
from regard.models.translator import Translator
from regard.models.writer import writing
from regard.serving.batching import Batcher
from regard.serving.limits import Limits, Refusal
from regard.serving.metrics import Metrics
from regard.serving.schema import Body, Generate, Look, LookBack, Search, Translate
from regard.serving.streaming import Streams
from regard.version import __version__


class Service:
    """The model, its workers, and what they have counted. `writer` is what searches: the model itself or a faster form of it."""

    def __init__(
        self, model: Any, name: str, limits: Limits | None = None, *, writer: Any = None, workers: int | None = None
    ) -> None:
        self.model, self.name, self.limits = writing(model, "HTTP answers"), name, limits or Limits()
        self.writer = model if writer is None else writer
        self.translates = isinstance(model, Translator)
        self.cut = Cutting(model, longest(model) if self.translates else None)
        self.draining = False
        self.metrics = Metrics()
        self.streams = Streams(self.limits.streams, self.limits.seconds)
        self._looking = threading.Lock()
        self._does = {Translate: self._translate, Generate: self._generate, Look: self._look, LookBack: self._look_back}
        on_cpu = next(model.parameters()).device.type == "cpu"
        self.batcher = Batcher(
            self._work,
            self._cost,
            batch_tokens=self.limits.batch_tokens,
            queue=self.limits.queue,
            workers=workers or (cores() if on_cpu else 1),
            begin=lambda: torch.set_num_threads(1),  # of this worker: threads of one product stall each other where cores are busy
            metrics=self.metrics,
        )
        self.metrics.gauge("regard_queue_texts", "Texts that wait for a worker.", lambda: self.batcher.waiting)
        self.metrics.gauge("regard_ready", "1 while requests are taken, 0 when shutting down.", lambda: int(not self.draining))
        self.metrics.gauge("regard_info", "What is served.", lambda: 1, {"model": name, "version": __version__})

    @property
    def kind(self) -> str:
        return "translator" if self.translates else "language model"

    def warm_up(self) -> None:
        """Answer once before anybody asks: what is slow the first time is over, and what cannot work is seen now."""
        self.batcher.submit(
            Translate.model_validate({}) if self.translates else Generate.model_validate({"max_length": 2}), ["a"]
        ).result()

    def _work(self, options: Body, texts: list[str]) -> list[str]:
        """The answers as JSON: written by the worker, not by the loop that serves everybody."""
        return [json.dumps(answer, ensure_ascii=False) for answer in self._does[type(options)](options, texts)]

    def _cost(self, options: Any, text: str) -> int:
        return (len(self._tokens(text)) + 1) * (getattr(options, "beam", 1) or 1)

    def _tokens(self, text: str) -> list[int]:
        return (self.model.source_tokenizer if self.translates else self.model.target_tokenizer).encode(text)

    def _translate(self, options: Translate, texts: list[str]) -> list[dict[str, Any]]:
        """Texts longer than the model holds are translated in parts; what a text must begin with and hold is up to its first."""
        cut = self.cut(texts)
        flat = [piece.text for line in cut for piece in line]
        found = iter(self._found(options, flat, [i == 0 for line in cut for i in range(len(line))]))
        return [_translation(line, [next(found) for _ in line]) for line in cut]

    def _found(self, options: Search, texts: list[str], leads: Sequence[bool]) -> list[Translation]:
        given = _options(options, leads)
        if given.get("coverage_penalty"):  # which is seen by watching
            with self._looking:
                found = translate(self._watched, texts, **given)
        else:
            found = translate(self.writer, texts, **given)
        self._count((t.source_tokens for t in found), chain.from_iterable(t.hypotheses for t in found))
        return found

    def _generate(self, options: Generate, texts: list[str]) -> list[dict[str, Any]]:

        found = generate(self.writer, texts, **_drawn(options), workers=1)
        self._count(map(self._tokens, texts), chain.from_iterable(g.hypotheses for g in found))
        return [{"texts": [_hypothesis(h) for h in g.hypotheses]} for g in found]

    def stream(self, asked: Generate) -> Iterator[str]:
        """The words of one text as they are found."""

        given = _drawn(asked)
        if given.pop("beam", 1) > 1:
            raise OptionError("a stream is written word by word, which a beam is not; leave out stream, or set beam to 1")
        torch.set_num_threads(1)  # of the thread that this is
        return stream(self.writer, asked.prompt, **given)

    def _look(self, options: Look, texts: list[str]) -> list[dict[str, Any]]:
        if options.target is not None:
            tokens = [*self.model.target_tokenizer.encode(options.target), EOS]
            return [self._looked(options.target, None, self._tokens(text), tokens, options.kinds) for text in texts]
        return [self._looked_at_best(found, options) for found in self._found(options, texts, [True] * len(texts))]

    def _look_back(self, options: LookBack, texts: list[str]) -> list[dict[str, Any]]:
        return [self._looked(text, None, None, self._tokens(text), ("decoder",)) for text in texts]

    def _looked_at_best(self, found: Translation, options: Look) -> dict[str, Any]:
        if not found.hypotheses:
            return {"text": "", "score": None, "attention": []}
        best = found.hypotheses[0]
        tokens = [*best.tokens, EOS] if best.ended else best.tokens
        return self._looked(best.text, round(best.score, 6), found.source_tokens, tokens, options.kinds)

    def _looked(
        self, text: str, score: float | None, source: list[int] | None, target: list[int], kinds: Sequence[str]
    ) -> dict[str, Any]:
        numbers, most = self._numbers(len(source or ()) + 1, len(target), kinds), self.limits.weights
        if numbers > most:
            raise Refusal(
                422, f"this attention is {numbers:,} numbers and at most {most:,} are sent; ask for fewer kinds or less text"
            )
        if not target:
            return {"text": text, "score": score, "attention": []}
        with self._looking:  # watching hangs hooks into the modules, so these are not those that the others run
            found = look(self._watched, None if source is None else [source], [target], kinds)[0]
        return {"text": text, "score": score, "attention": [_matrix(found, name) for name in found]}

    @cached_property
    def _watched(self) -> Any:
        """A second tree of modules over the same weights."""
        return copy.deepcopy(self.model, {id(x): x for x in (*self.model.parameters(), *self.model.buffers())})

    def _numbers(self, source: int, target: int, kinds: Sequence[str]) -> int:
        """How many weights a look would give, known before they fill the memory."""
        sides = {"encoder": source * source, "decoder": target * target, "cross": target * source}
        return sum(sides[kind] * heads for kind, heads in self._heads if kind in kinds)

    @cached_property
    def _heads(self) -> list[tuple[str, int]]:
        """The kind and heads of every attention, seen by looking once."""
        with self._looking:
            found = look(self._watched, [[EOS]] if self.translates else None, [[EOS]])[0]
        return [(kind_of(name), len(found[name])) for name in found]

    def _count(self, read: Iterator[Sequence[int]], written: Iterator[Hypothesis]) -> None:
        self.metrics.tokens.add("source", count=sum(map(len, read)))
        self.metrics.tokens.add("target", count=sum(len(h.tokens) for h in written))


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    found = [_together(text, chosen) for text, chosen in joined(pieces, parts)]
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


def _matrix(found: Attention, name: str) -> dict[str, Any]:
    rows, columns = found.pieces(name)
    weights = (found[name].double() * 1e6).round().div(1e6).tolist()
    return {"name": name, "kind": kind_of(name), "rows": rows, "columns": columns, "weights": weights}


def _options(asked: Search, leads: Sequence[bool]) -> dict[str, Any]:
    """The options of a request as `translate` takes them, for sentences that lead a text or follow in one."""
    given = asked.model_dump(exclude={"text", "texts", "target", "kinds", "prefix", "sample"}, exclude_defaults=True)
    if isinstance(asked, Translate):
        given["sample"] = asked.sample and Sample(**asked.sample.model_dump())
        given["prefixes"] = asked.prefix and [asked.prefix if first else "" for first in leads]
        given["required"] = [asked.required if first else () for first in leads] if asked.required else None
    return given | {"workers": 1}


def _drawn(asked: Generate) -> dict[str, Any]:
    """The options of a request as `generate` takes them."""
    given = asked.model_dump(exclude={"prompt", "sample", "stream", "beam"})
    return given | ({"sample": Sample(**asked.sample.model_dump())} if asked.beam is None else {"beam": asked.beam})
