"""A language model: a decoder without an encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.data.batch import Batch
from regard.data.tokenizer import PAD
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
        """The loss of a batch. A recurrent model starts from `state` and returns its last one in the loss.

        In training, the activation penalties of a recurrent decoder are part of it: a mean over the batch,
        multiplied by the number of labels, as the loss is a sum over them. After the division by all labels
        of a step, each batch counts by its labels.
        """
        tokens = batch.target[:, :-1].repeat(2, 1) if agreement else batch.target[:, :-1]
        x, labels = self.target(tokens), batch.target[:, 1:]
        decoder: Any = self.decoder
        penalty = getattr(decoder, "penalty", None) if self.training else None
        if penalty is None:
            features, after = decoder(x, None, state)
            loss = next_token_loss(self.output, features, labels, smoothing, agreement)
        else:
            outputs, after = decoder.features_before_dropout(x, None, state)
            features = decoder.output_dropout(outputs)
            loss = next_token_loss(self.output, features, labels, smoothing, agreement)
            inside = (labels != PAD).repeat(2 if agreement else 1, 1)
            loss.total = loss.total + loss.tokens * penalty.mean(outputs, features, inside)
        loss.state = after
        return loss
