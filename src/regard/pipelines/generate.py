"""`generate`: continue texts with a language model; `stream`: one continuation token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import BOS, EOS
from regard.decoding.attention_weights import AttentionMaps, attention_of_tokens
from regard.decoding.batching import SearchJob, progress_bar, search_all
from regard.decoding.beam import as_strategy
from regard.decoding.constraints import Constraints, TokenConstraints, as_constraints
from regard.decoding.limits import Limits, as_limits, check_lengths
from regard.decoding.search import Search, torch_model
from regard.decoding.strategy import Hypothesis, SearchTask, Strategy
from regard.decoding.token_stream import check_streamable, stream_tokens
from regard.errors import OptionError
from regard.models.default import as_model
from regard.models.encoder import max_positions
from regard.pipelines.text_warnings import warn_of_unknown_characters

MAX_LENGTH = 100  # tokens of a continuation by default


class Generation(str):
    """The continuation of a prompt, without the prompt; a string with attributes.

    Attributes:
        prompt: the prompt.
        hypotheses: all hypotheses, best first; samples in the order of sampling.
    """

    prompt: str
    hypotheses: list[Hypothesis]

    def __new__(cls, text: str, prompt: str = "", hypotheses: Sequence[Hypothesis] = ()) -> Generation:
        generation = super().__new__(cls, text)
        generation.prompt, generation.hypotheses = prompt, list(hypotheses)
        return generation

    @property
    def attention(self) -> AttentionMaps | None:
        """The attention maps of prompt and best continuation; None without `attention=True`."""
        return self.hypotheses[0].attention if self.hypotheses else None


@overload
def generate(texts: str, model: Any = None, **options: Any) -> Generation: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def generate(texts: Sequence[str], model: Any = None, **options: Any) -> list[Generation]: ...


def generate(  # pyright: ignore[reportInconsistentOverload]
    texts: str | Sequence[str],
    model: Any = None,
    *,
    beam: int | None = None,
    strategy: Strategy | None = None,
    constraints: Constraints | None = None,
    limits: Limits | None = None,
    multiline: bool | None = None,
    attention: bool = False,
    progress: bool = False,
    cancelled: Sequence[Callable[[], bool]] | None = None,
) -> Generation | list[Generation]:
    """Continue a text or each text of a list with a language model.

    >>> strategy, limits = regard.Sample(seed=1), regard.Limits(max_length=12)
    >>> regard.generate("To be, or", "shakespeare-small", strategy=strategy, limits=limits)
    ' in thy imag'

    Args:
        texts: one prompt or a list of prompts; the result has the same form and order.
        model: a model folder, a name of `regard models` or a loaded language model. By default the folder in
            REGARD_MODEL, else a bundled model.
        beam: beam size; short for `strategy=Beam(beam)`. By default 1, greedy search.
        strategy: a `Beam`, a `Sample` or another `Strategy`.
        constraints: forbidden words, no repeated n-grams, minimum length; see `Constraints`. `prefix` and
            `required` are for `translate` only.
        limits: maximum length (100 tokens by default), batch size and threads, see `Limits`.
        multiline: continue after the end of a line. By default True for a model trained on running text
            (batch.mode stream or crops in its recipe), False for one trained on lines.
        attention: store the attention maps of prompt and continuation in `Hypothesis.attention`; that of the
            best is `Generation.attention`, which `plot` draws.
        progress: show a progress bar.
        cancelled: as for `translate`.
    """
    strategy, limits = as_strategy(beam, strategy), as_limits(limits)
    texts, single = arguments.one_or_more("texts", texts)
    attention, progress = arguments.flag("attention", attention), arguments.flag("progress", progress)
    cancelled = arguments.function_list("cancelled", cancelled, len(texts), "texts")
    model = as_model(model, "generate")
    prompts = PromptEncoder(model, None if multiline is None else arguments.flag("multiline", multiline))
    encoded = _encode_constraints(constraints, prompts.tokenizer, limits.max_length)
    warn_of_unknown_characters(texts, prompts.tokenizer)
    tasks = [prompts.task(prompt, i, limits.max_length) for i, prompt in enumerate(texts)]
    for task, is_cancelled in zip(tasks, cancelled or (), strict=False):
        task.cancelled = is_cancelled
    job = SearchJob(
        model, lambda batch: start(model, batch), strategy, encoded, prompts.end, equal_lengths=True
    )
    with progress_bar(progress, len(tasks), "generate", "texts") as bar:
        search_all(tasks, job, limits, bar)
    if attention:
        _add_attention(model, tasks)
    generations = []
    for task, prompt in zip(tasks, texts, strict=True):
        for hypothesis in task.hypotheses:
            hypothesis.text = prompts.decode(task, hypothesis.tokens)
        best = task.hypotheses[0].text if task.hypotheses else ""
        generations.append(Generation(best, prompt, task.hypotheses))
    return generations[0] if single else generations


def stream(
    prompt: str,
    model: Any = None,
    *,
    strategy: Strategy | None = None,
    constraints: Constraints | None = None,
    limits: Limits | None = None,
    multiline: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield a continuation in pieces as tokens are generated; joined, they are what `generate` returns.

    `strategy` is greedy search (the default) or a `Sample` with count 1; the other arguments are those of
    `generate`.
    """
    strategy = check_streamable(as_strategy(None, strategy))
    model = as_model(model, "generate")
    prompts = PromptEncoder(model, multiline)
    max_length = as_limits(limits).max_length
    encoded = _encode_constraints(constraints, prompts.tokenizer, max_length)
    search = Search(model, strategy, encoded, prompts.end)
    warn_of_unknown_characters([prompt], prompts.tokenizer)
    task = prompts.task(prompt, 0, max_length)
    task.cancelled = cancelled
    return stream_tokens(
        search, task, lambda: start(model, [task]), lambda tokens: prompts.decode(task, tokens)
    )


