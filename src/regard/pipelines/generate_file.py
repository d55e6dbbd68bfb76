"""A job that continues texts: chunks of lines in, bytes out, in order; what is written depends on chunk and settings alone."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from regard.decoding.engine import fast
from regard.decoding.sampling import Sample
from regard.errors import FolderError
from regard.models.folder import load
from regard.models.language_model import LanguageModel
from regard.pipelines.generate import Generation, generate
from regard.pipelines.input import Chunk
from regard.pipelines.output import packing
from regard.pipelines.translate_file import in_common

_BREAKS = re.compile(r"[\r\n]+")


@dataclass(frozen=True)
class Settings:
    """Everything but the model and the text that decides what is written."""

    search: dict[str, Any] = field(default_factory=dict)  # arguments of `generate`
    sample: dict[str, Any] | None = None  # of `Sample`, when tokens are drawn
    count: int = 1  # texts for each prompt
    json: bool = False
    precision: str = "auto"
    output: str = "-"

    def arguments(self) -> dict[str, Any]:
        """What `generate` is told about every prompt."""
        return self.search | (
            {} if self.sample is None else {"sample": Sample(count=self.count, **self.sample)}
        )

    def about(self, fingerprint: str) -> dict[str, Any]:
        """What a job must have in common with the one it resumes."""
        return in_common(self.search | asdict(self), fingerprint, ("search", "output"))


class Generating:
    """What is done to a chunk, with the model at hand."""

    def __init__(self, writer: Any, settings: Settings) -> None:
        self.writer, self.settings = writer, settings
        self._packing = packing(Path(settings.output))

    def __call__(self, chunk: Chunk) -> list[bytes]:
        found = generate([row.text for row in chunk.rows], self.writer, **self.settings.arguments())
        lines = (line for each in found for line in written(each, self.settings.count, self.settings.json))
        text = "".join(
            lines if self.settings.json else (f"{_BREAKS.sub(' ', line[:-1])}\n" for line in lines)
        )
        return [self._packing.pack(text.encode("utf-8", "replace"))]


def written(found: Generation, count: int, as_json: bool) -> list[str]:
    """The prompt with what follows, for each of the first texts; or a JSON object for each."""
    if not as_json:
        return [f"{found.prompt}{each.text}\n" for each in found.hypotheses[:count]]
    records = [
        {"prompt": found.prompt, "text": each.text, "log_p": round(each.log_p, 6), "ended": each.ended}
        for each in found.hypotheses[:count]
    ]
    return [json.dumps(record, ensure_ascii=False) + "\n" for record in records]


def load_writer(folder: Path, device: Any, precision: str) -> Any:
    """The language model of a folder in its fastest form, or a sentence about what else is in there."""
    model = load(folder, device)
    if not isinstance(model, LanguageModel):
        raise FolderError(
            f"{folder} is {model.what}, and generating takes a language model; `{model.command}` uses it"
        )
    return fast(model, precision)
