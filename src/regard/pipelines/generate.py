"""A language model goes on with a text, by the same search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import BOS, EOS
from regard.decoding.batching import search_all, show
from regard.decoding.beam import Beam, whole
from regard.decoding.constraints import Constraints, forbid
from regard.decoding.coverage import torch_model
from regard.decoding.length_limits import positions
from regard.decoding.sampling import Sample, check_sample
from regard.decoding.search import Search
from regard.decoding.strategy import Hypothesis, SearchTask
from regard.decoding.streaming import one_row, stream_tokens
from regard.errors import OptionError
from regard.models.default import as_model


class Generation(str):
    """What a model wrote behind a prompt, without the prompt; all texts in `.hypotheses`, best first (samples: as drawn)."""

    prompt: str
    hypotheses: list[Hypothesis]

    def __new__(cls, text: str, prompt: str = "", hypotheses: Sequence[Hypothesis] = ()) -> Generation:
        made = super().__new__(cls, text)
        made.prompt, made.hypotheses = prompt, list(hypotheses)
        return made


@overload
def generate(texts: str, model: Any = None, **options: Any) -> Generation: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def generate(texts: Sequence[str], model: Any = None, **options: Any) -> list[Generation]: ...


def generate(  # pyright: ignore[reportInconsistentOverload]
    texts: str | Sequence[str],
    model: Any = None,
    *,
    sample: Sample | None = None,
    beam: int | Beam = 1,
    lines: bool | None = None,
    forbidden: Sequence[str] = (),
    no_repeat: int = 0,
    min_length: int = 0,
    max_length: int = 100,
    batch_tokens: int | None = None,
    workers: int | None = None,
    progress: bool = False,
    cancelled: Sequence[Callable[[], bool]] | None = None,
) -> Generation | list[Generation]:
    """Continue one text, or each of a list, for at most `max_length` tokens: the best text by a beam (1: greedy), or samples.

    >>> regard.generate("To be, or", "runs/shakespeare", sample=regard.Sample(seed=1))
    ' not to be: that is the question'

    `model` is a folder, a loaded language model, or left out for the default (the folder in REGARD_MODEL). With `lines` the end
    of a line does not end the text. That is the default for a model that learned a text as a whole (its recipe's batch.mode is
    stream or crops) and not line by line. `cancelled` is that of `translate`.
    """
    (texts, one), progress = arguments.one_or_more("texts", texts), arguments.flag("progress", progress)
    cancelled = arguments.function_list("cancelled", cancelled, len(texts), "texts")
    model = as_model(model, "generate")
    for name, value in (("batch_tokens", batch_tokens), ("workers", workers)):
        if value is not None:
            arguments.integer(name, value)
    text = Lines(model, None if lines is None else arguments.flag("lines", lines))
    strategy = check_sample(sample) or (beam if isinstance(beam, Beam) else Beam(beam))
    rules = Constraints(min_length, no_repeat, forbid(text.tokenizer, forbidden))
    tasks = [text.task(prompt, i, max_length) for i, prompt in enumerate(texts)]
    for task, asked in zip(tasks, cancelled or (), strict=False):
        task.cancelled = asked
    with show(progress, len(tasks), "generate", "texts") as bar:
        search_all(
            model, tasks, lambda tasks: start(model, tasks), strategy, bar, rules=rules, end=text.end,
            batch_tokens=batch_tokens, workers=workers, alike=True,
        )  # fmt: skip
    for task in tasks:
        for hypothesis in task.found:
            hypothesis.text = text.decode(task, hypothesis.tokens)
    found = [
        Generation(task.found[0].text if task.found else "", prompt, task.found)
        for task, prompt in zip(tasks, texts, strict=True)
    ]
    return found[0] if one else found


def stream(
    prompt: str,
    model: Any = None,
    *,
    sample: Sample | None = None,
    lines: bool | None = None,
    forbidden: Sequence[str] = (),
    no_repeat: int = 0,
    min_length: int = 0,
    max_length: int = 100,
    cancelled: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """What `generate` writes behind a prompt, piece by piece as words are found. Greedy or one sample."""
    model = as_model(model, "generate")
    text = Lines(model, lines)
    rules = Constraints(min_length, no_repeat, forbid(text.tokenizer, forbidden))
    task = text.task(prompt, 0, max_length)
    task.cancelled = cancelled
    return stream_tokens(
        Search(model, one_row(sample), rules, text.end),
        task,
        lambda: start(model, [task]),
        lambda tokens: text.decode(task, tokens),
    )


def start(model: Any, tasks: list[SearchTask]) -> tuple[Any, Tensor]:
    """Read the prompts, all of one length, but for their last token, which the first step takes."""
    given = torch.tensor([task.given for task in tasks], device=model.device)
    carried = model.start(None, given[:, 0])
    if given.shape[1] > 1:
        carried = model.read(given[:, :-1], carried)
    return carried, given[:, -1]


class Lines:
    """How the text of a language model becomes tokens. Line by line: BOS first, EOS ends it. As a whole: an end of line is EOS, or
    the character itself where the vocabulary has it, and stands before the text too, as it did in training.
    """

    def __init__(self, model: Any, lines: bool | None) -> None:
        tokenizer: Any = getattr(model, "target_tokenizer", None)
        if tokenizer is None or hasattr(model, "encode"):
            raise OptionError(
                "generate takes a language model with its tokenizer, as regard.load gives it; for a translator use translate"
            )
        self.tokenizer = tokenizer
        self.room = positions(getattr(torch_model(model), "decoder", None))
        mode = ((getattr(model, "card", {}).get("recipe") or {}).get("batch") or {}).get("mode") or "lines"
        self.whole = mode != "lines"
        self.end = -1 if (self.whole if lines is None else lines) else EOS
        newline = tokenizer.vocabulary.get("\n") if tokenizer.kind == "character" else None
        self.newline = EOS if newline is None else newline

    def task(self, prompt: str, index: int, max_length: int) -> SearchTask:
        if not isinstance(prompt, str):
            raise OptionError(f"prompts are texts, got {prompt!r} among them")
        whole("max_length", max_length, 1)
        given = [self.newline if self.whole else BOS, *self._encode(prompt)]
        if self.room is not None and len(given) + max_length > self.room:
            raise OptionError(
                f"this model has {self.room} positions, and prompt {index + 1} has {len(given)} tokens; "
                f"set max_length to at most {max(0, self.room - len(given))}, or shorten the prompt"
            )
        return SearchTask(max_length, given, index=index)

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        if self.newline != EOS or not self.whole:
            return self.tokenizer.encode(text)
        parts = [self.tokenizer.encode(line) if line else [] for line in text.split("\n")]
        return [token for i, part in enumerate(parts) for token in ([EOS] if i else []) + part]

    def decode(self, task: SearchTask, tokens: list[int]) -> str:
        """What tokens behind the prompt add to its text."""
        before = self._text(task.given[1:])
        return self._text([*task.given[1:], *tokens])[len(before) :]

    def _text(self, tokens: list[int]) -> str:
        lines: list[list[int]] = [[]]
        for token in tokens:
            if token == EOS:
                lines.append([])
            else:
                lines[-1].append(token)
        return "\n".join(map(self.tokenizer.decode, lines))
