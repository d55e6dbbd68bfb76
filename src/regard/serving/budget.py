"""The cost of a search, counted before it starts: tokens of each text, and rows × steps of the request."""

from __future__ import annotations

from typing import Any

from regard.decoding.constraints import Constraints, TokenConstraints
from regard.decoding.strategy import SearchTask, Strategy
from regard.serving.request_limits import Refusal, RequestLimits


class Budget:
    """Adds up the tasks of one request and refuses the one that is too much.

    A row is a text under way: beam size, or samples, times one more than the required tokens (each number of them has a beam of
    its own). A row of a search with required words also tries each of them at every step.
    """

    def __init__(self, limits: RequestLimits, strategy: Strategy) -> None:
        self.limits, self.strategy, self.work = limits, strategy, 0

    def add(self, name: str, task: SearchTask, passes: int = 1) -> None:
        most = self.limits.tokens
        read_tokens(name, len(task.input_ids), self.limits)
        if task.max_length > most:
            raise Refusal(
                422,
                f"the answer to {name} may have {task.max_length:,} tokens (prefix and required words counted) and at most {most:,} are "
                "written; shorten the text, or set max_length",
            )
        tries = 1 + len({token for phrase in task.required for token in phrase})
        self.work += self.strategy.max_rows(task) * task.max_length * tries * passes
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


def encoded_constraints(constraints: Constraints, tokenizer: Any, limits: RequestLimits) -> TokenConstraints:
    """The constraints of a request for one text; its forbidden words are compared at every step."""
    encoded = constraints.encode(tokenizer, 1)
    count = sum(map(len, encoded.forbidden))
    if count > limits.tokens:
        raise Refusal(
            422, f"forbidden has {count:,} tokens and at most {limits.tokens:,} are taken; leave some out"
        )
    return encoded
