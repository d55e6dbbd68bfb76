"""Streaming: yield the text of one hypothesis while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from regard.decoding.batching import evaluation_mode
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask, Strategy
from regard.errors import OptionError


def check_streamable(strategy: Strategy) -> Strategy:
    """Return the strategy; raise if it keeps several hypotheses, because their tokens may still change."""
    shape = strategy.shape()
    if shape.groups * shape.width > 1:
        raise OptionError(f"a stream is one hypothesis, got {strategy}; use Beam(1) or a Sample with count 1")
    return strategy


def stream_tokens(
    search: Search,
    task: SearchTask,
    start: Callable[[], tuple[Any, Tensor]],
    decode: Callable[[list[int]], str],
) -> Iterator[str]:
    """Yield the text in pieces of complete characters.

    Args:
        search: the search, which must be empty.
        task: the sentence to generate.
        start: returns the decoder state and the first token.
        decode: maps token ids to text.
    """
    sent = ""
    with evaluation_mode(search.model):
        with torch.inference_mode():
            search.add([task], *start())
        while search:
            with torch.inference_mode():  # not around `yield`, where it would apply to the caller
                search.step()
            if not search and not task.hypotheses:  # cancelled
                return
            if search:
                tokens = search.rows.tokens[0, : search.groups.length[0]].tolist()
                text = decode(tokens).rstrip("\ufffd")  # incomplete bytes decode to U+FFFD
            else:
                text = decode(task.hypotheses[0].tokens)
            if len(text) > len(sent):
                yield text[len(sent) :]
                sent = text
