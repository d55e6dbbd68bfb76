"""The sentences: the test set of the model's corpus, and longer ones, preprocessed like the training text.

A model with language tokens, as the bundled one, translates English into German: Multi30k and Europarl.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from regard.data import corpora
from regard.data.datasets import load_split, split_rows
from regard.data.tokenizer import UNK
from regard.evaluation.evaluate import data_section, default_split
from regard.evaluation.input_checks import looks_tokenised

WORDS = 30  # of a joined sentence
INTO_GERMAN = (("multi30k", "test_2016_flickr"), ("europarl-en-de", "test"))  # corpora and splits
PUNCTUATION = re.compile(r"([^\w\s])")


@dataclass(frozen=True)
class Text:
    """Sentences with their references; `sources` are token ids without EOS."""

    name: str
    sources: list[list[int]]
    references: list[str]
    tokenize: str  # sacreBLEU's tokenizer

    @property
    def longest(self) -> int:
        return max(map(len, self.sources)) + 1

    @property
    def limit(self) -> int:
        """Maximum length of all translations: 3/2 of the longest source + 20 tokens."""
        return self.longest * 3 // 2 + 20

    def middle(self, count: int) -> list[int]:
        """Indices of `count` sentences of about the median length."""
        order = sorted(range(len(self.sources)), key=lambda i: len(self.sources[i]))
        start = max(0, (len(order) - count) // 2)
        return order[start : start + count]

    def unknown(self) -> float:
        """The share of unknown tokens in the sources."""
        tokens = [token for sentence in self.sources for token in sentence]
        return tokens.count(UNK) / max(1, len(tokens))


def read(model: Any, count: int | None) -> list[Text]:
    """The model's test set, then Europarl's in its languages (or joined sentences), at most `count` each."""
    if model.source_tokenizer.languages:
        return [_into_german(model, *name, count) for name in INTO_GERMAN]
    data = data_section(model.card)
    split_name = default_split(data)
    split = load_split(
        {**data, "max_length": None}, split_name, model.source_tokenizer, model.target_tokenizer
    )
    name = f"{data.get('corpus') or 'own files'} {split_name}"
    pairs = list(zip(split.sources, split.targets, strict=True))
    tokenize = "none" if looks_tokenised(split.targets) else "13a"
    long_name, long_pairs = _europarl(data, pairs) or (f"{name}, joined to {WORDS} words", _joined(pairs))
    return [_text(model, name, pairs, tokenize, count), _text(model, long_name, long_pairs, tokenize, count)]


def _into_german(model: Any, corpus: str, split: str, count: int | None) -> Text:
    rows = corpora.find(corpus).rows(split, "en", "de")
    pairs = [(f">>de<< {source}", target) for source, target in rows]
    return _text(model, f"{corpus} {split}, English to German", pairs, "13a", count)


def _text(model: Any, name: str, pairs: list[tuple[str, str]], tokenize: str, count: int | None) -> Text:
    """At most `count` pairs, evenly spaced, as a Text."""
    pairs = [(s, t) for s, t in pairs if s.strip() and t.strip()]
    count = min(count or len(pairs), len(pairs))
    sample = [pairs[i * len(pairs) // count] for i in range(count)]
    sources = model.source_tokenizer.encode_batch([source for source, _ in sample])
    return Text(name, sources, [target for _, target in sample], tokenize)


def _europarl(data: dict[str, Any], own: list[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]] | None:
    """Name and pairs of Europarl's test set in the model's languages; None if it is not there."""
    languages = data.get("source"), data.get("target")
    for name in corpora.names():
        if not name.startswith("europarl") or not set(languages) <= set(corpora.find(name).languages):
            continue
        if not corpora.find(name).present() or data.get("corpus") == name:
            continue
        rows = split_rows(
            {"corpus": name, "source": languages[0], "target": languages[1]}, "test", "translate"
        )
        return f"{name} test", [(_preprocess(own, 0, s), _preprocess(own, 1, t)) for s, t in rows]
    return None


def _preprocess(own: list[tuple[str, str]], side: int, line: str) -> str:
    """Lower-case and tokenise a line if the model's own text is."""
    sample = [pair[side] for pair in own[:200]]
    if all(text == text.lower() for text in sample):
        line = line.lower()
    return " ".join(PUNCTUATION.sub(r" \1 ", line).split()) if looks_tokenised(sample) else line


def _joined(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join neighbouring sentences until they have about WORDS words."""
    ends, count = [0], 0
    for i, (source, _) in enumerate(pairs):
        count += len(source.split())
        if count >= WORDS:
            ends.append(i + 1)
            count = 0
    return [
        (" ".join(s for s, _ in pairs[a:b]), " ".join(t for _, t in pairs[a:b])) for a, b in pairwise(ends)
    ]
