"""A job that embeds lines: chunks of lines in, vectors out, in order; what is written depends on chunk and settings alone."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.models.embedder import Embedder
from regard.pipelines.embed import Vectors, embed
from regard.pipelines.input import Chunk
from regard.pipelines.job import job_settings
from regard.pipelines.packing import packing


@dataclass(frozen=True)
class Settings:
    """Everything but the model and the text that decides what is written."""

    form: str = "text"  # text, json or npy
    column: str | None = None
    field: str | None = None
    batch_tokens: int | None = None
    output: str = "-"

    def about(self, fingerprint: str) -> dict[str, Any]:
        """What a job must have in common with the one it resumes."""
        return job_settings(self, fingerprint)


class Embedding:
    """What is done to a chunk, with the model at hand."""

    def __init__(self, model: Embedder, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self._packing = packing(Path(settings.output))

    def __call__(self, chunk: Chunk) -> list[bytes]:
        texts = [row.text for row in chunk.rows]
        vectors = embed(texts, self.model, batch_tokens=self.settings.batch_tokens)
        if self.settings.form == "npy":
            header = npy_header(self.model.width) if chunk.first == 0 else b""
            return [self._packing.pack(header + np.ascontiguousarray(vectors, "<f4").tobytes())]
        lines = _json(texts, vectors) if self.settings.form == "json" else _text(vectors)
        return [self._packing.pack("".join(lines).encode("utf-8", "replace"))]


def npy_header(width: int, rows: int = 0) -> bytes:
    """The first bytes of a .npy file of float32 vectors; as many for any number of rows, since NumPy leaves room for it."""
    held = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        held, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    )
    return held.getvalue()


def _text(vectors: Vectors) -> list[str]:
    return ["\t".join(f"{x:.7g}" for x in row) + "\n" for row in vectors.tolist()]


def _json(texts: list[str], vectors: Vectors) -> list[str]:
    rows = zip(texts, vectors.tolist(), strict=True)
    return [
        json.dumps({"text": text, "embedding": [round(x, 7) for x in row]}, ensure_ascii=False) + "\n"
        for text, row in rows
    ]
