"""Words as they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from regard.decoding.batching import reading
from regard.decoding.beam import Beam
from regard.decoding.sampling import Sample
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask
from regard.errors import OptionError


def one_row(sample: Sample | None) -> Beam | Sample:
    """The strategies whose words are final when they are found."""
    if sample is not None and sample.count > 1:
        raise OptionError(
            f"a stream is one text, got a sample with count {sample.count}; leave the count out"
        )
    return sample or Beam(1)


def stream_tokens(
    search: Search,
    task: SearchTask,
    begin: Callable[[], tuple[Any, Tensor]],
    decode: Callable[[list[int]], str],
) -> Iterator[str]:
    """The pieces of a text, one after the other. Bytes that are not yet a whole character wait for the rest of it."""
    shown = ""
    with reading(search.writer):
        with torch.inference_mode():
            search.add([task], *begin())
        while search:
            with torch.inference_mode():  # not around `yield`: it would hold for whoever reads the pieces
                search.step()
            if not search and not task.found:  # cancelled
                return
            tokens = (
                search.rows.written[0, : search.groups.length[0]].tolist() if search else task.found[0].tokens
            )
            text = decode(tokens)
            if search:
                text = text.rstrip("\ufffd")  # what incomplete bytes decode to
            if len(text) > len(shown):
                yield text[len(shown) :]
                shown = text
