"""Limits of a search: output length, batch size, threads. Length limits are checked before the search
starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard import arguments
from regard.decoding.constraints import TokenConstraints
from regard.decoding.search import torch_model
from regard.decoding.strategy import SearchTask
from regard.errors import OptionError
from regard.models.encoder import max_positions


@dataclass(frozen=True)
class Limits:
    """Limits of a search.

    >>> regard.translate("We have no time.", "tatoeba-en-de-bahdanau", limits=regard.Limits(max_length=3))
    'Wir haben keine'

    Args:
        max_length: maximum number of tokens of an output. By default 3/2 of the source + 20 for `translate`,
            100 for `generate`.
        batch_tokens: maximum size of a batch, source tokens × hypotheses per sentence; by default as fits the
            device.
        workers: number of batches computed in parallel; by default one per core for enough work on a CPU.
    """

    max_length: int | None = None
    batch_tokens: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "batch_tokens", "workers"):
            if getattr(self, name) is not None:
                arguments.integer(name, getattr(self, name), 1)


DEFAULT_LIMITS = Limits()


def as_limits(limits: Any) -> Limits:
    """Check the argument `limits` of a public function; None is the defaults."""
    if limits is None:
        return DEFAULT_LIMITS
    return arguments.instance("limits", limits, Limits, "a Limits object such as Limits(max_length=50)")


def check_lengths(max_length: int | None, constraints: TokenConstraints) -> None:
    """Raise OptionError if the minimum length is more than the maximum."""
    if max_length is not None and constraints.min_length > max_length:
        raise OptionError(
            f"min_length {constraints.min_length} is more than max_length {max_length}; "
            "lower one or raise the other"
        )


class LengthLimiter:
    """Set the maximum length of translation tasks, and check that prefix and required phrases fit.

    A model with learned positions bounds the length of source and output.
    """

    def __init__(self, model: Any, max_length: int | None, constraints: TokenConstraints) -> None:
        network = torch_model(model)
        self.max_length, self.constraints = max_length, constraints
        self.source_positions = max_positions(getattr(network, "encoder", None))
        self.target_positions = max_positions(getattr(network, "decoder", None))
        check_lengths(max_length, constraints)

    def __call__(self, task: SearchTask) -> SearchTask:
        """Set `task.max_length`."""
        source = len(task.input_ids) + 1  # with the end-of-sentence token
        needed = len(task.prefix) + sum(map(len, task.required))
        if self.source_positions is not None and source > self.source_positions and task.input_ids:
            raise OptionError(
                f"sentence {task.index + 1} has {source} tokens and this model has {self.source_positions} "
                "positions; split it into shorter ones"
            )
        length = self.max_length or max(source * 3 // 2 + 20 + needed, self.constraints.min_length)
        task.max_length = length if self.target_positions is None else min(length, self.target_positions)
        if needed > task.max_length:
            raise OptionError(
                f"prefix and required words of sentence {task.index + 1} have {needed} tokens, and the "
                f"translation may have {task.max_length}; raise max_length or shorten them"
            )
        for forbidden in self.constraints.forbidden:
            if any(_contains(phrase, forbidden) for phrase in task.required):
                raise OptionError(
                    f"a required word of sentence {task.index + 1} is also forbidden; leave it out of one of "
                    "them"
                )
        return task


def _contains(phrase: list[int], part: tuple[int, ...]) -> bool:
    return any(tuple(phrase[i : i + len(part)]) == part for i in range(len(phrase) - len(part) + 1))
