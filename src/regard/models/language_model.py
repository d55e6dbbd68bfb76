"""A language model: a decoder without an encoder."""

from __future__ import annotations

from torch import Tensor

from regard.data.batch import Batch
from regard.models.autoregressive import AutoregressiveModel
from regard.models.chunked_loss import Loss, next_token_loss
from regard.models.memory import DecoderState


class LanguageModel(AutoregressiveModel):
    """p(y) = Π p(y_t | y_<t)."""

    kind = "language-model"

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every next token: (batch, T) → (batch, T, vocabulary)."""
        features, _ = self.decoder(self.target(tokens))
        return self.output(features)

    def loss(
        self, batch: Batch, smoothing: float = 0.0, state: DecoderState | None = None, agreement: float = 0.0
    ) -> Loss:
        """The loss of a batch. A recurrent model starts from `state` and returns its last one in the loss."""
        tokens = batch.target[:, :-1].repeat(2, 1) if agreement else batch.target[:, :-1]
        features, after = self.decoder(self.target(tokens), None, state)
        loss = next_token_loss(self.output, features, batch.target[:, 1:], smoothing, agreement)
        loss.state = after
        return loss
