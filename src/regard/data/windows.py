"""Windows of a text for language models, in order (stream) or at random positions (crops)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batch import Batch
from regard.data.batch_iterator import BatchIterator, Numbers
from regard.data.prepare import Prepared
from regard.data.tokenizer import BOS, PAD
from regard.errors import DataError, OptionError


class Windows(BatchIterator):
    """Endless batches of `sentences` windows of `length` labels each, over the dataset as one text.

    - "stream": the text is cut into sentences · world sections of equal length (± 1); row b reads section b
      from left to right, and `Batch.continues` is True from the second window on. Every token is a label once
      per epoch.
    - "crops": each window starts at a random position. An epoch has as many batches as hold the text once.

    With `shuffle=False`, every epoch has the crops of epoch 0; a stream is the same in every epoch anyway.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        length: int,
        sentences: int,
        seed: int,
        mode: str = "stream",
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
    ) -> None:
        if mode not in ("stream", "crops"):
            raise OptionError(f"the mode of windows is stream or crops, got {mode!r}")
        for name, value, least in (
            ("batch.length", length, 2),
            ("batch.sentences", sentences, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise OptionError(f"{name} must be at least {least}, got {value}")
        self.prepared, self.length, self.sentences = prepared, length, sentences
        self.seed, self.mode, self.shuffle = seed, mode, shuffle
        identity = {
            "data": prepared.checksum,
            "length": length,
            "sentences": sentences,
            "seed": seed,
            "mode": mode,
        }
        if mode == "stream":  # the sections depend on the number of ranks
            identity["world"] = world
        super().__init__(identity, rank, world)
        needed = sentences * world if mode == "stream" else length
        if self._total < needed:
            raise DataError(
                f"the text has {self._total} tokens, fewer than the {needed} that its windows need; "
                "lower batch.length or batch.sentences, or give more text"
            )

    @property
    def _total(self) -> int:
        return len(self.prepared.arrays("target", self._variant)[0])

    @property
    def _variant(self) -> int:
        return self.epoch % self.prepared.variants if self.shuffle else 0

    def per_epoch(self) -> int:
        if self.mode == "crops":
            return max(self.world, self._total // (self.length * self.sentences))
        longest = -(-self._total // (self.sentences * self.world))
        return -(-longest // self.length) * self.world

    @property
    def padding(self) -> float:
        """The share of PAD: none in crops, at most one per row in the last window of a stream."""
        if self.mode == "crops":
            return 0.0
        size = sum(batch.target.numel() - len(batch) for batch in self._last_round())
        padding = size - sum(batch.tokens for batch in self._last_round())
        return padding / (self._total + padding)

    def once(self) -> Iterator[Batch]:
        """All batches of the current epoch of this rank, from its start; the position does not move."""
        for number in range(self.rank, self.per_epoch(), self.world):
            yield self._build(number)

    def _last_round(self) -> list[Batch]:
        count = self.per_epoch()
        return [self._build(number) for number in range(count - self.world, count)]

    def _build(self, number: int) -> Batch:
        tokens = self.prepared.arrays("target", self._variant)[0]
        if self.mode == "crops":
            rng = np.random.default_rng([self.seed, self.epoch if self.shuffle else 0, number])
            starts = rng.integers(0, len(tokens) - self.length + 1, self.sentences)
            ends = starts + self.length
        else:
            window, rank = divmod(number, self.world)
            count = self.sentences * self.world
            section = np.arange(rank * self.sentences, (rank + 1) * self.sentences)
            first, stops = section * len(tokens) // count, (section + 1) * len(tokens) // count
            # Only the last window reaches the end of the shortest section, so every row of it has labels.
            most = len(tokens) // count - 1
            starts = first + min(window * self.length, most)
            last = number + self.world >= self.per_epoch()
            ends = stops if last else first + min((window + 1) * self.length, most)
        return self._windows(tokens, starts, ends, continues=self.mode == "stream" and number >= self.world)

    def _windows(self, tokens: NDArray[np.integer], starts: Numbers, ends: Numbers, continues: bool) -> Batch:
        """The batch with labels starts … ends; each row starts with the token before (BOS at the start of the
        text).
        """
        lengths = ends - starts
        places = starts[:, None] - 1 + np.arange(int(lengths.max()) + 1)  # (B, T+1)
        target = tokens[places.clip(0, len(tokens) - 1)].astype(np.int64)
        target[places < 0] = BOS
        target[places >= ends[:, None]] = PAD
        rows, sizes = torch.from_numpy(starts.astype(np.int64)), torch.from_numpy(lengths.astype(np.int64))
        return Batch(torch.from_numpy(target), sizes, rows, continues=continues)
