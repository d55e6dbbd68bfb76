"""A model behind the explorer: run one text, plain or with changed attention."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from regard.attention.edits import Edit
from regard.attention.intervening import intervene
from regard.data.tokenizer import BOS, EOS
from regard.decoding.attention_weights import AttentionMaps, attention_of_tokens, kind_of
from regard.decoding.batching import evaluation_mode
from regard.decoding.limits import Limits
from regard.errors import OptionError
from regard.explorer.run import Run, Side
from regard.models.classifier import Classifier
from regard.models.decoder import RecurrentDecoder
from regard.models.embedder import Embedder
from regard.models.language_model import LanguageModel
from regard.models.model import COMMANDS
from regard.models.tagger import Tagger
from regard.models.target_language import add_target, language_of, target_languages
from regard.models.translator import Translator
from regard.pipelines.classify import classify, truncate
from regard.pipelines.embed import embed
from regard.pipelines.encoder_attention import encoder_attention
from regard.pipelines.generate import PromptEncoder, generate
from regard.pipelines.tag import tag
from regard.pipelines.token_words import Words
from regard.pipelines.translate import translate
from regard.serving.http_errors import RequestError, client_left

MAX_TOKENS = 512  # of one input, and of one output
GENERATED = 24  # tokens of a continuation by default
MAX_BEAM = 8

EXAMPLES = {
    "en": [
        "Where is my book?",
        "I don't know what to do.",
        "The old woman is reading a book to the children.",
    ],
    "de": ["Wo ist mein Buch?", "Ein Mann in einer roten Jacke klettert auf einen Berg.", "Ich weiß nicht."],
    "fr": ["Où est mon livre ?", "Je ne sais pas quoi faire.", "Un homme monte sur une montagne."],
}
TASK_EXAMPLES = {
    "classify": ["a film to remember, warm and funny", "long, dull and not worth the money"],
    "tag": ["Ada Lovelace met Charles Babbage in London.", "I fly from Paris to New York on Monday."],
    "embed": ["a cat sits on a mat", "the price of oil went up"],
    "generate": ["The king", "To be, or"],
}


@dataclass(frozen=True, eq=False)
class Job:
    """One text to run.

    Attributes:
        text: the text.
        to: the target language of a multilingual translator.
        beam: the beam size.
        edits: changes of attention by name, as for `regard.intervene`.
        base: an earlier run of the text, to compare with.
        cancelled: called at every step of a search; True stops it.
    """

    text: str
    to: str | None = None
    beam: int = 1
    edits: dict[str, list[Edit]] = field(default_factory=dict)
    base: Run | None = None
    cancelled: Callable[[], bool] = lambda: False


class ExploredModel:
    """Runs texts through a copy of the modules that shares all weights: hooks of `watch` and `intervene` do
    not reach requests of other routes. One text runs at a time.
    """

    def __init__(self, model: Any, name: str) -> None:
        if type(model) not in RUNNERS:
            raise OptionError(f"the explorer shows regard's own models, got {type(model).__name__}")
        shared = {id(x): x for x in (*model.parameters(), *model.buffers())}
        self.model, self.name = copy.deepcopy(model, shared), name
        self.task = COMMANDS[model.kind]
        self._lock = threading.Lock()

    def describe(self) -> dict[str, Any]:
        """What the page shows of the model before a text is run."""
        card = getattr(self.model, "card", None) or {}
        source = language_of(card, "source") if self.task == "translate" else None
        target = language_of(card, "target") if self.task == "translate" else None
        return {
            "name": self.name,
            "kind": self.model.kind.replace("-", " "),
            "task": self.task,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "languages": {"source": source, "target": target, "choices": list(target_languages(self.model))},
            "examples": TASK_EXAMPLES.get(self.task) or EXAMPLES.get(source or "en", EXAMPLES["en"]),
            "limits": {"tokens": MAX_TOKENS, "beam": MAX_BEAM},
        }

    def run(self, job: Job) -> Run:
        """Run one text; with a `base` run, also score both outputs with and without the edits."""
        if not job.text.strip():
            raise OptionError("there is no text; type some")
        with self._lock:
            run = RUNNERS[type(self.model)](self.model, job)
            if job.base is not None:
                _compare(self.model, job.base, run, job.edits)
        if job.cancelled():
            raise client_left()
        return run


@contextmanager
def _changed(model: Any, edits: dict[str, list[Edit]]) -> Iterator[None]:
    if not edits:
        yield
        return
    with intervene(model, edits):
        yield


def check_tokens(count: int, longest: int = MAX_TOKENS) -> None:
    """Raise RequestError if a text has more tokens than `longest`."""
    if count > longest:
        raise RequestError(
            422, f"the text has {count:,} tokens, and the explorer takes at most {longest}; shorten it"
        )


def _run_translator(model: Translator, job: Job) -> Run:
    (text_read,) = add_target([job.text], model, job.to)
    check_tokens(len(model.source_tokenizer.encode(text_read)))
    limits = Limits(workers=1)
    with _changed(model, job.edits):
        translation = translate(
            job.text, model, job.to, beam=job.beam, nbest=job.beam, limits=limits, cancelled=[job.cancelled]
        )
        if not translation.hypotheses:
            raise client_left()
        best = translation.hypotheses[0]
        tokens = best.all_tokens
        source = [*translation.source_tokens, EOS]
        ((_, maps),) = attention_of_tokens([source], [tokens], model)
        log_p = _log_probabilities(model, source, tokens)
    sides = {
        "source": Side.of(maps.source, Words.of_text(model.source_tokenizer, text_read)),
        "target": Side.of(maps.target, Words.of_tokens(model.target_tokenizer, tokens)),
        "inputs": Side.of(
            maps.inputs, Words.of_tokens(model.target_tokenizer, [BOS, *tokens[:-1]]) if tokens else None
        ),
    }
    output = {
        "text": str(translation),
        "logP": sum(log_p),
        "ended": best.ended,
        "tokenLogP": log_p,
        "hypotheses": [{"text": h.text, "logP": h.log_p, "score": h.score} for h in translation.hypotheses],
    }
    private = {"source": source, "target": tokens}
    return Run("translate", job.text, output, sides, maps, private, _rows_editable(model, maps))


def _run_language_model(model: LanguageModel, job: Job) -> Run:
    prompts = PromptEncoder(model, None)
    check_tokens(len(prompts.tokenizer.encode(job.text)))
    room = (
        None if prompts.positions is None else prompts.positions - len(prompts.tokenizer.encode(job.text)) - 1
    )
    longest = GENERATED if room is None else max(1, min(GENERATED, room))
    with _changed(model, job.edits):
        generation = generate(
            job.text,
            model,
            beam=job.beam,
            limits=Limits(max_length=longest, workers=1),
            cancelled=[job.cancelled],
        )
        if not generation.hypotheses:
            raise client_left()
        best = generation.hypotheses[0]
        first, *prompt = prompts.task(job.text, 0, longest).input_ids
        tokens = [*prompt, *best.all_tokens]
        ((_, maps),) = attention_of_tokens(None, [tokens], model, first=first)
        log_p = _log_probabilities(model, None, tokens, first)
    read = [first, *tokens[:-1]]
    sides = {
        "target": Side.of(maps.target, Words.of_tokens(prompts.tokenizer, tokens)),
        "inputs": Side.of(maps.inputs, Words.of_tokens(prompts.tokenizer, read)),
    }
    output = {
        "text": str(generation),
        "prompt": job.text,
        "promptTokens": len(prompt),
        "logP": sum(log_p[len(prompt) :]),
        "ended": best.ended,
        "tokenLogP": log_p,
        "hypotheses": [{"text": h.text, "logP": h.log_p, "score": h.score} for h in generation.hypotheses],
    }
    private = {"source": None, "target": tokens, "first": first, "prompt": len(prompt)}
    return Run("generate", job.text, output, sides, maps, private, _rows_editable(model, maps))


def _run_classifier(model: Classifier, job: Job) -> Run:
    (text_read,) = truncate(model, [job.text])
    check_tokens(len(model.source_tokenizer.encode(text_read)))
    with _changed(model, job.edits):
        label = classify(job.text, model)
        maps = _encoder_maps(model, text_read)
    words = Words.of_text(model.source_tokenizer, text_read)
    output = {"label": str(label), "probabilities": label.probabilities}
    return Run(
        "classify", job.text, output, _encoder_sides(maps, words, model.prepend_bos), maps, {}, _pooled(maps)
    )


def _run_tagger(model: Tagger, job: Job) -> Run:
    check_tokens(len(job.text.split()))
    with _changed(model, job.edits):
        try:
            tagged = tag(job.text, model, attention=True)
        except OptionError as error:
            if "no attention" not in str(error):
                raise
            tagged = tag(job.text, model)
    maps = tagged.attention
    output = {"words": tagged.words, "tags": tagged.tags, "text": str(tagged)}
    return Run("tag", job.text, output, _encoder_sides(maps, None, False), maps)


def _run_embedder(model: Embedder, job: Job) -> Run:
    count = len(model.source_tokenizer.encode(job.text))
    check_tokens(count + 1 + model.prepend_bos)
    if count + 1 + model.prepend_bos > model.longest:
        raise OptionError(f"the text has {count} tokens, and this model reads {model.longest}; shorten it")
    with _changed(model, job.edits):
        vector = embed(job.text, model, workers=1)
        maps = _encoder_maps(model, job.text)
    words = Words.of_text(model.source_tokenizer, job.text)
    output = {"width": len(vector), "vector": [round(float(x), 4) for x in vector[:64]]}
    sides = _encoder_sides(maps, words, model.prepend_bos)
    return Run("embed", job.text, output, sides, maps, {"vector": vector}, _pooled(maps))


RUNNERS: dict[type[Any], Callable[..., Run]] = {
    Translator: _run_translator,
    LanguageModel: _run_language_model,
    Classifier: _run_classifier,
    Tagger: _run_tagger,
    Embedder: _run_embedder,
}


def _encoder_maps(model: Any, text: str) -> AttentionMaps | None:
    """The attention maps of one text; None if the model has no attention."""
    try:
        return encoder_attention([text], model)[0]
    except OptionError as error:
        if "no attention" in str(error):
            return None
        raise


def _encoder_sides(maps: AttentionMaps | None, words: Words | None, prepend_bos: bool) -> dict[str, Side]:
    if maps is None:
        return {"source": Side.of([] if words is None else words.words)}
    queries = max((maps[name].shape[1] for name in maps.names("pooling")), default=0)
    return {
        "source": Side.of(maps.source, words, int(prepend_bos)),
        "queries": Side.of([f"query {i + 1}" for i in range(queries)]),
    }


def _pooled(maps: AttentionMaps | None) -> dict[str, bool]:
    """Queries of pooling have no position, by which `intervene` selects rows."""
    return {} if maps is None else dict.fromkeys(maps.names("pooling"), False)


def _rows_editable(model: Any, maps: AttentionMaps) -> dict[str, bool]:
    """Steps of a recurrent decoder have no position, by which `intervene` selects rows."""
    recurrent = isinstance(model.decoder, RecurrentDecoder)
    return {name: not (recurrent and kind_of(name) != "encoder") for name in maps}


@torch.no_grad()
def _log_probabilities(
    model: Any, source: list[int] | None, target: list[int], first: int = BOS
) -> list[float]:
    """The log probability of each target token given those before it (teacher forcing)."""
    if not target:
        return []
    read = torch.tensor([[first, *target[:-1]]], device=model.device)  # (1, T)
    with evaluation_mode(model):
        if source is None:
            scores = model(read)
        else:
            lengths = torch.tensor([len(source)], device=model.device)
            scores = model(torch.tensor([source], device=model.device), read, lengths)
    log_p = scores[0].double().log_softmax(-1)  # (T, vocabulary)
    return log_p[torch.arange(len(target)), torch.tensor(target)].tolist()


def _compare(model: Any, base: Run, run: Run, edits: dict[str, list[Edit]]) -> None:
    """Add to the output of `run` how likely each of the two outputs is with and without the edits."""
    if "vector" in run.private and "vector" in base.private:
        run.output["cosine"] = float(np.dot(base.private["vector"], run.private["vector"]))
    if "target" not in run.private or "target" not in base.private:
        return
    first = run.private.get("first", BOS)
    source, skipped = run.private["source"], run.private.get("prompt", 0)

    def log_p(target: list[int]) -> float:
        return sum(_log_probabilities(model, source, target, first)[skipped:])

    before, after = base.private["target"], run.private["target"]
    with _changed(model, edits):
        edited = [log_p(before), log_p(after)]
    run.output["comparison"] = {
        "original": {"plain": log_p(before), "edited": edited[0]},
        "changed": {"plain": log_p(after), "edited": edited[1]},
    }
