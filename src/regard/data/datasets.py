"""Load the dataset of a recipe: from its `data:` and `tokenizer:` blocks to prepared splits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from regard.data import corpora
from regard.data.csv_reader import Csv
from regard.data.prepare import EncodingSettings, Hashes, Prepared, prepare
from regard.data.readers import Rows, concatenate
from regard.data.row_formats import ROW_FORMATS, RowFormat, row_format_of
from regard.data.splits import RowRange, SplitRows
from regard.data.text_files import is_unreadable
from regard.data.tokenizer import EOS, Tokenizer
from regard.data.train_tokenizers import Given, given_tokenizers, tokenizers_for
from regard.errors import DataError, OptionError, for_shell

SPLITS = ("train", "validation", "test")
DATA_DEFAULTS = {
    "corpus": None,
    "source": None,
    "target": None,
    "version": None,
    "train": (),
    "validation": (),
    "test": (),
    "max_length": 256,
    "max_ratio": None,
    "limit": None,
    "fold": None,
    "folds": None,
    "hold_out": None,
    "scheme": None,
    "repair": False,
    "labels": {},
}
TOKENIZER_DEFAULTS = {
    "kind": "bpe",
    "size": 8000,
    "joint": True,
    "lowercase": False,
    "dropout": 0.0,
    "variants": 8,
    "load": None,
    "min_count": 1,
    "languages": [],
}


@dataclass(frozen=True)
class Split:
    """A validation or test split: all rows as text, and those within max_length as tokens.

    `sources` is empty for a language model's text. `scores` are human similarity ratings of an embedder's
    pairs.
    """

    name: str
    sources: list[str]
    targets: list[str]
    prepared: Prepared
    scores: list[float] = field(default_factory=list)


@dataclass
class Corpus:
    """A loaded dataset: prepared training rows, validation and test splits, tokenizers, checksums and
    warnings.
    """

    name: str
    train: Prepared
    validation: Split | None
    source_tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer
    test_names: list[str]
    checksums: dict[str, str]
    warnings: list[str]
    notes: list[str]  # what was assumed about the files
    _data: Any = field(repr=False)
    _task: str | RowFormat = field(repr=False)

    def test(self, name: str | None = None) -> Split:
        """Load a test split, by default the first of `test_names`."""
        split = name or next(iter(self.test_names), "test")
        return load_split(self._data, split, self.source_tokenizer, self.target_tokenizer, self._task)


def load_corpus(
    data: Any,
    tokenizer: Any,
    task: str | RowFormat = "translate",
    seed: int = 1,
    given: Given | None = None,
    training_rows: Rows | None = None,
) -> Corpus:
    """Check the files, then train tokenizers and encode the rows, or load both from the cache.

    Args:
        data: the recipe's `data:` block, an object or a dict; DATA_DEFAULTS has the keys and defaults.
        tokenizer: the recipe's `tokenizer:` block; TOKENIZER_DEFAULTS has the keys and defaults.
        task: the task whose rows are read, or a row format.
        seed: seed of BPE-dropout.
        given: source and target tokenizers of a pretrained model, used instead of trained ones. Labels and
            tags come from the data; if they are those of the target tokenizer, its order is kept.
        training_rows: replace the training rows of `data`; `data.limit` does not apply to them.
    """
    data = _section("data", data, DATA_DEFAULTS)
    options = _section("tokenizer", tokenizer, TOKENIZER_DEFAULTS)
    row_format = row_format_of(task)
    rows = _checked_rows(data, task, training_rows)
    settings = EncodingSettings(
        max_length=data.max_length,
        max_ratio=data.max_ratio,
        limit=data.limit,
        dropout=options.dropout,
        variants=options.variants,
        seed=seed,
    )
    hashes = Hashes()
    if given is not None:
        source, target, expected = *given_tokenizers(given, rows["train"], row_format.labels), None
    else:
        source, target, expected = tokenizers_for(
            options, rows["train"], settings.limit, hashes, row_format.labels, sequences=row_format.sequences
        )
    row_format.check_renamed(data.labels, target)
    for split_reader in rows.values():
        row_format.check(split_reader, target)
    train = prepare(rows["train"], source, target, settings, hashes=hashes, name="train", expected=expected)
    if row_format.classes and data.limit is None:
        _check_classes(train, target, rows["train"])
    validation = None
    if "validation" in rows:
        validation = _split("validation", rows["validation"], source, target, settings.max_length, hashes)
    return Corpus(
        name=data.corpus or str(rows["train"].files[0]),
        train=train,
        validation=validation,
        source_tokenizer=source,
        target_tokenizer=target,
        test_names=_test_names(data),
        checksums={f"{path.parent.name}/{path.name}": sha for path, sha in hashes.known.items()},
        warnings=_warnings(data, train, validation, hashes)
        + row_format.scarcity_warnings(train, validation and validation.prepared, target),
        notes=list(dict.fromkeys(note for split_reader in rows.values() for note in split_reader.notes())),
        _data=data,
        _task=task,
    )


def load_split(
    data: Any,
    split: str,
    source_tokenizer: Tokenizer | None,
    target_tokenizer: Tokenizer,
    task: str | RowFormat = "translate",
) -> Split:
    """Load one split with given tokenizers: train, validation, test, or the corpus's own name of a split."""
    data = _section("data", data, DATA_DEFAULTS)
    rows = split_rows(data, split, task)
    row_format_of(task).check(rows, target_tokenizer)
    return _split(split, rows, source_tokenizer, target_tokenizer, data.max_length, Hashes())


