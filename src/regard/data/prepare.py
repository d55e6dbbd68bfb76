"""Prepare a dataset once: read rows, drop and count unusable ones, encode, and store tokens as memory-mapped
arrays.

A prepared dataset is a folder of .npy arrays in the cache. Its name is a checksum of the files' contents and
of every setting that determines the tokens, so a changed file or setting makes a new folder. Texts are read
in blocks and are never all in memory. Large datasets are encoded by one process per core (see
`encoding_workers`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.bpe_dropout import BpeDropout
from regard.data.chunk_encoder import Encoding, EncodingSettings
from regard.data.encoding_workers import cores, encode_all
from regard.data.readers import MISSING, Block, Rows
from regard.data.text_files import BAD, LONG, MARK, MAX_CHARACTERS
from regard.data.tokenizer import EOS, Tokenizer
from regard.errors import DataError, OptionError, for_shell
from regard.files.arrays import GrowingArray, read_array
from regard.files.atomic import build_folder
from regard.files.cache import CACHE_HINT, cache_folder
from regard.files.checksums import file_sha256
from regard.files.progress import track

VERSION = 1  # of the folder format and of everything here that determines the tokens
SMALL = 8 << 20  # bytes; one process encodes files of at most this total size
RowIndices = NDArray[np.int64]


@dataclass
class Report:
    """Counts of rows read and dropped, by reason, and of tokens."""

    read: int = 0
    kept: int = 0
    bad_utf8: int = 0  # not UTF-8 on some side
    long_line: int = 0  # more characters than a line may have
    missing: int = 0  # without that column or field
    empty: int = 0  # only white space on some side
    long: int = 0  # more than max_length tokens on some side
    ratio: int = 0  # longer side more than max_ratio times the shorter
    source_tokens: int = 0  # without BPE-dropout, EOS included
    target_tokens: int = 0
    unknown: int = 0  # UNK tokens of both sides

    def dropped(self) -> dict[str, int]:
        """Number of dropped rows by reason; reasons without rows are left out."""
        named = {
            "not UTF-8": self.bad_utf8,
            f"over {MAX_CHARACTERS:,} characters": self.long_line,
            "without the column or field": self.missing,
            "empty on a side": self.empty,
            "over max_length": self.long,
            "over max_ratio": self.ratio,
        }
        return {reason: number for reason, number in named.items() if number}

    def no_rows_message(self, rows: Rows) -> str:
        """Why no row could be used, and what to do."""
        if not self.read:
            if rows.is_part:
                return (
                    f"{rows.files[0]} has no row left for training, since some are held out; give it more "
                    "rows or lines, or lower data.hold_out"
                )
            return f"{rows.files[0]} has no rows, at most a header; give a file with text"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.dropped().items())
        notes = f" ({'; '.join(rows.notes())})" if rows.notes() else ""
        return (
            f"none of the {self.read:,} rows of {rows.files[0]} can be used: {reasons}{notes}; "
            f"{self._advice(rows)}"
        )

    def _advice(self, rows: Rows) -> str:
        """What to do if no row could be used, by the most frequent reason."""
        most = max(self.dropped().values())
        if self.bad_utf8 == most:
            return f"convert the file with: iconv -f WINDOWS-1252 -t UTF-8 {for_shell(str(rows.files[0]))}"
        if self.long == most:
            return "raise data.max_length, or split the rows (in CoNLL files, an empty line ends a sentence)"
        return "check the file with `regard data`, and data.source and data.target"

    def __str__(self) -> str:
        dropped = "; ".join(f"{number:,} {reason}" for reason, number in self.dropped().items())
        unknown = f", {self.unknown:,} of them unknown" if self.unknown else ""
        tokens = self.source_tokens + self.target_tokens
        return f"{self.kept:,} of {self.read:,} rows, {tokens:,} tokens{unknown}" + (
            f"; dropped: {dropped}" if dropped else ""
        )


class Prepared:
    """A dataset of token ids on disk, memory-mapped.

    Every row ends with EOS, or with the newline token in the text of a character language model. A source
    that is a sequence of numbers has rows of frames (T, channels) instead.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        self.checksum: str = meta["checksum"]
        self.rows: int = meta["rows"]
        self.variants: int = meta["variants"]
        self.paired: bool = meta["paired"]
        self.max_length: int | None = meta["max_length"]
        self.channels: int | None = meta.get("channels")  # of a source that is a sequence of numbers
        self.report = Report(**meta["report"])
        self._arrays: dict[tuple[str, int], tuple[NDArray[Any], NDArray[np.int64]]] = {}

    def arrays(self, side: str, variant: int = 0) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """All tokens of a side, concatenated, and the offsets of the rows (one more than rows)."""
        if (side, variant) not in self._arrays:
            if side == "source" and not self.paired:
                raise DataError("a language model's text has no source side; ask for the target")
            tokens = read_array(self.folder / f"{side}.{variant}.npy")
            if side == "source" and self.channels is not None:
                tokens = tokens.reshape(-1, self.channels)  # (frames, channels)
            offsets = np.asarray(read_array(self.folder / f"{side}.{variant}.offsets.npy"), np.int64)
            self._arrays[side, variant] = tokens, offsets
        return self._arrays[side, variant]

    def lengths(self, side: str, variant: int = 0) -> NDArray[np.int32]:
        """Number of tokens of each row on a side, EOS included."""
        return np.diff(self.arrays(side, variant)[1]).astype(np.int32)

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        return self.lengths("source")

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        return self.lengths("target")

    def source(self, row: int, variant: int = 0) -> NDArray[Any]:
        """x1 … xn EOS of a row."""
        return self._row("source", row, variant)

    def target(self, row: int, variant: int = 0) -> NDArray[Any]:
        """y1 … yn EOS of a row."""
        return self._row("target", row, variant)

    def _row(self, side: str, row: int, variant: int) -> NDArray[Any]:
        tokens, offsets = self.arrays(side, variant)
        return tokens[offsets[row] : offsets[row + 1]]

    @property
    def lines(self) -> NDArray[np.int64]:
        """The index of each row among all rows read, from 0, to find it in the files."""
        return np.asarray(read_array(self.folder / "lines.npy"), np.int64)

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"Prepared({self.report})"


