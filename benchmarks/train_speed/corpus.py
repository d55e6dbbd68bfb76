"""The sentences: Multi30k English-German if it is there, otherwise the sample included in the package."""

from __future__ import annotations

from regard.data import corpora

SentencePairs = list[tuple[str, str]]


def read_corpus() -> tuple[str, SentencePairs, SentencePairs]:
    """The name of the corpus, its training pairs and its validation pairs."""
    name = "multi30k" if corpora.find("multi30k").present() else "tatoeba-sample"
    corpus = corpora.find(name)
    train, validation = (
        [(row[0], row[1]) for row in corpus.rows(corpus.roles[split], "en", "de")]
        for split in ("train", "validation")
    )
    title = "Multi30k en-de" if name == "multi30k" else "the included Tatoeba sample"
    return title, train, validation