def _checked_rows(data: Any, task: str | RowFormat, training_rows: Rows | None) -> dict[str, Rows]:
    """The readers of the splits that the data has, with their files checked."""
    present = {"train": True, "validation": _has_split(data, "validation"), "test": bool(data.test)}
    rows = {split: split_rows(data, split, task) for split in SPLITS if present[split]}
    if training_rows is not None:
        rows["train"], data.limit = training_rows, None
    for split_reader in rows.values():
        split_reader.check()
    return rows


def split_rows(data: Any, split: str, task: str | RowFormat) -> Rows:
    """The reader of one split: its files in the `data:` block, or that split of the corpus.

    An entry NAME:SPLIT, or NAME, among the files is a split of a known corpus, as in
    `test: [wmt-newstest:newstest2014]`. If the data has no such split, it is taken from the training rows: a
    cross-validation fold for testing, a held-out share for validation (the last lines of a language model's
    text).
    """
    row_format = row_format_of(task)
    data = _section("data", data, DATA_DEFAULTS)
    fold = None if data.test else _fold(data)
    share = data.hold_out if not _names_split(data, "validation") else None
    grouping: dict[str, Any] = {"classes": row_format.classes, "key": row_format.split_key}
    if split == "test" and fold is not None:
        return SplitRows(_rows_of(data, "train", row_format), *fold, **grouping)
    if split not in ("train", "validation") or (split == "validation" and share is None):
        return _rows_of(data, split, row_format)
    rows = _rows_of(data, "train", row_format)
    if fold is not None:
        rows = SplitRows(rows, *fold, inside=False, **grouping)
    if share is not None and not row_format.paired:  # a text is read in order, so its end is held out
        return RowRange(rows, 1 - share, 1.0) if split == "validation" else RowRange(rows, 0.0, 1 - share)
    return rows if share is None else SplitRows(rows, 0.0, share, inside=split == "validation", **grouping)


def _fold(data: Any) -> tuple[float, float] | None:
    """The test rows of a cross-validation fold, (start, stop) as shares of all rows; None without folds."""
    folds = data.folds or (corpora.find(data.corpus).folds if data.corpus is not None else None)
    if folds is None:
        if data.fold is not None:
            raise OptionError(
                f"data.fold is {data.fold} and data.folds, the number of folds, is not set; "
                "set it, for example to 10"
            )
        return None
    fold = data.fold or 1
    if not 1 <= fold <= folds or folds < 2:
        raise OptionError(
            f"data.fold is {fold} of {folds} folds; set data.folds to at least 2 and data.fold to one of them"
        )
    return (fold - 1) / folds, fold / folds


def _rows_of(data: Any, split: str, row_format: RowFormat) -> Rows:
    """The reader of a split that the `data:` block names, as files or as a corpus."""
    named = getattr(data, split) if split in SPLITS else ()
    if isinstance(named, (str, Path)):
        named = [named]
    if not named:
        if data.corpus is None:
            raise DataError(
                f"data names no corpus and no files for {split}; set data.corpus, or data.{split} to your "
                "files"
            )
        return row_format.finish(_corpus_rows(data.corpus, split, data, row_format), data)
    corpus_names = [
        item for item in named if isinstance(item, str) and item.partition(":")[0] in corpora.names()
    ]
    readers = [
        _corpus_rows(name, named_split or split, data, row_format)
        for name, _, named_split in (item.partition(":") for item in corpus_names)
    ]
    files = [item for item in named if item not in corpus_names]
    if files:
        readers.append(row_format.read(files, data.source, data.target))
    return row_format.finish(concatenate(readers), data)