@dataclass
class Hashes:
    """SHA-256 of files, each computed once."""

    known: dict[Path, str] = field(default_factory=dict)

    def of(self, paths: Sequence[Path]) -> list[str]:
        new = [path for path in dict.fromkeys(paths) if path not in self.known]
        with track(sum(path.stat().st_size for path in new), "checking files", "bytes") as progress:
            for path in new:
                self.known[path] = file_sha256(path, progress.advance)
        return [self.known[path] for path in paths]


def prepare(
    rows: Rows,
    source_tokenizer: Tokenizer | None,
    target_tokenizer: Tokenizer,
    settings: EncodingSettings = EncodingSettings(),  # noqa: B008 - frozen
    *,
    hashes: Hashes | None = None,
    name: str = "rows",
    expected: int | None = None,
) -> Prepared:
    """Return the rows as tokens, from the cache or encoded now.

    `name` and `expected` (the number of rows) are only for the progress bar.
    """
    rows.check()
    if rows.paired and source_tokenizer is None:
        raise OptionError("pairs need a source tokenizer; if both sides share one, pass it twice")
    if settings.dropout:
        for tokenizer in (source_tokenizer, target_tokenizer):
            if tokenizer is not None and tokenizer.kind not in ("label", "frames"):
                BpeDropout(tokenizer, settings.dropout)  # raises if the tokenizer does not support it
    identity = {
        "version": VERSION,
        "files": (hashes or Hashes()).of(rows.files),
        "layout": rows.layout(),
        "settings": settings.identity(),
        "tokenizers": [
            tokenizer.fingerprint
            for tokenizer in (source_tokenizer, target_tokenizer)
            if tokenizer is not None
        ],
    }
    checksum = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / "prepared" / checksum[:32]
    tokenizers = [tokenizer for tokenizer in (source_tokenizer, target_tokenizer) if tokenizer is not None]

    def build(temporary: Path) -> None:
        if tokenizers[0].kind == "frames":
            from regard.data.prepare_sequences import SequencePreparation  # it uses this module

            SequencePreparation(rows, tokenizers, settings, temporary).run(checksum, name, expected)
            return
        _TextPreparation(rows, tokenizers[-2:] if rows.paired else tokenizers[-1:], settings, temporary).run(
            checksum, name, expected
        )

    build_folder(folder, _is_complete, build, CACHE_HINT)
    return Prepared(folder)


def _is_complete(folder: Path) -> bool:
    """True if every file of the folder is there with the right size."""
    try:
        sizes = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def usable(
    rows: Rows, limit: int | None, report: Report, advance: Any = lambda n: None
) -> Iterator[tuple[Block, RowIndices]]:
    """Yield blocks of usable rows with their original indices; count the others in `report`.

    A pair with an empty side is not usable; an empty line in a language model's text is.
    """
    for block in rows.blocks(advance):
        if limit is not None and report.read + len(block[0]) > limit:
            block = tuple(column[: limit - report.read] for column in block)
        usable_rows = [
            i for i, row in enumerate(zip(*block, strict=True)) if _is_usable(row, rows.paired, report)
        ]
        numbers = np.asarray(usable_rows, np.int64) + report.read
        report.read += len(block[0])
        yield (
            (
                block
                if len(usable_rows) == len(block[0])
                else tuple([column[i] for i in usable_rows] for column in block)
            ),
            numbers,
        )
        if limit is not None and report.read >= limit:
            return


