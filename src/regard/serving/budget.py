"""The cost of a search, counted before it starts: tokens of each text, and rows × steps of the request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints, forbid
from regard.decoding.required_words import RequiredWords
from regard.decoding.sampling import Sample
from regard.decoding.strategy import SearchTask, Strategy
from regard.serving.request_limits import Refusal, RequestLimits
from regard.serving.requests import Ruled


class Budget:
    """Adds up the tasks of one request and refuses the one that is too much.

    A row is a text under way: beam size, or samples, times one more than the required tokens (each number of them has a beam of
    its own). A row of a search with required words also tries each of them at every step.
    """

    def __init__(self, limits: RequestLimits, strategy: Strategy) -> None:
        self.limits, self.strategy, self.work = limits, strategy, 0

    def add(self, name: str, task: SearchTask, passes: int = 1) -> None:
        most = self.limits.tokens
        read_tokens(name, len(task.given), self.limits)
        if task.limit > most:
            raise Refusal(
                422,
                f"the answer to {name} may have {task.limit:,} tokens (prefix and required words counted) and at most {most:,} are "
                "written; shorten the text, or set max_length",
            )
        tries = 1 + len({token for phrase in task.required for token in phrase})
        self.work += self.strategy.most_rows(task) * task.limit * tries * passes
        if self.work > self.limits.work:
            raise Refusal(
                422,
                f"this request may take more than {self.limits.work:,} rows × steps of search, the limit here; send fewer "
                "texts or required words, a smaller beam or count, or a lower max_length",
            )


def read_tokens(name: str, count: int, limits: RequestLimits) -> None:
    if count > limits.tokens:
        raise Refusal(
            422,
            f"{name} has {count:,} tokens and at most {limits.tokens:,} are read at once; cut it into shorter texts",
        )


def strategy_of(beam: Beam, sample: Sample | None, required: Sequence[Sequence[int]]) -> Strategy:
    return sample or (RequiredWords(beam) if required else beam)


def rules_of(asked: Ruled, tokenizer: Any, limits: RequestLimits) -> Constraints:
    """The rules of a request, whose forbidden words are looked for at every step."""
    forbidden = forbid(tokenizer, asked.forbidden)
    count = sum(map(len, forbidden))
    if count > limits.tokens:
        raise Refusal(
            422, f"forbidden has {count:,} tokens and at most {limits.tokens:,} are taken; leave some out"
        )
    return Constraints(asked.min_length, asked.no_repeat, forbidden)


def phrases(encoded: Iterable[Sequence[int]]) -> list[list[int]]:
    """Each required phrase once."""
    return [list(phrase) for phrase in dict.fromkeys(map(tuple, encoded)) if phrase]
