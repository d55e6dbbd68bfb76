"""One text of a model: its output and attention, and the output after changes of input or attention."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.edits import CallWeights, Edit, visible_pairs
from regard.attention.intervening import intervene
from regard.attention.watching import matches, watch
from regard.decoding.batching import evaluation_mode
from regard.errors import OptionError
from regard.evaluation.explanation.explained_models import ExplainedInput, ExplainedModel

BATCH_TOKENS = 8192  # tokens of one forward pass
BATCH_WEIGHTS = 1 << 23  # attention weights that are edited in one forward pass


@dataclass(frozen=True, eq=False)
class AtRow(Edit):
    """Another edit, in the row that explains the output only.

    Args:
        edit: the edit.
        row: the query; None: all of them.
        calls: calls of this name in one forward pass, of which the last is changed. A recurrent decoder has
            one call per step.
    """

    edit: Edit
    row: int | None
    calls: int
    count: list[int] = field(default_factory=lambda: [0], repr=False)

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        self.count[0] += 1
        if self.count[0] % self.calls:
            return rows.weights
        new = self.edit.apply(rows, selected)
        if self.row is None:
            return new
        queries = rows.weights.shape[-2]
        here = torch.arange(queries, device=new.device) == self.row % queries
        return torch.where(here[:, None], new, rows.weights)


class Probe:
    """One text and a model: its output, its attention, and the output after changes of either.

    Attributes:
        inputs: what the model reads, token ids (1, S) or frames (1, S, channels).
        tokens: the text of each feature.
        distribution: p of the explained output, (classes,), float64.
        predicted: the most likely class.
        weights: the attention that explains it, by name: (heads, rows, keys), float64.
        allowed: the keys that the mask allows, as `weights`.
        layers: self-attention below, lowest first, mean of heads: (Tq, Tk) each, float64.
        batch: copies of the text that run at once with edited attention.
        top: the weight of each state of the last layer in the output, (T,): the start of rollout and flow.
    """

    def __init__(
        self,
        explained: ExplainedModel,
        text: Any,
        *,
        seed: int = 0,
        attention: str | None = None,
        given: ExplainedInput | None = None,
    ) -> None:
        self.explained, self.text = explained, text
        # The metrics of a text do not depend on the other texts.
        self.seed = zlib.crc32(f"{seed} ".encode() + explained.content(text)) >> 1
        self._cache: dict[str, Tensor] = {}
        with evaluation_mode(explained.model):
            self.given = explained.read(text, self.generator("output")) if given is None else given
            self.tokens = self.given.tokens
            device = next(explained.model.parameters()).device
            self.inputs = torch.as_tensor(np.asarray(self.given.inputs), device=device)[None]
            self._record(attention)

    def generator(self, purpose: str) -> torch.Generator:
        """A random generator of this text and purpose."""
        return torch.Generator("cpu").manual_seed(zlib.crc32(f"{self.seed} {purpose}".encode()))

    @torch.no_grad()
    def _record(self, pattern: str | None) -> None:
        """Run the text once and keep its output and attention."""
        with watch(self.explained.model) as seen:
            scores = self.explained.scores(self.given, self.inputs)
        self.distribution = torch.softmax(scores[0].double(), -1)
        if len(self.distribution) < 2:
            raise OptionError(
                "this model has one output class, which is always certain; give one with several"
            )
        self.predicted = int(self.distribution.argmax())
        names = self._choose(list(seen), pattern)
        self.calls = {name: len(seen.calls(name)) for name in names}
        last = seen[names[-1]].weights(batch=0)
        self.row = self.explained.explaining_row(self.given, last)
        select = slice(None) if self.row is None else [self.row]
        self.weights = {name: seen[name].weights(batch=0).double()[:, select] for name in names}
        self.allowed = {name: visible_pairs(seen[name].call)[0][:, select] for name in names}
        size = sum(math.prod(seen[name].shape[1:]) for name in names)  # heads × Tq × Tk
        self.batch = max(1, min(BATCH_WEIGHTS // size, BATCH_TOKENS // self.inputs.shape[1]))
        below = self.explained.self_attention(list(seen))
        self.layers = [seen[name].weights(batch=0).double().mean(0) for name in below]
        self.top = self._top(names)

    def _choose(self, names: list[str], pattern: str | None) -> list[str]:
        names = [name for name in names if self.explained.can_explain(name)]
        if pattern is None:
            chosen = self.explained.choose_attention(names)
        else:
            chosen = [name for name in names if matches(name, pattern)]
            if names and not chosen:
                raise OptionError(f"attention={pattern!r} matches none of {', '.join(names)}")
        if not chosen:
            raise OptionError(
                f"this model has no attention that could explain its output; {self.explained.needs}"
            )
        return chosen

    def _top(self, names: list[str]) -> Tensor:
        pooling = [self.weights[name].mean((0, 1)) for name in names if self.explained.pools(name)]
        if pooling:
            return torch.stack(pooling).mean(0)
        queries = self.layers[-1].shape[0] if self.layers else 1
        if self.row is None:
            return torch.full((queries,), 1 / queries, dtype=torch.float64, device=self.inputs.device)
        return torch.eye(queries, dtype=torch.float64, device=self.inputs.device)[self.row]

    @property
    def count(self) -> int:
        """The number of features."""
        return len(self.tokens)

    @property
    def attention(self) -> Tensor:
        """The attention to each feature, (features,): the mean over heads, explaining queries and layers."""
        mean = torch.stack([w.mean((0, 1)) for w in self.weights.values()]).mean(0)
        return mean[self.given.keys].cpu()

    def cached(self, name: str, compute: Callable[[Probe], Tensor]) -> Tensor:
        """`compute(self)`, once: several measures use the same explanations."""
        if name not in self._cache:
            self._cache[name] = compute(self)
        return self._cache[name]

    def output(self, inputs: Tensor) -> Tensor:
        """Distributions of the explained output, (rows, classes), with gradient."""
        return torch.softmax(self.explained.scores(self.given, inputs).double(), -1)

    def copies(self, count: int) -> Tensor:
        """`count` rows of the inputs."""
        return self.inputs.expand(count, *self.inputs.shape[1:])

    @torch.no_grad()
    def without(self, removed: Sequence[Sequence[int]]) -> Tensor:
        """Distributions with these features removed, (rows, classes); NaN where no input is left."""
        out = torch.full((len(removed), len(self.distribution)), torch.nan, dtype=torch.float64)
        with evaluation_mode(self.explained.model):
            if not self.explained.deletes:
                for rows in _chunks(range(len(removed)), self.inputs.shape[1]):
                    out[rows] = self._zeroed([removed[row] for row in rows]).cpu()
                return out
            kept = [self._kept(set(features)) for features in removed]
            for length in sorted({len(positions) for positions in kept} - {0}):  # equal: no padding
                equal = [row for row, positions in enumerate(kept) if len(positions) == length]
                for rows in _chunks(equal, length):
                    positions = torch.tensor([kept[row] for row in rows], device=self.inputs.device)
                    out[rows] = self.output(self.inputs[0, positions]).cpu()
        return out

    def _kept(self, removed: set[int]) -> list[int]:
        """The positions of the input that stay."""
        dropped = {self.given.features[at] for at in removed}
        return [at for at in range(self.inputs.shape[1]) if at not in dropped]

    def _zeroed(self, removed: Sequence[Sequence[int]]) -> Tensor:
        """Distributions with zero vectors in place of these features."""

        def zero(x: Tensor) -> Tensor:
            keep = x.new_ones(len(x), x.shape[1], 1)
            for row, features in enumerate(removed):
                keep[row, [self.given.keys[at] for at in features]] = 0
            return x * keep

        with self.explained.vectors(zero):
            return self.output(self.copies(len(removed)))

    @contextmanager
    def edited(self, edits: dict[str, Edit]) -> Iterator[None]:
        """Inside the block, attention of the explaining row is changed, by name."""
        rows = {name: AtRow(edit, self.row, self.calls[name]) for name, edit in edits.items()}
        with evaluation_mode(self.explained.model), intervene(self.explained.model, rows):
            yield

    @torch.no_grad()
    def under(self, edit: Edit, copies: int = 1) -> Tensor:
        """Distributions of `copies` of the text with edited attention, (copies, classes)."""
        with self.edited(dict.fromkeys(self.weights, edit)):
            return self.output(self.copies(copies)).cpu()


def _chunks(rows: Sequence[int], length: int) -> Iterator[list[int]]:
    size = max(1, BATCH_TOKENS // max(1, length))
    rows = list(rows)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
