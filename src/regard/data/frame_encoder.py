"""The source side of models that read sequences of numbers: standardized frames instead of token ids."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from regard.arguments import quoted
from regard.data.sequence_files import Frames, as_frames, read_sequence
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError, OptionError


class FrameEncoder(Tokenizer):
    """Takes the place of a tokenizer: `encode` gives the frames (T, M) of a sequence instead of token ids.

    A sequence is a reference to a file (see sequence_files.py) or an array. Each channel is standardized by
    its mean and standard deviation in the training data. The length of an encoder, `len`, is the number M of
    channels.
    """

    kind = "frames"

    def __init__(self, text: str) -> None:
        """From the text of a file, which has the means and standard deviations under the key `frames`."""
        try:
            self._json = json.loads(text)
            values = self._json["frames"]
            self.mean, self.deviation = (np.asarray(values[key], np.float32) for key in ("mean", "deviation"))
            shaped = self.mean.ndim == 1 and self.mean.shape == self.deviation.shape and len(self.mean) > 0
            valid = shaped and bool(np.isfinite(self.mean).all() and (self.deviation > 0).all())
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"this is not a file of channels ({error}); train the model again") from None
        if not valid:
            raise DataError("the means and deviations of this file are not usable; train the model again")

    @classmethod
    def fit(cls, references: Iterable[str]) -> FrameEncoder:
        """Compute the mean and the standard deviation of every channel over the frames of all sequences."""
        count, first, total, squares = 0, "", np.zeros(0), np.zeros(0)
        for reference in references:
            frames = read_sequence(reference).astype(np.float64)
            if not count:
                first, total, squares = reference, np.zeros(frames.shape[1]), np.zeros(frames.shape[1])
            if frames.shape[1] != len(total):
                raise DataError(
                    f"{reference} has {frames.shape[1]} channels and {first} has {len(total)}; "
                    "all sequences have the same channels"
                )
            count, total, squares = count + len(frames), total + frames.sum(0), squares + (frames**2).sum(0)
        if not count:
            raise DataError("there are no sequences to compute the means of channels from; give some")
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
        deviation[deviation <= 1e-6 * (1 + np.abs(mean))] = 1.0  # a constant channel becomes 0
        return cls(json.dumps({"frames": {"mean": mean.tolist(), "deviation": deviation.tolist()}}))

    def encode(self, text: Any) -> Frames:  # type: ignore[override]
        """The standardized frames (T, M) of a reference or an array."""
        is_path = isinstance(text, str | os.PathLike)
        frames = read_sequence(text) if is_path else as_frames(text, "the sequence")
        if frames.shape[1] != len(self):
            raise DataError(
                f"{text if is_path else 'the sequence'} has {frames.shape[1]} channels, and this model was "
                f"trained on {len(self)}; give the same channels in the same order"
            )
        return (frames - self.mean) / self.deviation

    def encode_batch(self, texts: Sequence[Any]) -> list[Frames]:  # type: ignore[override]
        return [self.encode(text) for text in texts]

    @property
    def example(self) -> Frames:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Two frames, each the mean of the training data."""
        return np.stack([self.mean] * 2)

    def inputs(self, value: Any) -> tuple[list[Any], bool]:
        """One sequence or several, as a list; and whether it was one."""
        if isinstance(value, str | os.PathLike):
            return [os.fspath(value)], True
        if hasattr(value, "parameters"):
            raise OptionError(
                f"the sequences come first, then the model, got a {type(value).__name__} in their place"
            )
        if getattr(value, "ndim", None) in (1, 2):
            return [value], True
        if not isinstance(value, Iterable):
            raise OptionError(
                f"give a file, an array (frames, channels) or a list of them, got {quoted(value)}"
            )
        return [os.fspath(x) if isinstance(x, os.PathLike) else x for x in value], False

    def is_blank(self, text: Any) -> bool:
        return isinstance(text, str) and not text.strip()

    def split_words(self, text: Any) -> list[str]:
        """The numbers of the frames, which have the role of words in a tagger."""
        return [str(i) for i in range(len(self.encode(text)))]

    def tokens(self, ids: Iterable[Any]) -> list[str]:
        """The numbers of the frames, for display."""
        return [str(i) for i, _ in enumerate(ids)]

    def decode(self, ids: Iterable[Any]) -> str:
        """A description: frames are not text."""
        return f"{len(list(ids))} frames of {len(self)} channels"

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        return f"FrameEncoder({len(self)} channels)"

    def __reduce__(self) -> tuple[type[FrameEncoder], tuple[str]]:
        return FrameEncoder, (self.text,)
