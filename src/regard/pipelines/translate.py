"""`translate`: texts in, translations out; `stream`: one translation token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, overload

import torch
from torch import Tensor

from regard import arguments
from regard.data.padding import pad_sources
from regard.data.sequence_files import is_sequence
from regard.data.tokenizer import BOS
from regard.decoding.attention_weights import AttentionMaps, attention_maps
from regard.decoding.batching import SearchJob, progress_bar, search_all
from regard.decoding.beam import as_strategy, default_beam
from regard.decoding.constraints import Constraints, TokenConstraints, as_constraints
from regard.decoding.gc_pause import gc_paused
from regard.decoding.limits import LengthLimiter, Limits, as_limits
from regard.decoding.search import Search, torch_model
from regard.decoding.strategy import Hypothesis, SearchTask, Strategy
from regard.decoding.token_stream import check_streamable, stream_tokens
from regard.errors import OptionError
from regard.models.default import as_model
from regard.models.target_language import add_target, warn_of_wrong_language
from regard.pipelines.capitals import forbid_lower_case
from regard.pipelines.text_form import PLAIN, Form, as_read
from regard.pipelines.text_warnings import (
    warn_of_left_out,
    warn_of_long_texts,
    warn_of_unknown_characters,
)

Cancelled = Sequence[Callable[[], bool]]  # one function per text


class Translation(str):
    """The best translation of a text, a string with attributes.

    Attributes:
        hypotheses: the n best hypotheses, best first; samples in the order of sampling. Empty for an empty
            text.
        source_tokens: the token ids of the source, with its language token, without the end-of-sentence
            token.
    """

    hypotheses: list[Hypothesis]
    source_tokens: list[int]

    def __new__(
        cls, text: str, hypotheses: Sequence[Hypothesis] = (), source_tokens: Sequence[int] = ()
    ) -> Translation:
        translation = super().__new__(cls, text)
        translation.hypotheses = arguments.as_list("hypotheses", hypotheses, "a list of hypotheses")
        translation.source_tokens = arguments.as_list("source_tokens", source_tokens, "a list of token ids")
        return translation

    @property
    def attention(self) -> AttentionMaps | None:
        """The attention maps of the best hypothesis; None without `attention=True` and for an empty text."""
        return self.hypotheses[0].attention if self.hypotheses else None


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
    beam: int | None = None,
    strategy: Strategy | None = None,
    constraints: Constraints | None = None,
    limits: Limits | None = None,
    nbest: int | None = None,
    attention: bool = False,
    progress: bool = False,
    cancelled: Cancelled | None = None,
) -> Translation | list[Translation]:
    """Translate a text or a list of texts; an empty text stays empty.

    >>> regard.translate("Where is my book?", "tatoeba-en-de-bahdanau")
    'Wo ist mein Buch?'
    >>> model = regard.load("tatoeba-en-de-bahdanau")
    >>> regard.translate(["Tom is happy.", "We have no time."], model, strategy=regard.Beam(4))
    ['Tom ist glücklich.', 'Wir haben keine Zeit.']

    Args:
        texts: one text or a list of texts; the result has the same form and order. A model of sequences of
            numbers takes files (.npy, .csv) or arrays (frames, channels) instead.
        model: a model folder or a name of `regard models`, a loaded translator, an engine (`regard.fast`) or
            an `Ensemble`. By default the folder in REGARD_MODEL, else a bundled model.
        to: the target language. A model of several languages needs it, unless the text begins with a code
            (`>>de<< Hello.`) or is in another language than English, which is then the target.
        beam: beam size; short for `strategy=Beam(beam)`. By default that of the model's card, else 1, greedy
            search.
        strategy: a `Beam`, a `Sample` or another `Strategy`.
        constraints: prefixes, required and forbidden words, see `Constraints`.
        limits: maximum length, batch size and threads, see `Limits`.
        nbest: hypotheses per text; by default 1 of a beam and all samples.
        attention: store the attention maps of all layers and heads in `Hypothesis.attention`.
        progress: show a progress bar.
        cancelled: one function per text, called at every step; True ends the search without hypotheses.
    """
    named = None if beam is None and strategy is None else as_strategy(beam, strategy)
    nbest = None if nbest is None else arguments.integer("nbest", nbest)
    if named is not None:
        named.check_nbest(nbest)  # before the model is loaded
    attention, progress = arguments.flag("attention", attention), arguments.flag("progress", progress)
    texts = arguments.reusable(texts)
    if not is_sequence(texts):
        arguments.one_or_more("texts", texts)
    model = as_model(model, "translate", to)
    source, target = _tokenizers(model)
    strategy = named or default_beam(getattr(model, "card", None))
    count = strategy.check_nbest(nbest)
    texts, single = source.inputs(texts)
    cancelled = arguments.function_list("cancelled", cancelled, len(texts), "texts")
    forms = [PLAIN] * len(texts)
    constraints = as_constraints(constraints)
    if source.kind != "frames":
        warn_of_wrong_language(texts, model, to)
        texts, forms, constraints = _as_read(texts, source, model, to, constraints)
    encoded = source.encode_batch(texts)
    if source.kind != "frames":
        warn_of_long_texts(texts, encoded, model)
    results = translate_tokens(
        model, encoded, strategy=strategy, limits=as_limits(limits), progress=progress, cancelled=cancelled,
        constraints=constraints.encode(target, len(texts)),
    )  # fmt: skip
    results = [hypotheses[:count] for hypotheses in results]
    if attention:
        _add_attention(model, encoded, results)
    translations = _to_text(encoded, results, target, forms)
    return translations[0] if single else translations


def _as_read(
    texts: Sequence[str], source: Any, model: Any, to: str | None, constraints: Constraints
) -> tuple[list[str], list[Form], Constraints]:
    """The texts as the model reads them, the forms of their translations, the constraints of the outputs."""
    read, forms = as_read(add_target(texts, model, to), model, constraints)
    warn_of_left_out("".join(form.left_out for form in forms))
    warn_of_unknown_characters(read, source)
    return read, forms, forbid_lower_case(constraints, [form.capitals for form in forms])


def _to_text(
    sources: list[list[int]], results: list[list[Hypothesis]], tokenizer: Any, forms: list[Form]
) -> list[Translation]:
    """Decode the tokens of all hypotheses; the text of the best is the translation."""
    translations = []
    for tokens, hypotheses, form in zip(sources, results, forms, strict=True):
        for hypothesis in hypotheses:
            hypothesis.text = form.write(tokenizer.decode(hypothesis.tokens))
        text = "" if len(tokens) else form.write("")  # a text of symbols alone is its own translation
        translations.append(Translation(hypotheses[0].text if hypotheses else text, hypotheses, tokens))
    return translations


def translate_tokens(
    model: Any,
    sentences: Sequence[Sequence[int]],
    *,
    strategy: Strategy | None = None,
    constraints: TokenConstraints | None = None,
    limits: Limits | None = None,
    progress: bool = False,
    cancelled: Cancelled | None = None,
) -> list[list[Hypothesis]]:
    """Translate sentences given as token ids; return the hypotheses of each, none for an empty sentence."""
    strategy, limits = as_strategy(None, strategy), as_limits(limits)
    constraints = constraints or TokenConstraints()
    tasks = translation_tasks(model, sentences, constraints, limits)
    for task, is_cancelled in zip(tasks, cancelled or (), strict=False):
        task.cancelled = is_cancelled
    with_required = strategy.with_required() if any(task.required for task in tasks) else strategy
    with progress_bar(progress, len(tasks), "translate", "sentences") as bar:
        for grid, job_strategy in ((False, strategy), (True, with_required)):
            todo = [task for task in tasks if task.input_ids and bool(task.required) is grid]
            job = SearchJob(model, lambda batch: start(model, batch), job_strategy, constraints)
            search_all(todo, job, limits, bar)
    strategy.rescore(model, tasks)
    return [task.hypotheses for task in tasks]


@gc_paused()
def translation_tasks(
    model: Any, sentences: Sequence[Sequence[int]], constraints: TokenConstraints, limits: Limits
) -> list[SearchTask]:
    """Create a task for each sentence and check its length."""
    limit_length = LengthLimiter(model, limits.max_length, constraints)
    return [
        limit_length(
            SearchTask(0, list(sentence), constraints.prefix_of(i), constraints.required_of(i), index=i)
        )
        for i, sentence in enumerate(sentences)
    ]


def stream(
    text: str,
    model: Any = None,
    to: str | None = None,
    *,
    strategy: Strategy | None = None,
    constraints: Constraints | None = None,
    limits: Limits | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield a translation in pieces as tokens are generated; joined, they are what `translate` returns.

    >>> print(*regard.pipelines.stream("Where is my book?", "tatoeba-en-de-bahdanau"), sep="")
    Wo ist mein Buch?

    `strategy` is greedy search (the default, whatever the model's card says) or a `Sample` with count 1; the
    other arguments are those of `translate`.
    """
    arguments.string_list("text", [text])
    strategy = check_streamable(as_strategy(None, strategy))
    model = as_model(model, "translate", to)
    source, target = _tokenizers(model)
    (text,), (form,), constraints = _as_read([text], source, model, to, as_constraints(constraints))
    encoded = constraints.encode(target, 1)
    if encoded.required_of(0):
        raise OptionError("constraints.required needs beam search, which cannot be streamed; leave it out")
    (ids,) = encoded_text = source.encode_batch([text])
    warn_of_long_texts([text], encoded_text, model)
    (task,) = translation_tasks(model, [ids], encoded, as_limits(limits))
    task.cancelled = cancelled
    if not task.input_ids:
        return form.write_pieces([])
    search = Search(model, strategy, encoded)
    pieces = stream_tokens(search, task, lambda: start(model, [task]), target.decode)
    return form.write_pieces(pieces)


