"""Continue the texts of files: chunks of lines in, bytes out, in order and resumable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.decoding.beam import GREEDY
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.decoding.engine import fast
from regard.decoding.limits import DEFAULT_LIMITS, Limits
from regard.decoding.strategy import Strategy
from regard.models.language_model import LanguageModel
from regard.pipelines.generate import Generation, generate
from regard.pipelines.input import Chunk
from regard.pipelines.job import job_settings, load_kind
from regard.pipelines.output_formats import LINE_ENDS, json_line
from regard.pipelines.packing import packing


@dataclass(frozen=True)
class GenerateOptions:
    """Everything except the model and the input that determines the output of a generation job.

    Attributes:
        strategy, constraints, limits, multiline: as for `generate`.
        count: number of texts per prompt.
        json: write JSON lines.
        precision: of the engine.
        output: file for the texts; `-` is standard output.
    """

    strategy: Strategy = GREEDY
    constraints: Constraints = NO_CONSTRAINTS
    limits: Limits = DEFAULT_LIMITS
    multiline: bool | None = None
    count: int = 1
    json: bool = False
    precision: str = "auto"
    output: str = "-"

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `generate` and `stream`."""
        names = ("strategy", "constraints", "limits", "multiline")
        return {name: getattr(self, name) for name in names}

    def about(self, fingerprint: str) -> dict[str, Any]:
        """The settings that an interrupted job must share with the one that resumes it."""
        return job_settings(self, fingerprint)


class GenerateJob:
    """Continue a chunk of prompts; the result depends on the chunk and the options only."""

    def __init__(self, decoder: Any, options: GenerateOptions) -> None:
        self.decoder, self.options = decoder, options
        self._packing = packing(Path(options.output))

    def __call__(self, chunk: Chunk) -> list[bytes]:
        prompts = [row.text for row in chunk.rows]
        generations = generate(prompts, self.decoder, **self.options.arguments())
        lines = [line for generation in generations for line in format_lines(generation, self.options)]
        if not self.options.json:
            lines = [f"{LINE_ENDS.sub(' ', line[:-1])}\n" for line in lines]
        return [self._packing.pack("".join(lines).encode("utf-8", "replace"))]


def format_lines(generation: Generation, options: GenerateOptions) -> list[str]:
    """Return prompt and continuation of each of the first `count` hypotheses; with `json` an object for
    each.
    """
    hypotheses = generation.hypotheses[: options.count]
    if not options.json:
        return [f"{generation.prompt}{hypothesis.text}\n" for hypothesis in hypotheses]
    records = [
        {"prompt": generation.prompt, "text": h.text, "log_p": round(h.log_p, 6), "ended": h.ended}
        for h in hypotheses
    ]
    return [json_line(record) for record in records]


def load_language_model(folder: Path, device: Any, precision: str) -> Any:
    """Load a language model and return its fastest engine; another kind of model is an error."""
    return fast(load_kind(folder, device, LanguageModel, "generating takes a language model"), precision)
