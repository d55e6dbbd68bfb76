"""The tokenizers of a dataset: loaded, found in the cache, or trained on a sample of its training rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.data.frame_encoder import FrameEncoder
from regard.data.prepare import Hashes, Report, usable
from regard.data.readers import Rows
from regard.data.tokenizer import Tokenizer
from regard.data.tokenizer_training import TOKENIZERS
from regard.errors import DataError, OptionError
from regard.files.atomic import build_folder
from regard.files.cache import CACHE_HINT, cache_folder
from regard.files.progress import track

SAMPLE_ROWS, SAMPLE_CHARACTERS = 1_000_000, 300_000_000  # a vocabulary is learned from at most this much text
Given = tuple[Tokenizer | None, Tokenizer | None]  # source and target tokenizer of a pretrained model


def tokenizers_for(
    options: Any,
    rows: Rows,
    limit: int | None,
    hashes: Hashes,
    labels: str | None = None,
    *,
    sequences: bool = False,
) -> tuple[Tokenizer | None, Tokenizer, int | None]:
    """Load the source and the target tokenizer, take them from the cache, or train them.

    Args:
        options: the recipe's `tokenizer:` block.
        rows: the training rows.
        limit: only this many rows are used.
        hashes: SHA-256 of the files, for the cache key.
        labels: None if the targets are text. "label": each target is one entry of a vocabulary; "word": each
            of its words is.
        sequences: the sources are sequences of numbers; their `FrameEncoder` has the mean and deviation of
            every channel.

    Returns:
        The source tokenizer (None for a text), the target tokenizer, and the number of rows if they were
        read.
    """
    if options.load is not None:
        return *load_tokenizers(Path(options.load), rows.paired), None
    if options.kind not in TOKENIZERS:
        raise OptionError(f"tokenizer.kind is one of {', '.join(TOKENIZERS)}, got {options.kind!r}")
    if options.dropout and options.kind not in ("bpe", "byte-bpe"):
        raise OptionError(
            f"tokenizer.dropout is for the kinds bpe and byte-bpe, got kind {options.kind}; set it to 0"
        )
    folder = cache_folder() / "tokenizers" / _cache_key(options, rows, limit, hashes, labels)[:32]
    counted: list[int] = []

    def build(temporary: Path) -> None:
        columns, read = text_sample(rows, limit)
        counted.append(read)
        joint = not rows.paired or (options.joint and labels is None and not sequences)
        if labels is not None:
            _train_labels(rows, labels).save(temporary / "target.json")
        sides = [("tokenizer", columns)] if joint else [("source", columns[:1]), ("target", columns[1:])]
        for name, texts in sides if labels is None else sides[:1]:
            frames = sequences and name == "source"
            learned = FrameEncoder.fit(texts[0]) if frames else _train(options, texts)
            learned.save(temporary / f"{name}.json")

    build_folder(folder, lambda folder: any(folder.glob("*.json")), build, CACHE_HINT)
    return *load_tokenizers(folder, rows.paired), next(iter(counted), None)


def _cache_key(options: Any, rows: Rows, limit: int | None, hashes: Hashes, labels: str | None) -> str:
    """A hash of everything that decides what is learned."""
    identity = {
        "files": hashes.of(rows.files),
        "layout": rows.layout(),
        "limit": limit,
        "kind": options.kind,
        "size": options.size,
        "joint": options.joint,
        "lowercase": options.lowercase,
        "sample": [SAMPLE_ROWS, SAMPLE_CHARACTERS],
    }
    identity |= {"labels": labels} if labels else {}
    identity |= {"min_count": options.min_count} if options.min_count > 1 else {}
    identity |= {"languages": options.languages} if options.languages else {}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _train(options: Any, columns: list[list[str]]) -> Tokenizer:
    with track(None, f"learning {options.size:,} {options.kind} entries", "lines") as progress:
        lines = _with_progress((text for row in zip(*columns, strict=True) for text in row), progress)
        return Tokenizer.train(
            lines,
            options.kind,
            options.size,
            lowercase=options.lowercase,
            min_count=options.min_count,
            languages=options.languages,
        )


def _train_labels(rows: Rows, labels: str) -> Tokenizer:
    """The vocabulary of labels or tags, from all rows: a sample could miss one."""
    targets = (text for block, _ in usable(rows, None, Report()) for text in block[1])
    return Tokenizer.labels(targets) if labels == "label" else Tokenizer.train(targets, labels, 1 << 30)


def given_tokenizers(given: Given, rows: Rows, labels: str | None) -> tuple[Tokenizer | None, Tokenizer]:
    """The tokenizers of a pretrained model; labels that differ get a vocabulary of the data."""
    source, target = given
    if labels is None:
        assert target is not None
        return (source or target) if rows.paired else None, target
    trained = _train_labels(rows, labels)
    if target is not None and set(target.entries) == set(trained.entries):
        return source, target
    return source, trained


def load_tokenizers(path: Path, paired: bool) -> tuple[Tokenizer | None, Tokenizer]:
    """Load one file for both sides, or a folder with tokenizer.json, or with source.json and target.json."""
    if not path.is_dir():
        both = Tokenizer.load(path)
        return (both if paired else None), both
    if (path / "tokenizer.json").is_file():
        return load_tokenizers(path / "tokenizer.json", paired)
    if not (path / "target.json").is_file() or (paired and not (path / "source.json").is_file()):
        raise DataError(
            f"{path} holds neither tokenizer.json nor source.json and target.json; "
            "name a tokenizer file or a model folder"
        )
    return (Tokenizer.load(path / "source.json") if paired else None), Tokenizer.load(path / "target.json")


def text_sample(rows: Rows, limit: int | None) -> tuple[list[list[str]], int]:
    """Columns of evenly spaced usable rows, bounded in rows and characters, and the number of rows read.

    The number of rows is known only at the end: when the sample is full, every second row is dropped and the
    step doubles.
    """
    report = Report()
    kept: list[tuple[str, ...]] = []
    step, seen, characters = 1, 0, 0
    with track(sum(path.stat().st_size for path in rows.files), "reading", "bytes") as progress:
        for block, _ in usable(rows, limit, report, progress.advance):
            for row in zip(*block, strict=True):
                if seen % step == 0:
                    kept.append(row)
                    characters += sum(map(len, row))
                    if len(kept) * len(row) > SAMPLE_ROWS or characters > SAMPLE_CHARACTERS:
                        kept, step = kept[::2], 2 * step
                        characters = sum(len(text) for row in kept for text in row)
                seen += 1
    if not kept:
        raise DataError(report.no_rows_message(rows))
    return [list(column) for column in zip(*kept, strict=True)], report.read


def _with_progress(lines: Iterator[str], progress: Any) -> Iterator[str]:
    for line in lines:
        progress.advance(1)
        yield line
