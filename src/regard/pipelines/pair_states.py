"""Sentence pairs as batches of token ids, and the states that a translator has for them.

Alignment heads learn from these states: `alignment_head` with one translator, `joint_alignment` with two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.padding import pad_sources
from regard.data.tokenizer import BOS, PAD
from regard.decoding.batching import evaluation_mode
from regard.models.translator import Translator
from regard.pipelines.token_words import Words
from regard.pipelines.word_links import Links


@dataclass(frozen=True)
class PairBatch:
    """Token ids of some pairs, and their words."""

    rows: list[int]
    source: Tensor
    lengths: Tensor
    target: Tensor  # BOS y1 … yn
    words: list[tuple[Words, Words]]
    links: list[Links]


class TokenPairs:
    """Sentence pairs of a translator, tokenized once."""

    def __init__(
        self, model: Translator, sources: Sequence[str], targets: Sequence[str], links: Sequence[Links] = ()
    ) -> None:
        self.model, self.links, self.texts = model, links, (sources, targets)
        self._known: dict[int, tuple[Words, Words]] = {}
        tokenizers: Any = model.source_tokenizer, model.target_tokenizer
        self.ids = [t.encode_batch(list(texts)) for t, texts in zip(tokenizers, self.texts, strict=True)]
        # pairs with tokens on both sides
        self.filled = {i for i, pair in enumerate(zip(*self.ids, strict=True)) if all(map(len, pair))}

    def batches(self, tokens: int, draw: torch.Generator | None = None) -> Iterator[PairBatch]:
        """Yield batches of similar length; with `draw` in random order."""
        lengths = [max(map(len, pair)) + 1 for pair in zip(*self.ids, strict=True)]
        order = sorted(self.filled)
        if draw is not None:
            order = [order[i] for i in torch.randperm(len(order), generator=draw).tolist()]
        order = sorted(order, key=lengths.__getitem__)  # stable: equal lengths stay shuffled
        groups: list[list[int]] = [[]]
        for i in order:
            if groups[-1] and (len(groups[-1]) + 1) * lengths[i] > tokens:
                groups.append([])
            groups[-1].append(i)
        if draw is not None:
            groups = [groups[i] for i in torch.randperm(len(groups), generator=draw).tolist()]
        yield from map(self.batch, filter(None, groups))

    def batch(self, rows: list[int]) -> PairBatch:
        """The pairs of some rows."""
        device = self.model.device
        source, lengths = pad_sources([self.ids[0][i] for i in rows])
        longest = max(len(self.ids[1][i]) for i in rows)
        target = [[BOS, *self.ids[1][i], *[PAD] * (longest - len(self.ids[1][i]))] for i in rows]
        return PairBatch(
            rows,
            torch.from_numpy(source).to(device),
            torch.from_numpy(lengths).to(device),
            torch.tensor(target, device=device),
            [self._words(i) for i in rows],
            [self.links[i] for i in rows] if self.links else [],
        )

    def _words(self, i: int) -> tuple[Words, Words]:
        if i not in self._known:
            tokenizers: Any = self.model.source_tokenizer, self.model.target_tokenizer
            sides = zip(tokenizers, self.texts, strict=True)
            source, target = (Words.of_text(tokenizer, texts[i]) for tokenizer, texts in sides)
            self._known[i] = source, target
        return self._known[i]


@torch.no_grad()
def reading_states(model: Translator, batch: PairBatch, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Decoder states when each target token is read (batch, T, width), encoder states, source lengths."""
    outputs: list[Any] = []
    layers: Any = model.decoder.layers
    hook = layers[layer].register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        with evaluation_mode(model):
            memory = model.encode(batch.source, batch.lengths)
            model.decoder(model.target(batch.target), memory)
    finally:
        hook.remove()
    output = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
    return output[:, 1:], memory.states, batch.lengths  # after BOS: the step that reads y1, y2, …


def stacked(owners: list[Tensor], like: Tensor, tokens: int) -> Tensor:
    """Matrices (tokens, words) of different sizes as one (batch, tokens, words), padded with 0."""
    stacked = torch.zeros(len(owners), tokens, max(owner.shape[1] for owner in owners))
    for row, owner in enumerate(owners):
        stacked[row, : owner.shape[0], : owner.shape[1]] = owner
    return stacked.to(like)
