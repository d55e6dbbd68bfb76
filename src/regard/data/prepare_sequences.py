"""Prepare a dataset of sequences of numbers: standardized frames on the source side, tokens on the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.chunk_encoder import EncodingSettings
from regard.data.frame_encoder import FrameEncoder
from regard.data.prepare import Report, usable
from regard.data.readers import Rows
from regard.data.tokenizer import EOS, UNK, Tokenizer
from regard.errors import DataError
from regard.files.arrays import GrowingArray
from regard.files.progress import track


class SequencePreparation:
    """Writes the folder of a `Prepared` dataset; sequences are read one by one."""

    def __init__(
        self, rows: Rows, tokenizers: Sequence[Tokenizer], settings: EncodingSettings, folder: Path
    ) -> None:
        encoder, self.target = tokenizers
        assert isinstance(encoder, FrameEncoder)
        self.rows, self.encoder, self.settings, self.folder = rows, encoder, settings, folder
        self.report = Report()

    def run(self, checksum: str, name: str, expected: int | None) -> None:
        kinds = {"source": np.float32, "target": np.uint16 if len(self.target) <= 1 << 16 else np.uint32}
        with ExitStack() as stack, track(expected, f"preparing {name}", "rows") as progress:
            opened = lambda file, kind: stack.enter_context(GrowingArray(self.folder / file, kind))  # noqa: E731
            sides = {side: opened(f"{side}.0.npy", kind) for side, kind in kinds.items()}
            offsets = {side: opened(f"{side}.0.offsets.npy", np.int64) for side in kinds}
            lines = opened("lines.npy", np.int64)
            for file in offsets.values():
                file.append(np.zeros(1, np.int64))
            for block, numbers in usable(self.rows, self.settings.limit, self.report):
                for number, row in zip(numbers, zip(*block, strict=True), strict=True):
                    encoded = self._encode(int(number), row)
                    if encoded is None:
                        continue
                    for side, values in encoded.items():
                        sides[side].append(values.reshape(-1))
                        width = len(self.encoder) if side == "source" else 1
                        offsets[side].append(np.array([sides[side].length // width], np.int64))
                    lines.append(np.array([number], np.int64))
                progress.advance(len(numbers))
        if not self.report.kept:
            raise DataError(self.report.no_rows_message(self.rows))
        meta = {
            "checksum": checksum,
            "rows": self.report.kept,
            "variants": 1,
            "paired": True,
            "max_length": self.settings.max_length,
            "channels": len(self.encoder),
            "report": vars(self.report),
            "files": {path.name: path.stat().st_size for path in sorted(self.folder.iterdir())},
        }
        (self.folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")

    def _encode(self, number: int, row: tuple[str, ...]) -> dict[str, Any] | None:
        """The frames and the target tokens of a row; None if one of them is too long."""
        try:
            frames = self.encoder.encode(row[0])
        except DataError as error:
            raise DataError(f"{self.rows.place(number, 0)}: {error}") from None
        tokens = self.target.encode(row[1])
        most = self.settings.max_length
        if most is not None and max(len(frames), len(tokens)) > most:
            self.report.long += 1
            return None
        shorter, longer = sorted((len(frames), len(tokens)))
        if self.settings.max_ratio is not None and longer > self.settings.max_ratio * shorter:
            self.report.ratio += 1
            return None
        self.report.kept += 1
        self.report.source_tokens += len(frames)
        self.report.target_tokens += len(tokens) + 1
        self.report.unknown += tokens.count(UNK)
        return {"source": frames, "target": np.array([*tokens, EOS])}
