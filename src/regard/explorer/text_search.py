"""The search of a translator or language model for one text, also from a forced prefix, and its tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.data.language_guess import guess_language
from regard.data.tokenizer import BOS, EOS, PAD, UNK, split_language
from regard.decoding.batching import SearchJob, progress_bar, search_all
from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints
from regard.decoding.limits import Limits
from regard.decoding.search_trace import SearchTrace, TracedBeam
from regard.decoding.strategy import Hypothesis
from regard.errors import OptionError
from regard.explorer.run_job import Job, check_tokens
from regard.models.default import as_model
from regard.models.language_model import LanguageModel
from regard.models.target_language import PIVOT, add_target, target_languages
from regard.models.translator import Translator
from regard.pipelines.generate import PromptEncoder
from regard.pipelines.generate import start as start_prompts
from regard.pipelines.translate import translate_tokens
from regard.serving.http_errors import client_left

GENERATED = 24  # tokens of a continuation by default


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        input_ids: the source with its end-of-sentence token; for a language model the prompt with the token
            that it reads first.
        hypotheses: best first, with their texts.
    """

    input_ids: list[int]
    hypotheses: list[Hypothesis]


def search(model: Translator | LanguageModel, job: Job, strategy: Beam | None = None) -> SearchResult:
    """Translate or continue the text of a job; every hypothesis starts with `job.prefix`."""
    strategy = Beam(job.beam) if strategy is None else strategy
    if isinstance(model, Translator):
        result = _translate(model, job, strategy)
    else:
        result = _continue(model, job, strategy)
    if not result.hypotheses:
        raise client_left()
    return result


def text_read(model: Translator, job: Job) -> str:
    """The text as a translator reads it, with the token of the target language.

    If the page names no language, English is translated into the model's first other one.
    """
    to, codes = job.to, target_languages(model)
    has_code = split_language(job.text, codes)[0] is not None
    if to is None and not has_code and guess_language(job.text) in (None, PIVOT):
        to = next((code for code in codes if code != PIVOT), None)
    (text,) = add_target([job.text], model, to)
    return text


def check_prefix(prefix: Sequence[int], vocabulary: int, end: int = EOS) -> list[int]:
    """Return the token ids; raise OptionError if one of them cannot be generated."""
    for at, token in enumerate(prefix):
        if not 0 <= token < vocabulary or token in (PAD, BOS):
            raise OptionError(f"token {token} cannot be forced; choose one that the search shows")
        if token == end and at < len(prefix) - 1:
            raise OptionError("the end of the sentence can only be the last forced token")
    return list(prefix)


def _translate(model: Translator, job: Job, strategy: Beam) -> SearchResult:
    as_model(model, "translate", job.to)  # checks the target language
    prefix = check_prefix(job.prefix, len(model.target_tokenizer))
    ids = model.source_tokenizer.encode(text_read(model, job))
    check_tokens(len(ids))
    if not ids:
        raise OptionError("the tokenizer makes no token of this text; type another")
    (hypotheses,) = translate_tokens(
        model,
        [ids],
        strategy=strategy,
        constraints=TokenConstraints(prefixes=[prefix]),
        limits=Limits(workers=1),
        cancelled=[job.cancelled],
    )
    for hypothesis in hypotheses:
        hypothesis.text = model.target_tokenizer.decode(hypothesis.tokens)
    return SearchResult([*ids, EOS], hypotheses)


def _continue(model: LanguageModel, job: Job, strategy: Beam) -> SearchResult:
    prompts = PromptEncoder(model, None)
    prefix = check_prefix(job.prefix, len(prompts.tokenizer), prompts.end)
    count = len(prompts.tokenizer.encode(job.text))
    check_tokens(count)
    longest = GENERATED + len(prefix)
    if prompts.positions is not None:
        longest = max(1, min(longest, prompts.positions - count - 1))
    task = prompts.task(job.text, 0, longest)
    if len(prefix) > longest:
        raise OptionError(
            f"{len(prefix)} tokens are forced, and the text has room for {longest}; force fewer"
        )
    task.prefix, task.cancelled = prefix, job.cancelled
    work = SearchJob(
        model, lambda batch: start_prompts(model, batch), strategy, TokenConstraints(), prompts.end
    )
    with progress_bar(False, 1, "generate", "texts") as bar:
        search_all([task], work, Limits(workers=1), bar)
    for hypothesis in task.hypotheses:
        hypothesis.text = prompts.decode(task, hypothesis.tokens)
    return SearchResult(task.input_ids, task.hypotheses)


def search_tree(model: Any, job: Job, then: str = "") -> dict[str, Any]:
    """Search a text and return the tree as JSON; `then` is text that is forced after the prefix."""
    if not isinstance(model, Translator | LanguageModel):
        raise OptionError("this model generates no text, so there is no search")
    job = replace(job, prefix=(*job.prefix, *_spell(model.target_tokenizer, then)))
    strategy = TracedBeam(job.beam, pruned=max(job.beam, 4))
    result = search(model, job, strategy)
    names = model.target_tokenizer.tokens([max(0, node.token) for node in strategy.trace.nodes])
    return tree_as_json(job, strategy.trace, result.hypotheses, names)


def tree_as_json(
    job: Job, trace: SearchTrace, hypotheses: Sequence[Hypothesis], names: Sequence[str], end: int = EOS
) -> dict[str, Any]:
    """The tree of a search and its hypotheses, best first; `names` are the tokens of its nodes."""
    return {
        "beam": job.beam,
        "prefix": list(job.prefix),
        "nodes": [
            {
                "parent": node.parent,
                "id": node.token,
                "token": name,
                "step": node.step,
                "logP": node.log_p,
                "score": node.score,
                "rank": node.rank,
                "status": node.status,
            }
            for node, name in zip(trace.nodes, names, strict=True)
        ],
        "hypotheses": [
            {
                "text": hypothesis.text,
                "logP": hypothesis.log_p,
                "score": hypothesis.score,
                "ended": hypothesis.ended,
                "nodes": trace.find(hypothesis, end),
            }
            for hypothesis in hypotheses
        ],
    }


def force_target(model: Any, job: Job) -> Job:
    """The job with the tokens of its target as prefix, up to the end of the sentence."""
    if not isinstance(model, Translator):
        raise OptionError("a translation can be forced on a translator only")
    tokens = _spell(model.target_tokenizer, job.target)
    check_tokens(len(tokens), name="the translation")
    return replace(job, prefix=(*tokens, EOS))


def _spell(tokenizer: Any, text: str) -> list[int]:
    tokens = tokenizer.encode(text) if text.strip() else []
    if UNK in tokens:
        raise OptionError(f"{text.strip()[:40]!r} is not in the vocabulary of this model; force another word")
    return tokens