def start(model: Any, tasks: list[SearchTask]) -> tuple[Any, Tensor]:
    """Encode the source sentences; return the decoder state and the first token, BOS, of each."""
    ids, lengths = pad_sources([task.input_ids for task in tasks])
    source = torch.from_numpy(ids).to(model.device)
    memory = model.encode(source, torch.from_numpy(lengths).to(model.device))
    if hasattr(memory, "allow"):  # a shortlist must not exclude prefixes and required phrases
        memory.allow([{*task.prefix, *chain.from_iterable(task.required)} for task in tasks])
    first = torch.full((len(tasks),), BOS, device=source.device)
    return model.start(memory, first), first


def _tokenizers(model: Any) -> tuple[Any, Any]:
    tokenizers = getattr(model, "source_tokenizer", None), getattr(model, "target_tokenizer", None)
    if None in tokenizers or not hasattr(model, "encode") or not hasattr(model, "start"):
        raise OptionError(
            "translate needs a translator with its tokenizers, as regard.load returns it; "
            "for a language model use generate"
        )
    return tokenizers


def _add_attention(model: Any, sources: list[list[int]], results: list[list[Hypothesis]]) -> None:
    """Store the attention maps in each hypothesis."""
    pairs = [(tokens, h) for tokens, hypotheses in zip(sources, results, strict=True) for h in hypotheses]
    inputs, outputs = [tokens for tokens, _ in pairs], [h.all_tokens for _, h in pairs]
    for (_, hypothesis), maps in zip(pairs, attention_maps(inputs, outputs, torch_model(model)), strict=True):
        hypothesis.attention = maps
