"""Texts for lessons that train a small model, from the sample of Tatoeba sentences in the package."""

from __future__ import annotations

import lzma
import random
import re
from pathlib import Path

import torch
from torch import Tensor

from regard.arguments import one_of

ALPHABET = "abcdefghijklmnopqrstuvwxyz "


def pairs() -> list[tuple[str, str]]:
    """The English sentences of the sample with their German translations, in the order of the file."""
    path = Path(__file__).parents[1] / "data" / "samples" / "tatoeba-sample.tsv.xz"
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return [(english, german) for english, german, *_ in rows]


def sentences(language: str = "en") -> list[str]:
    """The English ("en") or German ("de") sentences of the sample, in a fixed random order."""
    one_of("language", language, ("en", "de"))
    unique = sorted({pair[language == "de"] for pair in pairs()})
    random.Random(0).shuffle(unique)
    return unique


def letters(language: str = "en") -> Tensor:
    """All sentences as one tensor of ids: a … z are 0 … 25, everything between words is one space, 26."""
    text = re.sub("[^a-z]+", " ", " ".join(sentences(language)).lower())
    return torch.tensor([ALPHABET.index(letter) for letter in text])
