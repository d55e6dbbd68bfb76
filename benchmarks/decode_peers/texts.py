"""The sentences: the test set of the model's corpus, and longer ones, preprocessed like the training text."""

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

WORDS = 30  # in a long sentence that is put together
APART = re.compile(r"([^\w\s])")


@dataclass(frozen=True)
class Text:
    """Sentences with their references; `sources` are token ids without the end mark."""

    name: str
    sources: list[list[int]]
    references: list[str]
    tokenize: str  # how BLEU is counted

    @property
    def longest(self) -> int:
        return max(map(len, self.sources)) + 1

    @property
    def limit(self) -> int:
        """How many tokens a translation may have: the longest sentence's 3/2 + 20, for all."""
        return self.longest * 3 // 2 + 20

    def middle(self, count: int) -> list[int]:
        """Select sentences of about the median length."""
        order = sorted(range(len(self.sources)), key=lambda i: len(self.sources[i]))
        start = max(0, (len(order) - count) // 2)
        return order[start : start + count]

    def unknown(self) -> float:
        tokens = [token for sentence in self.sources for token in sentence]
        return tokens.count(UNK) / max(1, len(tokens))


def read(model: Any, count: int | None) -> list[Text]:
    """The model's test set, then Europarl's in its languages (or joined sentences), at most `count` each."""
    data = data_section(model.card)
    part = default_split(data)
    split = load_split({**data, "max_length": None}, part, model.source_tokenizer, model.target_tokenizer)
    name = f"{data.get('corpus') or 'own files'} {part}"
    pairs = list(zip(split.sources, split.targets, strict=True))
    kind = "none" if looks_tokenised(split.targets) else "13a"
    long_name, long = _europarl(data, pairs) or (f"{name}, joined to {WORDS} words", _joined(pairs))
    return [_text(model, *each, kind, count) for each in ((name, pairs), (long_name, long))]


def _text(model: Any, name: str, pairs: list[tuple[str, str]], kind: str, count: int | None) -> Text:
    pairs = [(s, t) for s, t in pairs if s.strip() and t.strip()]
    count = min(count or len(pairs), len(pairs))
    picked = [pairs[i * len(pairs) // count] for i in range(count)]
    return Text(
        name, model.source_tokenizer.encode_batch([s for s, _ in picked]), [t for _, t in picked], kind
    )


def _europarl(data: dict[str, Any], own: list[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]] | None:
    languages = data.get("source"), data.get("target")
    for name in corpora.names():
        if not name.startswith("europarl") or not set(languages) <= set(corpora.find(name).languages):
            continue
        if not corpora.find(name).present() or data.get("corpus") == name:
            continue
        rows = split_rows(
            {"corpus": name, "source": languages[0], "target": languages[1]}, "test", "translate"
        )
        return f"{name} test", [(_like(own, 0, s), _like(own, 1, t)) for s, t in rows]
    return None


def _like(own: list[tuple[str, str]], side: int, line: str) -> str:
    """A line preprocessed like the model's training text: lower-cased and tokenised."""
    few = [pair[side] for pair in own[:200]]
    if all(text == text.lower() for text in few):
        line = line.lower()
    return " ".join(APART.sub(r" \1 ", line).split()) if looks_tokenised(few) else line


def _joined(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join neighbouring sentences until they have about WORDS words."""
    ends, words = [0], 0
    for i, (source, _) in enumerate(pairs):
        words += len(source.split())
        if words >= WORDS:
            ends.append(i + 1)
            words = 0
    return [
        (" ".join(s for s, _ in pairs[a:b]), " ".join(t for _, t in pairs[a:b])) for a, b in pairwise(ends)
    ]
