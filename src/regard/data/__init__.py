"""Corpora, tokenisers and batches: from text files to the tensors that a model is trained on.

The entry that a trainer calls (`regard.data.load_corpus`):

    load_corpus(data, tokenizer, task="translate", seed=1) -> Corpus

`data` and `tokenizer` are the sections of a recipe: any objects with (some of) these attributes, absent ones having the defaults

    data:       corpus=None source=None target=None version=None train=[] validation=[] test=[]
                max_length=256 max_ratio=None limit=None fold=None folds=None hold_out=None
    tokenizer:  kind="bpe" size=8000 joint=True lowercase=False dropout=0.0 variants=8 load=None min_count=1

and `task` is one of `forms.FORMS`: translate, language, classify, tag, embed. A Corpus has

    .train: Prepared                  .validation: Split | None         .test_names: list[str]    .test(name) -> Split
    .source_tokenizer: Tokenizer | None (None for language)             .target_tokenizer: Tokenizer (the same object when joint)
    .checksums: dict[str, str]        SHA-256 of every file read so far, by name
    .warnings: list[str]              sentences about files that differ from the manifest, rows that were dropped

and a Split has .name, .sources: list[str] (empty for language), .targets: list[str], .prepared: Prepared (plain encoding; rows
that are empty or over max_length are in the texts and not among the prepared rows). `load.load_split(data, split, source_tokenizer,
target_tokenizer, task)` gives one Split for tokenizers that exist already, as evaluation needs it.

    Batches(prepared, tokens=4096, seed=1, rank=0, world=1, max_sentences=None, shuffle=True)       data/batches.py
    Windows(prepared, length=256, sentences=16, seed=1, mode="stream" | "crops", rank=0, world=1)   for language models
    both: next(batches) -> Batch, .epoch, .per_epoch(), .padding, .state(), .restore(state), .once() -> one pass, nothing dropped

Corpora known by name are listed in `manifest.json`; `regard.data.get("sst2")` fetches one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.data import corpora
    from regard.data.batches import Batch, Batches
    from regard.data.bpe_dropout import BpeDropout
    from regard.data.conll import Parser
    from regard.data.datasets import load_corpus
    from regard.data.download import get
    from regard.data.tag_schemes import BIO, IO, IOBES, Span, spans
    from regard.data.tokenizer import Tokenizer
    from regard.data.word_vectors import read_vectors

__all__ = [
    "BIO",
    "IO",
    "IOBES",
    "Batch",
    "Batches",
    "BpeDropout",
    "Parser",
    "Span",
    "Tokenizer",
    "corpora",
    "get",
    "load_corpus",
    "read_vectors",
    "spans",
]
__getattr__ = exported(
    __name__,
    {
        "Batch": "batches",
        "Tokenizer": "tokenizer",
        "BIO": "tag_schemes",
        "IO": "tag_schemes",
        "IOBES": "tag_schemes",
        "Batches": "batches",
        "BpeDropout": "bpe_dropout",
        "Parser": "conll",
        "Span": "tag_schemes",
        "get": "download",
        "load_corpus": "datasets",
        "read_vectors": "word_vectors",
        "spans": "tag_schemes",
    },
    ["corpora"],
)
