"""The model and the texts or sequences of `regard faithfulness`: folders of regard and Hugging Face, corpora,
files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.datasets import Split
from regard.data.frame_encoder import FrameEncoder
from regard.data.sequence_files import is_sequence_file
from regard.errors import DataError, FolderError, OptionError
from regard.evaluation.evaluate import data_section, default_split, model_split
from regard.models.folder import load
from regard.pipelines.input import Reader
from regard.pipelines.sequence_input import open_sequences

Labelled = tuple[Sequence[str], Sequence[str]]  # texts and their labels


@dataclass(frozen=True)
class ExplainedInputs:
    """A model and its texts; `tokenizer` is set for a Hugging Face model only."""

    model: Any
    tokenizer: Any = None

    def draw(self, data: Sequence[str], split: str | None, limit: int, seed: int) -> list[str]:
        """At most `limit` texts, or names of sequences, of a corpus or files, drawn with the seed, in their
        order.
        """
        if self.tokenizer is not None:
            texts = _lines(data)
        elif data and isinstance(getattr(self.model, "source_tokenizer", None), FrameEncoder):
            if split:
                raise OptionError("--split is a part of the model's own data; leave it out, or --data")
            texts = _sequences(data)
        else:
            rows = self._split(data_section(self.model.card, data), split)
            texts = rows.targets if self.model.kind == "language-model" else rows.sources
        filled = [at for at, text in enumerate(texts) if text.strip()]
        if not filled:
            raise DataError(
                "the data have nothing to explain; name other data with --data, or a text or file with --text"
            )
        order = np.random.default_rng(seed).permutation(len(filled))[:limit]
        return [texts[filled[at]] for at in sorted(order)]

    def labelled(self, data: Sequence[str], split: str | None) -> tuple[Labelled, Labelled]:
        """Training texts of the model's own corpus and the texts of a split, with labels."""
        if self.tokenizer is not None or self.model.kind != "classifier":
            raise OptionError(
                "--diagnostic is for classifiers of regard, and this is another model; leave it out"
            )
        train = self._split(data_section(self.model.card), "train")
        test = self._split(data_section(self.model.card, data), split)
        return (train.sources, train.targets), (test.sources, test.targets)

    def _split(self, section: dict[str, Any], split: str | None) -> Split:
        return model_split(self.model, section, split or default_split(section))


def load_inputs(folder: Path, device: Any) -> ExplainedInputs:
    """Load a model folder of regard, or a folder of Hugging Face Transformers."""
    config = _huggingface_config(folder)
    return (
        ExplainedInputs(load(folder, device)) if config is None else _load_huggingface(folder, config, device)
    )


def _huggingface_config(folder: Path) -> dict[str, Any] | None:
    """The config of a Hugging Face model; None for any other folder."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return (
        config
        if isinstance(config, dict) and config.get("model_type") and config.get("architectures")
        else None
    )


def _load_huggingface(folder: Path, config: dict[str, Any], device: Any) -> ExplainedInputs:
    try:
        import transformers
    except ImportError:
        raise FolderError(
            f"{folder} is a Hugging Face model, which needs Transformers; pip install 'regard[transformers]'"
        ) from None
    import regard.huggingface

    regard.huggingface.register()
    name = str(config["architectures"][0])
    kind = getattr(transformers, name, None)
    if kind is None:
        raise FolderError(
            f"{folder} holds a {name}, which the installed Transformers does not have; update it"
        )
    try:
        model = kind.from_pretrained(folder, attn_implementation="regard", local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FolderError(f"the Hugging Face model in {folder} cannot be loaded: {reason}") from error
    return ExplainedInputs(model.to(device).eval(), tokenizer)


def _sequences(data: Sequence[str]) -> list[str]:
    """The names of sequences: of arrays, of tables of numbers, and of lists and tables of file names."""
    names = [name for name in data if is_sequence_file(name)]
    lists = [Path(name) for name in data if name not in names]
    sources = [open_sequences(names, None)[0]] if names else []
    sources += [open_sequences([], lists)[0]] if lists else []
    return [row.text for source in sources for chunk in Reader(source).chunks() for row in chunk.rows]


def _lines(data: Sequence[str]) -> list[str]:
    """The lines of text files."""
    if not data:
        raise OptionError(
            "a Hugging Face model has no data of its own; name a text file with --data, or --text"
        )
    texts: list[str] = []
    for name in data:
        try:
            texts += Path(name).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{name} cannot be read as UTF-8 text: {error}") from error
    return texts