def start(model: Any, tasks: list[SearchTask]) -> tuple[Any, Tensor]:
    """Run the decoder over the prompts, all of one length, except their last tokens.

    Return the decoder state and the last tokens, which are the input of the first search step.
    """
    prompts = torch.tensor([task.input_ids for task in tasks], device=model.device)  # (texts, length)
    state = model.start(None, prompts[:, 0])
    if prompts.shape[1] > 1:
        state = model.read(prompts[:, :-1], state)
    return state, prompts[:, -1]


def _add_attention(model: Any, tasks: list[SearchTask]) -> None:
    """Store the attention maps of prompt and continuation in each hypothesis."""
    pairs = [(task, hypothesis) for task in tasks for hypothesis in task.hypotheses]
    texts = [[*task.input_ids[1:], *hypothesis.tokens] for task, hypothesis in pairs]
    first = pairs[0][0].input_ids[0] if pairs else BOS
    for i, maps in attention_of_tokens(None, texts, torch_model(model), first=first):
        pairs[i][1].attention = maps


def _encode_constraints(constraints: Any, tokenizer: Any, max_length: int | None) -> TokenConstraints:
    constraints = as_constraints(constraints)
    for name, fix in (("prefix", "add it to the prompt"), ("required", "leave it out")):
        if getattr(constraints, name):
            raise OptionError(f"constraints.{name} is for translate; {fix}")
    encoded = constraints.encode(tokenizer, 1)
    check_lengths(max_length or MAX_LENGTH, encoded)
    return encoded


class PromptEncoder:
    """Convert prompts into tokens and tokens into text.

    For a model trained on lines, a text starts with BOS and ends with EOS. A model trained on running text
    reads EOS, or "\\n" if its vocabulary has it, at each line end; its prompts start with one.
    """

    def __init__(self, model: Any, multiline: bool | None) -> None:
        tokenizer: Any = getattr(model, "target_tokenizer", None)
        if tokenizer is None or hasattr(model, "encode") or not hasattr(model, "start"):
            raise OptionError(
                "generate needs a language model with its tokenizer, as regard.load returns it; "
                "for a translator use translate"
            )
        self.tokenizer = tokenizer
        self.positions = max_positions(getattr(torch_model(model), "decoder", None))
        mode = ((getattr(model, "card", {}).get("recipe") or {}).get("batch") or {}).get("mode") or "lines"
        self.running_text = mode != "lines"
        self.end = -1 if (self.running_text if multiline is None else multiline) else EOS  # -1: never
        newline = tokenizer.vocabulary.get("\n") if tokenizer.kind == "character" else None
        self.newline = EOS if newline is None else newline

    def task(self, prompt: str, index: int, max_length: int | None) -> SearchTask:
        """Create the task of a prompt and check its length."""
        if not isinstance(prompt, str):
            raise OptionError(f"a prompt is a text, got {arguments.quoted(prompt)}")
        max_length = max_length or MAX_LENGTH
        input_ids = [self.newline if self.running_text else BOS, *self._encode(prompt)]
        if self.positions is not None and len(input_ids) + max_length > self.positions:
            positions_left = max(0, self.positions - len(input_ids))
            raise OptionError(
                f"this model has {self.positions} positions, and prompt {index + 1} has {len(input_ids)} "
                f"tokens; set max_length to at most {positions_left}, or shorten the prompt"
            )
        return SearchTask(max_length, input_ids, index=index)

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        if self.newline != EOS or not self.running_text:
            return self.tokenizer.encode(text)
        lines = [self.tokenizer.encode(line) if line else [] for line in text.split("\n")]
        return [token for i, line in enumerate(lines) for token in ([EOS] if i else []) + line]

    def decode(self, task: SearchTask, tokens: list[int]) -> str:
        """Return the text that the tokens add to the prompt."""
        prompt = self._text(task.input_ids[1:])
        return self._text([*task.input_ids[1:], *tokens])[len(prompt) :]

    def _text(self, tokens: list[int]) -> str:
        lines: list[list[int]] = [[]]
        for token in tokens:
            if token == EOS:
                lines.append([])
            else:
                lines[-1].append(token)
        return "\n".join(map(self.tokenizer.decode, lines))
