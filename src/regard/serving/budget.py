"""The cost of a request, computed before its search starts: tokens per text, and rows × steps."""

from __future__ import annotations

from typing import Any

from regard.decoding.constraints import Constraints, TokenConstraints
from regard.decoding.strategy import SearchTask, Strategy
from regard.serving.http_errors import RequestError
from regard.serving.request_limits import RequestLimits


class Budget:
    """Sum the cost of one request's texts; raise RequestError above the limits.

    The number of rows is the beam size, or the number of samples, times (1 + required tokens): constrained
    search has one beam for each number of required tokens. It also tries every required token at every step.
    """

    def __init__(self, limits: RequestLimits, strategy: Strategy) -> None:
        self.limits, self.strategy, self.work = limits, strategy, 0

    def add(self, name: str, task: SearchTask, passes: int = 1) -> None:
        """Add the cost of one text."""
        most = self.limits.tokens
        check_tokens(name, len(task.input_ids), self.limits)
        if task.max_length > most:
            raise RequestError(
                422,
                f"the answer to {name} may have {task.max_length:,} tokens, prefix and required words "
                f"included, and at most {most:,} are generated; shorten the text, or set max_length",
            )
        tries = 1 + len({token for phrase in task.required for token in phrase})
        self.work += self.strategy.max_rows(task) * task.max_length * tries * passes
        if self.work > self.limits.work:
            raise RequestError(
                422,
                f"this request may take more than {self.limits.work:,} rows × steps of search, the limit "
                "here; send fewer texts or required phrases, a smaller beam or count, or a lower max_length",
            )


def check_tokens(name: str, count: int, limits: RequestLimits) -> None:
    """Raise RequestError if a text has too many tokens."""
    if count > limits.tokens:
        raise RequestError(
            422,
            f"{name} has {count:,} tokens, and at most {limits.tokens:,} are allowed; split it into shorter "
            "texts",
        )


def encoded_constraints(constraints: Constraints, tokenizer: Any, limits: RequestLimits) -> TokenConstraints:
    """Return the encoded constraints of a request; forbidden tokens are limited: every step compares them."""
    encoded = constraints.encode(tokenizer, 1)
    count = sum(map(len, encoded.forbidden))
    if count > limits.tokens:
        raise RequestError(
            422, f"forbidden has {count:,} tokens, and at most {limits.tokens:,} are allowed; leave some out"
        )
    return encoded
