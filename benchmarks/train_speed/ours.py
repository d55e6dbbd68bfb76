"""regard, built from the `model:` block of a recipe and trained like its trainer does."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.train_speed.task import PAD, Sizes
from regard.data.batch import Batch
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.optimization.optimizers import Adam, clip_gradients, make_optimizer
from regard.training.trainer import keep_freed_memory


class Regard:
    """A translator, its own chunked loss, optimizer and clipping."""

    note = ""

    def __init__(self, sizes: Sizes) -> None:
        keep_freed_memory()
        part = {"kind": "transformer", "layers": sizes.layers, "heads": sizes.heads, "inner": sizes.inner}
        config = AutoregressiveOptions.model_validate(
            {"dim": sizes.dim, "tie": "all", "dropout": sizes.dropout, "encoder": part, "decoder": part}
        )
        self.model = build(config.model_dump(), sizes.vocabulary, sizes.vocabulary)
        self.settings = Adam(lr=sizes.lr, clip=sizes.clip)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.weights = list(self.model.parameters())
        self.smoothing = sizes.smoothing

    def _batch(self, source: Tensor, target: Tensor) -> Batch:
        lengths = [(x != PAD).sum(1) for x in (source, target[:, 1:])]
        return Batch(target, lengths[1], torch.arange(len(target)), source, lengths[0])

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        batch = self._batch(source, target)
        return self.model.loss(batch, self.smoothing).total / batch.tokens

    def clip(self) -> None:
        clip_gradients(self.weights, self.settings.clip)

    def nll(self, source: Tensor, target: Tensor) -> Tensor:
        return self.model.loss(self._batch(source, target)).nll
