"""The input layer of models that read sequences of numbers: a linear map of every frame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data.row_formats import RowFormat
from regard.data.sequence_rows import SequenceRowFormat
from regard.errors import OptionError
from regard.models.embedding import Embedding
from regard.models.options import INPUTS, InputOptions


@INPUTS.add("frames")
class FrameInputOptions(InputOptions):
    """Frames of numbers: X̃ = XWᵀ + b, to which the encoder adds its positions."""

    reads_text: ClassVar = False
    kind: Literal["frames"] = "frames"
    bias: bool = Field(default=True, description="add a bias")

    def check(self, model: Any) -> Iterator[str]:
        if model.encoder is None:
            yield "model.input is frames and model.encoder is null; frames are read by an encoder"
            return
        unused = {
            "scale_embeddings": False,
            "word_dropout": 0.0,
            "prepend_bos": False,
            "pretrained": None,
            "vectors": None,
            "characters": None,
            "subwords": False,
        }
        if model.kind == "autoregressive":  # its decoder has an embedding table
            del unused["scale_embeddings"]
            if model.tie == "all":
                yield "model.tie is all, and frames have no embedding table to share; set model.tie: target"
        for key, without in unused.items():
            if getattr(model, key, without) != without:
                yield f"model.{key} is for text, and model.input is frames; leave it out"
        if getattr(model.encoder, "embedding_dropout", 0.0):
            yield "model.encoder.embedding_dropout drops rows of a table, and frames have none; leave it out"

    def row_format(self, rows: RowFormat) -> RowFormat:
        return SequenceRowFormat(rows)

    def build_input(self, size: int, dim: int, *, scaled: bool, embedding_dropout: float) -> FrameProjection:
        return FrameProjection(size, dim, bias=self.bias)


def require_text(model: Any, what: str) -> None:
    """Raise an OptionError if the model reads sequences of numbers; `what` is what it is needed for."""
    if not isinstance(getattr(model, "source", None), Embedding | None):
        raise OptionError(
            f"{what} takes a model that reads text, and this {model.kind} reads sequences of numbers; "
            f"use it with `{model.command}` or from Python"
        )


class FrameProjection(nn.Module):
    """X̃ = XWᵀ + b: frames (batch, T, channels) → (batch, T, dim).

    >>> FrameProjection(4, 32)(torch.randn(2, 10, 4)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(self, channels: int, dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.projection = nn.Linear(channels, dim, bias=bias)

    def forward(self, frames: Tensor) -> Tensor:
        return self.projection(frames)

    def example(self, length: int) -> Tensor:
        """A sequence (1, length, channels) without content."""
        return torch.zeros(1, length, self.projection.in_features, device="meta")
