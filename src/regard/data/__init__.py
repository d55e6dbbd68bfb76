"""Corpora, tokenizers and batches: from text files to the tensors that a model is trained on.

`load_corpus` reads the files of the `data:` block of a recipe, trains or loads the tokenizers of the
`tokenizer:` block, and encodes everything once into a cache:

    corpus = load_corpus(data, tokenizer, task="translate", seed=1)
    batches = Batches(corpus.train, tokens=4096, seed=1)
    batch = next(batches)

`data` and `tokenizer` are objects or dicts with keys of the blocks; missing keys have the defaults of
datasets.py. A `Corpus` has the prepared training rows (`train`), the validation and test splits
(`validation`, `test(name)`), both tokenizers, the SHA-256 of every file (`checksums`) and `warnings` about
dropped rows. A `Split` has its texts and its prepared rows. `load_split` reads one split with given
tokenizers, for evaluation. `Windows` batches a text for language models.

Corpora known by name are in manifest.json; `get("sst2")` downloads one, `add_corpora` adds your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.data import corpora
    from regard.data.batch import Batch
    from regard.data.batch_iterator import Batches
    from regard.data.bpe_dropout import BpeDropout
    from regard.data.conll_reader import Parser
    from regard.data.corpora import add_corpora, remove_corpora
    from regard.data.datasets import load_corpus
    from regard.data.download import get
    from regard.data.language_guess import guess_language
    from regard.data.tag_schemes import BIO, IO, IOBES, Span, spans
    from regard.data.tokenizer import Tokenizer
    from regard.data.windows import Windows
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
    "Windows",
    "add_corpora",
    "corpora",
    "get",
    "guess_language",
    "load_corpus",
    "read_vectors",
    "remove_corpora",
    "spans",
]
__getattr__ = exported(
    __name__,
    {
        "Batch": "batch",
        "Tokenizer": "tokenizer",
        "BIO": "tag_schemes",
        "IO": "tag_schemes",
        "IOBES": "tag_schemes",
        "Batches": "batch_iterator",
        "BpeDropout": "bpe_dropout",
        "Parser": "conll_reader",
        "Span": "tag_schemes",
        "Windows": "windows",
        "add_corpora": "corpora",
        "get": "download",
        "guess_language": "language_guess",
        "load_corpus": "datasets",
        "read_vectors": "word_vectors",
        "remove_corpora": "corpora",
        "spans": "tag_schemes",
    },
    ["corpora"],
)
