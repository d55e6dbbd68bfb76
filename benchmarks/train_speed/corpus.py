"""The sentences: Multi30k English-German if it is there, else the sample included in the package."""

from __future__ import annotations

import gzip
import lzma
import os
from importlib.resources import files
from pathlib import Path

Text = list[tuple[str, str]]


def root() -> Path | None:
    """The folder of corpora: `REGARD_DATA`, or shared/data next to the project."""
    given = os.environ.get("REGARD_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[3] / "shared" / "data"
    return folder if folder.is_dir() else None


def read() -> tuple[str, Text, Text]:
    """(name, training pairs, held-out pairs)."""
    folder = root()
    if folder is not None and (folder / "multi30k" / "train.en.gz").exists():
        return (
            "Multi30k en-de",
            _multi30k(folder / "multi30k", "train"),
            _multi30k(folder / "multi30k", "val"),
        )
    packed = (files("regard.data") / "samples" / "tatoeba-sample.tsv.xz").read_bytes()
    pairs = [_pair(line) for line in lzma.decompress(packed).decode("utf-8").split("\n") if line]
    return "the carried Tatoeba sample", [p for i, p in enumerate(pairs) if i % 20], pairs[::20]


def _multi30k(folder: Path, part: str) -> Text:
    sides = []
    for language in ("en", "de"):
        with gzip.open(folder / f"{part}.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
            sides.append([line.strip() for line in file])
    return list(zip(*sides, strict=True))


def _pair(line: str) -> tuple[str, str]:
    english, german = line.split("\t")[:2]
    return english, german
