"""How long a text may become, checked before anything is searched for."""

from __future__ import annotations

from typing import Any

from torch import nn

from regard.attention.position import Learned
from regard.decoding.constraints import Constraints
from regard.decoding.coverage import torch_model
from regard.decoding.strategy import SearchTask
from regard.errors import OptionError


class LengthLimits:
    """Sets the limit of a task: max_length, else 3/2 of the source + 20 and room for what is required. A learned table of positions
    ends somewhere, and so does a text then.
    """

    def __init__(self, model: Any, max_length: int | None, rules: Constraints) -> None:
        inner = torch_model(model)
        self.max_length, self.rules = max_length, rules
        self.source_room, self.room = (
            positions(getattr(inner, part, None)) for part in ("encoder", "decoder")
        )
        if max_length is not None and rules.min_length > max_length:
            raise OptionError(
                f"min_length {rules.min_length} is more than max_length {max_length}; lower one or raise the other"
            )

    def __call__(self, task: SearchTask) -> SearchTask:
        name, source = f"sentence {task.index + 1}", len(task.given) + 1  # its end mark counted
        needed = len(task.prefix) + sum(map(len, task.required))
        if self.source_room is not None and source > self.source_room and task.given:
            raise OptionError(
                f"{name} has {source} tokens and this model reads {self.source_room}; cut it into shorter ones"
            )
        task.limit = self.max_length or max(source * 3 // 2 + 20 + needed, self.rules.min_length)
        task.limit = task.limit if self.room is None else min(task.limit, self.room)
        if needed > task.limit:
            raise OptionError(
                f"what the translation of {name} must begin with and hold has {needed} tokens, and it may have {task.limit}; "
                "raise max_length or ask for less"
            )
        for words in self.rules.forbidden:
            if any(_within(words, tuple(phrase)) for phrase in task.required):
                raise OptionError(f"a word required of {name} is forbidden too; leave it out of one of them")
        return task


def positions(part: Any) -> int | None:
    """The length of a learned table of positions; None where there is none."""
    parts = (
        part,
        getattr(part, "below", None),
        getattr(part, "above", None),
    )  # of an encoder on top of another
    schemes = [scheme for each in parts if isinstance(scheme := getattr(each, "position", None), nn.Module)]
    found = [
        table.maxlen for scheme in schemes for table in scheme.modules() if isinstance(table, Learned)
    ]  # maybe with a norm
    return min(found, default=None)


def _within(words: tuple[int, ...], phrase: tuple[int, ...]) -> bool:
    return any(phrase[i : i + len(words)] == words for i in range(len(phrase) - len(words) + 1))
