"""A model behind the explorer: run one text, plain or with changed attention."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from regard.attention.edits import Edit
from regard.attention.intervening import intervene
from regard.attention.watching import watch
from regard.data.conll_reader import one_word
from regard.data.tokenizer import BOS, EOS
from regard.decoding.attention_weights import AttentionMaps, attention_of_tokens, kind_of
from regard.decoding.batching import evaluation_mode
from regard.errors import OptionError
from regard.explorer.run import Run, Side, float32
from regard.explorer.run_job import MAX_TOKENS, Job, check_tokens
from regard.explorer.text_search import SearchResult, force_target, search, search_tree, text_read
from regard.explorer.trust import Cancelled, probe_of, trust
from regard.models.autoregressive import log_probabilities
from regard.models.classifier import Classifier
from regard.models.decoder import RecurrentDecoder
from regard.models.embedder import Embedder
from regard.models.frames import require_text
from regard.models.language_model import LanguageModel
from regard.models.model import COMMANDS
from regard.models.tagger import Tagger
from regard.models.target_language import language_of, target_languages
from regard.models.translator import Translator
from regard.pipelines.align import View
from regard.pipelines.classify import classify, truncate
from regard.pipelines.embed import embed
from regard.pipelines.encoder_attention import encoder_attention
from regard.pipelines.tag import tag
from regard.pipelines.token_words import Words
from regard.serving.http_errors import client_left

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


VIEWS = ["heads", "whatif", "trust", "compare", "mechanism"]  # of the page, for every task
TASK_VIEWS = {"translate": ["alignment", "search", *VIEWS], "generate": ["search", *VIEWS]}


def can_do(task: str) -> list[str]:
    """What the page may request besides runs; a site without a server can do less."""
    return ["stages", "diversity", "gold", "export", *(["force"] if task == "translate" else [])]


class ExploredModel:
    """Runs texts through a copy of the modules that shares all weights: hooks of `watch` and `intervene` do
    not reach requests of other routes. One text runs at a time.
    """

    def __init__(self, model: Any, name: str) -> None:
        if type(model) not in RUNNERS:
            raise OptionError(f"the explorer shows regard's own models, got {type(model).__name__}")
        require_text(model, "the explorer")
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
            "alignment": _alignment_layer(self.model),
            "views": TASK_VIEWS.get(self.task, VIEWS),
            "can": can_do(self.task),
        }

    def run(self, job: Job) -> Run:
        """Run one text; with a `base` run, also score both outputs with and without the edits."""
        if not job.text.strip():
            raise OptionError("there is no text; type some")
        if job.target:
            job = force_target(self.model, job)
        with self._lock:
            run = RUNNERS[type(self.model)](self.model, job)
            if job.base is not None:
                _compare(self.model, job.base, run, job.edits)
        if job.cancelled():
            raise client_left()
        return run

    def search_tree(self, job: Job, then: str = "") -> dict[str, Any]:
        """The tree of the search of a text; see `search_tree`."""
        with self._lock:
            return search_tree(self.model, job, then)

    def trust(self, run: Run, row: int | None, attention: str | None, cancelled: Cancelled) -> dict[str, Any]:
        """How far attention explains one output of a run; see `trust`."""
        with self._lock:
            return trust(run, lambda: probe_of(self.model, run, row, attention), attention, cancelled)

    @torch.no_grad()
    def stage(self, run: Run, index: int, head: int, stage: str) -> bytes:
        """One head of a map at a stage of `regard.attention`: float32, (rows, columns); masked: −∞."""
        rows, columns = run.check_head(index, head).shape
        name = run.names[index]
        edited = _changed(self.model, run.private.get("edits", {}))
        with self._lock, edited, watch(self.model, only=name) as seen:
            run.private["forward"]()
        calls = [call.weights(batch=0, head=head, stage=stage) for call in seen.calls(name)]
        return float32(torch.cat(calls, -2)[:rows, :columns].cpu())


def _alignment_layer(model: Any) -> int | None:
    """The layer that the alignment view shows first; the page shows the step that generates a token."""
    view = View.of(model)
    return None if view.shift else view.layer


@contextmanager
def _changed(model: Any, edits: dict[str, list[Edit]]) -> Iterator[None]:
    if not edits:
        yield
        return
    with intervene(model, edits):
        yield


def _run_translator(model: Translator, job: Job) -> Run:
    with _changed(model, job.edits):
        result = search(model, job)
        best, source = result.hypotheses[0], result.input_ids
        tokens = best.all_tokens
        ((_, maps),) = attention_of_tokens([source], [tokens], model)
        log_p = _log_probabilities(model, source, tokens)
    sides = {
        "source": Side.of(maps.source, Words.of_text(model.source_tokenizer, text_read(model, job))),
        "target": Side.of(maps.target, Words.of_tokens(model.target_tokenizer, tokens)),
        "inputs": Side.of(
            maps.inputs, Words.of_tokens(model.target_tokenizer, [BOS, *tokens[:-1]]) if tokens else None
        ),
    }
    output = {"text": best.text, "logP": sum(log_p), **_described(result, log_p, job, model)}
    private = {"source": source, "target": tokens, "edits": job.edits}
    private["forward"] = lambda: list(attention_of_tokens([source], [tokens], model))
    return Run("translate", job.text, output, sides, maps, private, _rows_editable(model, maps))


def _described(result: SearchResult, log_p: list[float], job: Job, model: Any) -> dict[str, Any]:
    return {
        "ended": result.hypotheses[0].ended,
        "tokenLogP": log_p,
        "hypotheses": [{"text": h.text, "logP": h.log_p, "score": h.score} for h in result.hypotheses],
        "forced": model.target_tokenizer.decode([t for t in job.prefix if t != EOS]) if job.prefix else "",
    }


def _run_language_model(model: LanguageModel, job: Job) -> Run:
    with _changed(model, job.edits):
        result = search(model, job)
        best = result.hypotheses[0]
        first, *prompt = result.input_ids
        tokens = [*prompt, *best.all_tokens]
        ((_, maps),) = attention_of_tokens(None, [tokens], model, first=first)
        log_p = _log_probabilities(model, None, tokens, first)
    tokenizer: Any = model.target_tokenizer
    sides = {
        "target": Side.of(maps.target, Words.of_tokens(tokenizer, tokens)),
        "inputs": Side.of(maps.inputs, Words.of_tokens(tokenizer, [first, *tokens[:-1]])),
    }
    output = {
        "text": best.text,
        "prompt": job.text,
        "promptTokens": len(prompt),
        "logP": sum(log_p[len(prompt) :]),
        **_described(result, log_p, job, model),
    }
    private = {"source": None, "target": tokens, "first": first, "prompt": len(prompt), "edits": job.edits}
    private["forward"] = lambda: list(attention_of_tokens(None, [tokens], model, first=first))
    return Run("generate", job.text, output, sides, maps, private, _rows_editable(model, maps))


def _run_classifier(model: Classifier, job: Job) -> Run:
    (text_read,) = truncate(model, [job.text])
    check_tokens(len(model.source_tokenizer.encode(text_read)))
    with _changed(model, job.edits):
        label = classify(job.text, model)
        maps = _encoder_maps(model, text_read)
    words = Words.of_text(model.source_tokenizer, text_read)
    output = {"label": str(label), "probabilities": label.probabilities}
    sides = _encoder_sides(maps, words, model.prepend_bos)
    return Run("classify", job.text, output, sides, maps, _again(model, text_read, job), _pooled(maps))


def _again(model: Any, text: str, job: Job) -> dict[str, Any]:
    """What a run keeps to repeat the forward pass of an encoder."""
    return {"edits": job.edits, "forward": lambda: encoder_attention([text], model)}


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
    private = _again(model, " ".join(map(one_word, tagged.words)), job)
    return Run("tag", job.text, output, _encoder_sides(maps, None, False), maps, private)


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
    private = {"vector": vector, **_again(model, job.text, job)}
    return Run("embed", job.text, output, sides, maps, private, _pooled(maps))


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
    log_p = log_probabilities(scores[0].double())  # (T, vocabulary)
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
