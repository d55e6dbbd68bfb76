"""One text to run, and its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from regard.attention.edits import Edit
from regard.explorer.run import Run
from regard.serving.http_errors import RequestError

MAX_TOKENS = 512  # of one input, and of one output


@dataclass(frozen=True, eq=False)
class Job:
    """One text to run.

    Attributes:
        text: the text.
        to: the target language of a multilingual translator.
        beam: the beam size.
        edits: changes of attention by name, as for `regard.intervene`.
        base: an earlier run of the text, to compare with.
        cancelled: called at every step of a search; True stops it.
        prefix: token ids that the output starts with.
        target: a translation that the output is forced to be; "" leaves it to the search.
        candidates: words whose probability at the mask of a masked language model is returned.
    """

    text: str
    to: str | None = None
    beam: int = 1
    edits: dict[str, list[Edit]] = field(default_factory=dict)
    base: Run | None = None
    cancelled: Callable[[], bool] = lambda: False
    prefix: tuple[int, ...] = ()
    target: str = ""
    candidates: tuple[str, ...] = ()


def check_tokens(count: int, longest: int = MAX_TOKENS, name: str = "the text") -> None:
    """Raise RequestError if a text has more tokens than `longest`."""
    if count > longest:
        raise RequestError(
            422, f"{name} has {count:,} tokens, and the explorer takes at most {longest}; shorten it"
        )
