"""A translator: an encoder and a decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.models.autoregressive import AutoregressiveModel
from regard.models.chunked_loss import Loss, next_token_loss
from regard.models.embedding import Embedding, Output
from regard.models.frames import FrameProjection
from regard.models.memory import DecoderState, Memory


class Translator(AutoregressiveModel):
    """p(y | x) = Π p(y_t | y_<t, encoder(x)): the encoder runs once, the decoder generates the target."""

    kind = "translator"
    num_inputs = 2  # of `forward`: source and target

    def __init__(
        self,
        source: Embedding | FrameProjection,
        encoder: nn.Module,
        target: Embedding,
        decoder: nn.Module,
        output: Output,
    ) -> None:
        super().__init__(target, decoder, output)
        self.source, self.encoder = source, encoder

    def encode(self, source: Tensor, lengths: Tensor | None = None) -> Memory:
        """Tokens (batch, S) or frames (batch, S, channels) → the memory that the decoder attends to."""
        return self.encoder(self.source(source), lengths)

    def forward(self, source: Tensor, target: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Scores of every next token (teacher forcing): (batch, S), (batch, T) → (batch, T, vocabulary)."""
        features, _ = self.decoder(self.target(target), self.encode(source, lengths))
        return self.output(features)

    def loss(
        self, batch: Batch, smoothing: float = 0.0, state: DecoderState | None = None, agreement: float = 0.0
    ) -> Loss:
        """Return the loss of a batch; with `agreement` (R-Drop) of two passes with different dropout."""
        assert batch.source is not None
        source, lengths, target = batch.source, batch.source_lengths, batch.target[:, :-1]
        if agreement:
            source, target = torch.cat([source] * 2), target.repeat(2, 1)
            lengths = None if lengths is None else lengths.repeat(2)
        features, _ = self.decoder(self.target(target), self.encode(source, lengths))
        return next_token_loss(self.output, features, batch.target[:, 1:], smoothing, agreement)