def _is_usable(row: tuple[str, ...], paired: bool, report: Report) -> bool:
    """True if every text of a row can be used; else the reason is counted in `report`."""
    for text in row:
        if not text or text.isspace():
            if paired:
                report.empty += 1
                return False
        elif text[0] == MARK:
            name = {BAD: "bad_utf8", LONG: "long_line", MISSING: "missing"}[text]
            setattr(report, name, getattr(report, name) + 1)
            return False
    return True


class _TextPreparation:
    """Encodes the rows of text files and writes the folder of a prepared dataset."""

    def __init__(
        self, rows: Rows, tokenizers: Sequence[Tokenizer], settings: EncodingSettings, folder: Path
    ) -> None:
        self.rows, self.tokenizers, self.settings, self.folder = rows, tokenizers, settings, folder
        self.report = Report()
        self.sides = ("source", "target")[-len(tokenizers) :]
        newline = (
            tokenizers[-1].vocabulary.get("\n")
            if not rows.paired and tokenizers[-1].kind == "character"
            else None
        )
        self.end = EOS if newline is None else newline

    def run(self, checksum: str, name: str, expected: int | None) -> None:
        size = sum(path.stat().st_size for path in self.rows.files)
        workers = worker_count(size)
        total, unit = (size, "bytes") if expected is None else (expected, "rows")
        with ExitStack() as stack, track(total, f"preparing {name}", unit) as progress:
            lines = self._open(stack)
            waiting: deque[RowIndices] = deque()  # indices of rows that are being encoded
            chunks = usable(
                self.rows, self.settings.limit, self.report, progress.advance if expected is None else _ignore
            )
            for encoding in encode_all(_blocks(chunks, waiting), self.tokenizers, self.settings, workers):
                numbers = waiting.popleft()
                lines.append(numbers[encoding.keep])
                self._append(encoding)
                if expected is not None:
                    progress.advance(len(numbers))
        if not self.report.kept:
            raise DataError(self.report.no_rows_message(self.rows))
        meta = {
            "checksum": checksum,
            "rows": self.report.kept,
            "variants": self.settings.variants,
            "paired": self.rows.paired,
            "max_length": self.settings.max_length,
            "report": vars(self.report),
            "files": {path.name: path.stat().st_size for path in sorted(self.folder.iterdir())},
        }
        (self.folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")

    def _open(self, stack: ExitStack) -> GrowingArray:
        """Open the files of every side and variant, and that of the row indices."""
        self.files: dict[tuple[str, int], tuple[GrowingArray, GrowingArray]] = {}
        for side, tokenizer in zip(self.sides, self.tokenizers, strict=True):
            for variant in range(self.settings.variants):
                kind = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
                tokens = stack.enter_context(GrowingArray(self.folder / f"{side}.{variant}.npy", kind))
                offsets = stack.enter_context(
                    GrowingArray(self.folder / f"{side}.{variant}.offsets.npy", np.int64)
                )
                offsets.append(np.zeros(1, np.int64))
                self.files[side, variant] = tokens, offsets
        return stack.enter_context(GrowingArray(self.folder / "lines.npy", np.int64))

    def _append(self, encoding: Encoding) -> None:
        """Write the rows of a chunk, each with its end token, and count them."""
        self.report.kept += int(encoding.keep.sum())
        for counter, number in encoding.counts.items():
            setattr(self.report, counter, getattr(self.report, counter) + number)
        for side, variants in zip(self.sides, encoding.sides, strict=True):
            for variant, (tokens, lengths) in enumerate(variants):
                file, offsets = self.files[side, variant]
                ends = np.cumsum(lengths.astype(np.int64) + 1)
                with_end = np.full(len(tokens) + len(lengths), self.end, file.dtype)
                inside = np.ones(len(with_end), bool)
                inside[ends - 1] = False
                with_end[inside] = tokens
                offsets.append(file.length + ends)
                file.append(with_end)


def worker_count(size: int) -> int:
    """Number of encoding processes: REGARD_WORKERS if set, else 1 for small files, else one per core."""
    setting = os.environ.get("REGARD_WORKERS")
    if setting is not None and not setting.isdigit():
        raise OptionError(f"REGARD_WORKERS must be an integer, got {setting!r}")
    return int(setting) if setting else cores() if size > SMALL else 1


def _ignore(count: int) -> None:
    """Ignore progress."""


def _blocks(chunks: Iterator[tuple[Block, RowIndices]], waiting: deque[RowIndices]) -> Iterator[Block]:
    """Yield the blocks; append the row indices of each to `waiting`."""
    for block, numbers in chunks:
        waiting.append(numbers)
        yield block
