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
from regard.data.readers import ConcatRows, Rows
from regard.data.row_formats import ROW_FORMATS, RowFormat, row_format_of
from regard.data.splits import RowRange, SplitRows
from regard.data.tokenizer import EOS, Tokenizer
from regard.data.train_tokenizers import Given, given_tokenizers, tokenizers_for
from regard.errors import DataError, OptionError

SPLITS = ("train", "validation", "test")
DATA = {
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
}
TOKENIZER = {
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
    """A validation or test split: all rows as text, and those within max_length as tokens; sources is empty
    for a text.

    Pairs of an embedder may have `scores`, how alike people found them.
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
        """A test split, by default the usual one of the corpus."""
        wanted = name or next(iter(self.test_names), "test")
        return load_split(self._data, wanted, self.source_tokenizer, self.target_tokenizer, self._task)


def load_corpus(
    data: Any,
    tokenizer: Any,
    task: str | RowFormat = "translate",
    seed: int = 1,
    given: Given | None = None,
    training_rows: Rows | None = None,
) -> Corpus:
    """Read the files, train the tokenizers and encode, or take it from the cache. All files are checked
    first.

    `data` and `tokenizer` are objects with the attributes of the recipe's sections (DATA and TOKENIZER name
    them and the values of absent ones). `seed` decides what BPE-dropout draws. `given` are the source and
    target tokenizers of a pretrained model, which are used instead; labels and tags come from the data, in
    the order of the target tokenizer if that has the same ones. `training_rows` are used
    instead of those of `data`, all of them.
    """
    data, wanted = _section("data", data, DATA), _section("tokenizer", tokenizer, TOKENIZER)
    form = row_format_of(task)
    rows = {
        split: split_rows(data, split, task)
        for split in ("train", "validation")
        if split == "train" or _has(data, split)
    }
    if training_rows is not None:
        rows["train"], data.limit = training_rows, None
    if data.test:
        rows["test"] = split_rows(data, "test", task)
    for each in rows.values():
        each.check()
    settings = EncodingSettings(
        max_length=data.max_length,
        max_ratio=data.max_ratio,
        limit=data.limit,
        dropout=wanted.dropout,
        variants=wanted.variants,
        seed=seed,
    )
    hashes = Hashes()
    if given is not None:
        source, target, expected = *given_tokenizers(given, rows["train"], form.labels), None
    else:
        source, target, expected = tokenizers_for(wanted, rows["train"], settings.limit, hashes, form.labels)
    for each in rows.values():
        form.check(each, target)
    train = prepare(rows["train"], source, target, settings, hashes=hashes, what="train", expected=expected)
    if form.classes and data.limit is None:
        _every_class(train, target, rows["train"])
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
        + form.scarce(train, validation and validation.prepared, target),
        notes=list(dict.fromkeys(note for each in rows.values() for note in each.notes())),
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
    data = _section("data", data, DATA)
    rows = split_rows(data, split, task)
    row_format_of(task).check(rows, target_tokenizer)
    return _split(split, rows, source_tokenizer, target_tokenizer, data.max_length, Hashes())


def split_rows(data: Any, split: str, task: str | RowFormat) -> Rows:
    """The reader of one split: its files in the `data:` block, or that split of the corpus.

    Among files an entry NAME:PART, or NAME, means that part of a known corpus: test:
    [wmt-newstest:newstest2014]. Where the data have no such part, one is cut off the training rows: a fold to
    test on, a share held out to validate on (of a language model's text the last lines).
    """
    form = row_format_of(task)
    data = _section("data", data, DATA)
    fold = None if data.test else _fold(data)
    share = data.hold_out if not _named(data, "validation") else None
    if split == "test" and fold is not None:
        return SplitRows(_named_rows(data, "train", form), *fold, classes=form.classes)
    if split not in ("train", "validation") or (split == "validation" and share is None):
        return _named_rows(data, split, form)
    rows = _named_rows(data, "train", form)
    if fold is not None:
        rows = SplitRows(rows, *fold, inside=False, classes=form.classes)
    if share is not None and not form.paired:  # a text is read in order, so its end is held out
        return RowRange(rows, 1 - share, 1.0) if split == "validation" else RowRange(rows, 0.0, 1 - share)
    return (
        rows
        if share is None
        else SplitRows(rows, 0.0, share, inside=split == "validation", classes=form.classes)
    )


def _fold(data: Any) -> tuple[float, float] | None:
    """The range of rows that the fold of a cross-validation tests on; None without folds."""
    folds = data.folds or (corpora.find(data.corpus).folds if data.corpus is not None else None)
    if folds is None:
        if data.fold is not None:
            raise OptionError(
                f"data.fold is {data.fold} and data.folds does not say of how many; set data.folds, as 10"
            )
        return None
    fold = data.fold or 1
    if not 1 <= fold <= folds or folds < 2:
        raise OptionError(
            f"data.fold is {fold} and there are {folds} folds; take one of 1 to {folds}, of at least 2"
        )
    return (fold - 1) / folds, fold / folds


def _named_rows(data: Any, split: str, form: RowFormat) -> Rows:
    """The rows that the `data:` block itself names for a split."""
    named = getattr(data, split) if split in SPLITS else ()
    if isinstance(named, (str, Path)):
        named = [named]
    if not named:
        if data.corpus is None:
            raise DataError(
                f"data names no corpus and no files for {split}; set data.corpus, or data.{split} to your "
                "files"
            )
        return form.finish(_corpus_rows(data.corpus, split, data, form), data)
    known = [item for item in named if isinstance(item, str) and item.partition(":")[0] in corpora.names()]
    parts = [
        _corpus_rows(name, part or split, data, form)
        for name, _, part in (item.partition(":") for item in known)
    ]
    files = [item for item in named if item not in known]
    if files:
        parts.append(form.read(files, data.source, data.target))
    return form.finish(parts[0] if len(parts) == 1 else ConcatRows(tuple(parts)), data)


def _corpus_rows(name: str, split: str, data: Any, form: RowFormat) -> Rows:
    found = corpora.find(name)
    if found.task not in ROW_FORMATS:
        raise DataError(f"{name} is for {found.task}, not for training; `regard data` lists other corpora")
    if found.task not in (form.task, *form.also_reads):
        raise DataError(
            f"{name} is for task {found.task}, not {form.task}; "
            f"set task: {found.task}, or choose another corpus"
        )
    version = data.version if name == data.corpus else None
    return found.rows(split, data.source, data.target, version)


def _named(data: Any, split: str) -> bool:
    return bool(getattr(data, split)) or (
        data.corpus is not None and split in corpora.find(data.corpus).roles
    )


def _has(data: Any, split: str) -> bool:
    return _named(data, split) or (split == "validation" and data.hold_out is not None)


def _test_names(data: Any) -> list[str]:
    """The names of the test splits, the usual one first."""
    if data.test or _fold(data) is not None:
        return ["test"]
    if data.corpus is None:
        return []
    found = corpora.find(data.corpus)
    first = found.roles.get("test")
    others = [each for each in found.splits if each not in found.roles.values()]
    return [
        each
        for each in ([first] if first else []) + others
        if found.has(each, data.source, data.target, data.version)
    ]


def _split(
    name: str, rows: Rows, source: Tokenizer | None, target: Tokenizer, max_length: int | None, hashes: Hashes
) -> Split:
    texts = [[_readable(text) for text in column] for column in zip(*rows, strict=True)] or [[]] * (
        1 + rows.paired
    )
    if not texts[0] and isinstance(rows, SplitRows | RowRange):
        raise DataError(_nothing_cut(name, rows))
    prepared = prepare(
        rows,
        source,
        target,
        EncodingSettings(max_length=max_length),
        hashes=hashes,
        what=name,
        expected=len(texts[0]),
    )
    scores = rows.scores() if isinstance(rows, Csv) and rows.score is not None else []
    return Split(name, list(texts[0]) if rows.paired else [], list(texts[-1]), prepared, scores)


def _nothing_cut(name: str, rows: SplitRows | RowRange) -> str:
    """The message for an empty split of the training rows."""
    count = sum(len(block[0]) for block in rows.rows.blocks())
    share, key = rows.stop - rows.start, "data.hold_out" if name == "validation" else "1 / data.folds"
    classes = f" in {len(rows.bounds):,} classes" if isinstance(rows, SplitRows) and rows.classes else ""
    each = "of each class " if classes else ""
    return (
        f"no row is left for {name}: {key} takes {share:g} {each}of {rows.files[0]}, which has {count:,} "
        f"rows{classes}, "
        f"equal texts together; add rows, take a larger share, or name data.{name} files"
    )


def _every_class(train: Prepared, target: Tokenizer, rows: Rows) -> None:
    """Raise a DataError if a label has no training rows left."""
    counts = np.bincount(train.arrays("target")[0], minlength=len(target))[EOS + 1 :]
    without = [label for label, count in zip(target.entries, counts, strict=True) if not count]
    if without:
        raise DataError(
            f"the label {without[0]!r} has no examples in {rows.files[0]} ({train.report}); "
            "add some, raise data.max_length, or leave the label out"
        )


def _readable(text: str) -> str:
    """Scores need every row: an unreadable one counts as empty."""
    return "" if text[:1] == "\udcff" else text


def _warnings(data: Any, train: Prepared, validation: Split | None, hashes: Hashes) -> list[str]:
    found = []
    if data.corpus is not None:
        known = corpora.find(data.corpus)
        found += [
            f"{known.folder / file} is not the file of the manifest, so scores do not compare; "
            f"see `regard data {known.name}`"
            for file in known.differing(hashes.known)
        ]
    if train.report.dropped():
        found.append(f"train: {train.report}")
    if validation is not None and (validation.prepared.report.dropped()):
        found.append(f"validation: {validation.prepared.report}")
    return found


def _section(name: str, given: Any, defaults: dict[str, Any]) -> SimpleNamespace:
    """A block of a recipe, an object or a dict, with its defaults."""
    found = (
        given
        if isinstance(given, dict)
        else {key: getattr(given, key) for key in defaults if hasattr(given, key)}
    )
    for key in found:
        if key not in defaults:
            raise OptionError(f"{name} has no setting {key!r}; it has {', '.join(defaults)}")
    return SimpleNamespace(**{**defaults, **found})