def _corpus_rows(name: str, split: str, data: Any, row_format: RowFormat) -> Rows:
    corpus = corpora.find(name)
    if corpus.task not in ROW_FORMATS:
        raise DataError(f"{name} is for {corpus.task}, not for training; `regard data` lists other corpora")
    if corpus.task not in (row_format.task, *row_format.also_reads):
        raise DataError(
            f"{name} is for task {corpus.task}, not {row_format.task}; "
            f"set task: {corpus.task}, or choose another corpus"
        )
    version = data.version if name == data.corpus else None
    return corpus.rows(split, data.source, data.target, version)


def _names_split(data: Any, split: str) -> bool:
    return bool(getattr(data, split)) or (
        data.corpus is not None and split in corpora.find(data.corpus).roles
    )


def _has_split(data: Any, split: str) -> bool:
    return _names_split(data, split) or (split == "validation" and data.hold_out is not None)


def _test_names(data: Any) -> list[str]:
    """The names of the test splits, the usual one first."""
    if data.test or _fold(data) is not None:
        return ["test"]
    if data.corpus is None:
        return []
    corpus = corpora.find(data.corpus)
    first = corpus.roles.get("test")
    other_splits = [split for split in corpus.splits if split not in corpus.roles.values()]
    return [
        split
        for split in ([first] if first else []) + other_splits
        if corpus.has(split, data.source, data.target, data.version)
    ]


def _split(
    name: str, rows: Rows, source: Tokenizer | None, target: Tokenizer, max_length: int | None, hashes: Hashes
) -> Split:
    columns = list(zip(*rows, strict=True)) or [()] * (1 + rows.paired)  # sources and targets, or one text
    texts = [[_empty_if_unreadable(text) for text in column] for column in columns]
    if not texts[0] and isinstance(rows, SplitRows | RowRange):
        raise DataError(_empty_split_message(name, rows))
    prepared = prepare(
        rows,
        source,
        target,
        EncodingSettings(max_length=max_length),
        hashes=hashes,
        name=name,
        expected=len(texts[0]),
    )
    scores = rows.scores() if isinstance(rows, Csv) and rows.score is not None else []
    return Split(name, texts[0] if rows.paired else [], texts[-1], prepared, scores)


def _empty_split_message(name: str, rows: SplitRows | RowRange) -> str:
    """The message for an empty split of the training rows."""
    count = sum(len(block[0]) for block in rows.rows.blocks())
    share, key = rows.stop - rows.start, "data.hold_out" if name == "validation" else "1 / data.folds"
    classes = f" in {len(rows.bounds):,} classes" if isinstance(rows, SplitRows) and rows.classes else ""
    unit = "of each class " if classes else ""
    return (
        f"no row is left for {name}: {key} takes {share:g} {unit}of {rows.files[0]}, which has {count:,} "
        f"rows{classes}, and equal texts stay in one split; add rows, take a larger share, or name "
        f"data.{name} files"
    )


def _check_classes(train: Prepared, target: Tokenizer, rows: Rows) -> None:
    """Raise a DataError if a label has no training rows."""
    counts = np.bincount(train.arrays("target")[0], minlength=len(target))[EOS + 1 :]
    unused = [label for label, count in zip(target.entries, counts, strict=True) if not count]
    if unused:
        raise DataError(
            f"the label {unused[0]!r} has no examples in {rows.files[0]} ({train.report}); "
            "add some, raise data.max_length, or leave the label out"
        )


def _empty_if_unreadable(text: str) -> str:
    """Replace an unreadable text by an empty one, because scores need every row."""
    return "" if is_unreadable(text) else text


def _warnings(data: Any, train: Prepared, validation: Split | None, hashes: Hashes) -> list[str]:
    warnings = []
    if data.corpus is not None:
        corpus = corpora.find(data.corpus)
        warnings += [
            f"{corpus.folder / file} differs from the file in the manifest, so scores are not comparable; "
            f"see `regard data {for_shell(corpus.name)}`"
            for file in corpus.differing(hashes.known)
        ]
    if train.report.dropped():
        warnings.append(f"train: {train.report}")
    if validation is not None and validation.prepared.report.dropped():
        warnings.append(f"validation: {validation.prepared.report}")
    return warnings


def _section(name: str, block: Any, defaults: dict[str, Any]) -> SimpleNamespace:
    """A block of a recipe, an object or a dict, with its defaults."""
    values = block
    if not isinstance(block, dict):
        values = {key: getattr(block, key) for key in defaults if hasattr(block, key)}
    for key in values:
        if key not in defaults:
            raise OptionError(f"{name} has no setting {key!r}; it has {', '.join(defaults)}")
    return SimpleNamespace(**{**defaults, **values})
