"""Text in, text out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import BOS, EOS, PAD, UNK
from regard.decoding.batching import search_all, show
from regard.decoding.beam import Beam, whole
from regard.decoding.constraints import Constraints, forbid
from regard.decoding.coverage import rescore, torch_model
from regard.decoding.length_limits import LengthLimits
from regard.decoding.required_words import RequiredWords
from regard.decoding.sampling import Sample, check_sample
from regard.decoding.search import Search
from regard.decoding.strategy import Hypothesis, SearchTask
from regard.decoding.streaming import one_row, stream_tokens
from regard.errors import OptionError
from regard.models.default import as_model


class Translation(str):
    """The best text of a sentence, with all that were asked for in `.hypotheses`, best first (samples: as drawn).

    `.source_tokens` are the numbers of the source's pieces, without the end mark. An empty line has no hypotheses.
    """

    hypotheses: list[Hypothesis]
    source_tokens: list[int]

    def __new__(
        cls, text: str, hypotheses: Sequence[Hypothesis] = (), source_tokens: Sequence[int] = ()
    ) -> Translation:
        made = super().__new__(cls, text)
        made.hypotheses = arguments.as_list("hypotheses", hypotheses, "a list of hypotheses")
        made.source_tokens = arguments.as_list("source_tokens", source_tokens, "a list of token ids")
        return made


@overload
def translate(texts: str, model: Any = None, to: str | None = None, **options: Any) -> Translation: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def translate(
    texts: Sequence[str], model: Any = None, to: str | None = None, **options: Any
) -> list[Translation]: ...


def translate(  # pyright: ignore[reportInconsistentOverload]
    texts: str | Sequence[str],
    model: Any = None,
    to: str | None = None,
    *,
    beam: int | Beam = 1,
    length_penalty: float = 1.0,
    coverage_penalty: float = 0.0,
    groups: int = 1,
    diversity: float = 0.5,
    sample: Sample | None = None,
    nbest: int | None = None,
    prefixes: Sequence[str] | None = None,
    required: Sequence[Sequence[str]] | None = None,
    forbidden: Sequence[str] = (),
    no_repeat: int = 0,
    min_length: int = 0,
    max_length: int | None = None,
    attention: bool = False,
    batch_tokens: int | None = None,
    workers: int | None = None,
    progress: bool = False,
    cancelled: Sequence[Callable[[], bool]] | None = None,
) -> Translation | list[Translation]:
    """Translate one sentence, or a list of them in order. An empty one stays empty.

    >>> regard.translate("Where is my book?", "runs/small")
    'Wo ist mein Buch?'
    >>> regard.translate(["Tom is happy.", "We have no time."], model, beam=4)
    ['Tom ist glücklich.', 'Wir haben keine Zeit.']

    `model` is a folder, a loaded model, or left out for the default (the folder in REGARD_MODEL). `to` is the language to
    translate into; a model of one direction refuses another than its own.

    The search is a beam (1: greedy; see `Beam` for the penalties, `groups` and `diversity`), or a `sample`. `nbest` texts are
    kept for each sentence: of a beam one unless told, of a sample all. Lengths are in tokens; a text is at most 3/2 of its
    source + 20 long unless `max_length` says otherwise. `prefixes` and `required` hold what each translation begins with, and
    the words it must hold; `forbidden` words occur in none, and no `no_repeat` tokens in a row occur twice. `attention=True`
    puts the weights of every layer and head on each hypothesis.

    `cancelled` holds a function for each sentence that is asked at every step: once it is true the sentence leaves the search
    and has no hypotheses; the others are not affected.
    """
    beam = beam if isinstance(beam, Beam) else Beam(beam, length_penalty, coverage_penalty, groups, diversity)
    nbest = _nbest(nbest, check_sample(sample) or beam)
    texts, one = arguments.one_or_more("texts", texts)
    model = as_model(model, "translate", to)
    source, target = _tokenizers(model)
    attention, progress = arguments.flag("attention", attention), arguments.flag("progress", progress)
    prefixes = None if prefixes is None else arguments.string_list("prefixes", prefixes)
    required = (
        None if required is None else arguments.as_list("required", required, "a list of lists of words")
    )
    cancelled = arguments.function_list("cancelled", cancelled, len(texts), "sentences")
    for name, given in (("prefixes", prefixes), ("required", required)):
        if given is not None and len(given) != len(texts):
            raise OptionError(
                f"{name} has {len(given)} entries for {len(texts)} sentences; give one for each"
            )
    for words in required or ():
        arguments.string_list("required", words, "words")
    encoded = source.encode_batch(list(texts))
    found = translate_tokens(
        model,
        encoded,
        beam=beam,
        sample=sample,
        rules=Constraints(min_length, no_repeat, forbid(target, forbidden)),
        prefixes=None if prefixes is None else [_spelled(target, "prefix", text) for text in prefixes],
        required=None
        if required is None
        else [[_spelled(target, "required word", w) for w in words] for words in required],
        max_length=max_length,
        batch_tokens=batch_tokens,
        workers=workers,
        progress=progress,
        cancelled=cancelled,
    )
    found = [hypotheses[:nbest] for hypotheses in found]
    if attention:
        _look(model, encoded, found)
    for hypotheses in found:
        for hypothesis in hypotheses:
            hypothesis.text = target.decode(hypothesis.tokens)
    translations = [
        Translation(h[0].text if h else "", h, tokens) for h, tokens in zip(found, encoded, strict=True)
    ]
    return translations[0] if one else translations


def translate_tokens(
    model: Any,
    sentences: Sequence[Sequence[int]],
    *,
    beam: Beam | None = None,
    sample: Sample | None = None,
    rules: Constraints | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    required: Sequence[Sequence[Sequence[int]]] | None = None,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    workers: int | None = None,
    progress: bool = False,
    cancelled: Sequence[Callable[[], bool]] | None = None,
) -> list[list[Hypothesis]]:
    """The texts found for each sentence of token ids, as the strategy orders them; none for an empty one.

    Sentences of like length share a batch of at most `batch_tokens` (sources times texts under way), `workers` batches at a time.
    """
    strategy, rules = sample or beam or Beam(), rules or Constraints()
    for name, value in (("max_length", max_length), ("batch_tokens", batch_tokens), ("workers", workers)):
        if value is not None:
            whole(name, value, 1)
    limit = LengthLimits(model, max_length, rules)
    tasks = [
        limit(
            SearchTask(
                0,
                list(sentence),
                list(prefixes[i] if prefixes else ()),
                _phrases(required[i] if required else ()),
                i,
            )
        )
        for i, sentence in enumerate(sentences)
    ]
    for task, asked in zip(tasks, cancelled or (), strict=False):
        task.cancelled = asked
    if any(task.required for task in tasks) and (not isinstance(strategy, Beam) or strategy.groups > 1):
        raise OptionError("required words need a plain beam; leave out the sample or the groups")
    with show(progress, len(tasks), "translate", "sentences") as bar:
        begin = lambda tasks: start(model, tasks)  # noqa: E731
        options: dict[str, Any] = {"rules": rules, "batch_tokens": batch_tokens, "workers": workers}
        search_all(model, [t for t in tasks if t.given and not t.required], begin, strategy, bar, **options)
        bound = [t for t in tasks if t.given and t.required]
        if bound and isinstance(strategy, Beam):
            search_all(model, bound, begin, RequiredWords(strategy), bar, **options)
    if isinstance(strategy, Beam) and strategy.coverage_penalty:
        rescore(model, tasks, strategy)
    return [task.found for task in tasks]


def stream(
    text: str,
    model: Any = None,
    to: str | None = None,
    *,
    sample: Sample | None = None,
    prefix: str = "",
    forbidden: Sequence[str] = (),
    no_repeat: int = 0,
    min_length: int = 0,
    max_length: int | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """A translation piece by piece as its words are found, greedy or one sample; together they are what `translate` gives."""
    arguments.string_list("text", [text])
    model = as_model(model, "translate", to)
    source, target = _tokenizers(model)
    strategy = one_row(sample)
    rules = Constraints(min_length, no_repeat, forbid(target, forbidden))
    task = LengthLimits(model, max_length, rules)(
        SearchTask(0, source.encode(text), _spelled(target, "prefix", prefix))
    )
    task.cancelled = cancelled
    if not task.given:
        return iter(())
    return stream_tokens(Search(model, strategy, rules), task, lambda: start(model, [task]), target.decode)


def start(model: Any, tasks: list[SearchTask]) -> tuple[Any, Tensor]:
    """What a writer carries before the first word of each sentence, and the token that begins them all."""
    lengths = np.array([len(task.given) + 1 for task in tasks])
    ids = np.full((len(tasks), lengths.max()), PAD)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = np.fromiter(_with_ends(tasks), np.int64, lengths.sum())
    source = torch.from_numpy(ids).to(model.device)
    memory = model.encode(source, torch.from_numpy(lengths).to(model.device))
    if hasattr(memory, "allow"):  # a shortlist: what a text must hold stays possible
        memory.allow(
            [{*task.prefix, *(word for phrase in task.required for word in phrase)} for task in tasks]
        )
    first = source.new_full((len(tasks),), BOS)
    return model.start(memory, first), first


def _with_ends(tasks: list[SearchTask]) -> Iterator[int]:
    for task in tasks:
        yield from task.given
        yield EOS


def _tokenizers(model: Any) -> tuple[Any, Any]:
    found = getattr(model, "source_tokenizer", None), getattr(model, "target_tokenizer", None)
    if None in found or not hasattr(model, "encode"):
        raise OptionError(
            "translate takes a translator with its tokenizers, as regard.load gives it; for a language model use generate"
        )
    return found


def _spelled(tokenizer: Any, what: str, text: str) -> list[int]:
    tokens = tokenizer.encode(text) if text else []
    if UNK in tokens:
        raise OptionError(
            f"the {what} {text!r} has characters that this model cannot write; leave it out or spell it otherwise"
        )
    return tokens


def _phrases(required: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each phrase once; one of no tokens asks for nothing."""
    return [list(phrase) for phrase in dict.fromkeys(map(tuple, required)) if phrase]


def _nbest(nbest: int | None, strategy: Beam | Sample) -> int:
    most, name = (
        (strategy.size, "beam") if isinstance(strategy, Beam) else (strategy.count, "count of samples")
    )
    if nbest is None:
        return 1 if isinstance(strategy, Beam) else most
    whole("nbest", nbest, 1)
    if nbest > most:
        raise OptionError(f"nbest {nbest} needs a {name} of at least {nbest}, got {most}")
    return nbest


def _look(model: Any, sources: list[list[int]], found: list[list[Hypothesis]]) -> None:
    """Put the attention of each hypothesis on it."""
    from regard.decoding.attention import attention_maps

    flat = [
        (tokens, hypothesis)
        for tokens, hypotheses in zip(sources, found, strict=True)
        for hypothesis in hypotheses
    ]
    seen = attention_maps(
        [tokens for tokens, _ in flat], [hypothesis.whole for _, hypothesis in flat], torch_model(model)
    )
    for (_, hypothesis), attention in zip(flat, seen, strict=True):
        hypothesis.attention = attention
