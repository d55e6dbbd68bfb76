"""regard: the engine and its search, from token ids to token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.decode_peers.systems import THREADS, Sentences, Setting
from regard.decoding.beam import Beam
from regard.decoding.engine import fast, why_not
from regard.decoding.limits import Limits
from regard.pipelines.translate import translate_tokens


class Regard:
    """Length-sorted batches of `batch_tokens`, with the given number of workers."""

    def __init__(self, folder: Path, precision: str, inputs: dict[str, Any]) -> None:
        model = regard.load(inputs["model"])
        reason = why_not(model, precision)
        if reason is not None and precision != "float32":
            raise ValueError(reason)
        self.engine, self.version = fast(model, precision), regard.__version__
        self.note = "" if reason is None else f"without the engine: {reason}"

    def settings(self) -> list[Setting]:
        return [
            {"workers": n, "batch_tokens": tokens} for n in THREADS for tokens in (2048, 1024, 4096, 8192)
        ]

    def single_settings(self) -> list[Setting]:
        # With two threads, each computes half of every matrix product.
        return [{"workers": 1, "threads": n} for n in THREADS]

    def prepare(self, setting: Setting, sentences: Sentences) -> Sentences:
        torch.set_num_threads(setting.get("threads", setting["workers"]))
        return sentences

    def translate(self, prepared: Sentences, beam: int, limit: int, setting: Setting) -> Any:
        options: dict[str, Any] = {key: value for key, value in setting.items() if key != "threads"}
        limits = Limits(max_length=limit, **options)
        return translate_tokens(self.engine, prepared, strategy=Beam(beam, length_penalty=1.0), limits=limits)

    def tokens(self, translations: Any, limit: int) -> Sentences:
        return [hypotheses[0].all_tokens for hypotheses in translations]
