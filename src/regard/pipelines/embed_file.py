"""Embed files: chunks of lines in, vectors out, in order and resumable."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.models.embedder import Embedder
from regard.pipelines.embed import Vectors, embed
from regard.pipelines.input import Chunk
from regard.pipelines.job import job_settings
from regard.pipelines.output_formats import json_line
from regard.pipelines.packing import packing


@dataclass(frozen=True)
class EmbedOptions:
    """Everything except the model and the input that determines the output of an embedding job.

    Attributes:
        output_format: text, json or npy.
        column: name or number of the column of a table.
        field: name of the field of JSON lines.
        batch_tokens: maximum size of a batch.
        output: the output file; `-` is standard output.
    """

    output_format: str = "text"
    column: str | None = None
    field: str | None = None
    batch_tokens: int | None = None
    output: str = "-"

    def about(self, fingerprint: str) -> dict[str, Any]:
        """The settings that an interrupted job must share with the one that resumes it."""
        return job_settings(self, fingerprint)


class EmbedJob:
    """Embed a chunk of lines; the result depends on the chunk and the options only."""

    def __init__(self, model: Embedder, options: EmbedOptions) -> None:
        self.model, self.options = model, options
        self._packing = packing(Path(options.output))

    def __call__(self, chunk: Chunk) -> list[bytes]:
        texts = [row.text for row in chunk.rows]
        vectors = embed(texts, self.model, batch_tokens=self.options.batch_tokens)
        if self.options.output_format == "npy":
            header = npy_header(self.model.width) if chunk.first == 0 else b""
            return [self._packing.pack(header + np.ascontiguousarray(vectors, "<f4").tobytes())]
        lines = _json_lines(texts, vectors) if self.options.output_format == "json" else _text_lines(vectors)
        return [self._packing.pack("".join(lines).encode("utf-8", "replace"))]


def npy_header(width: int, rows: int = 0) -> bytes:
    """Return the header of a .npy file of float32 vectors; its size does not depend on the number of rows."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def _text_lines(vectors: Vectors) -> list[str]:
    return ["\t".join(f"{x:.7g}" for x in row) + "\n" for row in vectors.tolist()]


def _json_lines(texts: list[str], vectors: Vectors) -> list[str]:
    records = [
        {"text": text, "embedding": [round(x, 7) for x in row]}
        for text, row in zip(texts, vectors.tolist(), strict=True)
    ]
    return [json_line(record) for record in records]
