"""Whether a BERT-like sentence encoder that was imported makes the vectors that transformers makes from the same folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data import corpora
from regard.interchange.export.check import UnequalError
from regard.models.bert import read
from regard.models.embedder import Embedder
from regard.pipelines.embed import Vectors, embed

NEAR = 1e-5


@dataclass(frozen=True)
class Compared:
    """How vectors compare with those that transformers computes from the same folder."""

    sentences: int
    worst: float

    def __str__(self) -> str:
        return f"vectors of {self.sentences} sample sentences differ by at most {self.worst:.1e}"


def checked(folder: Path) -> tuple[Embedder, Compared]:
    """The embedder, after a look whether it makes the same vectors."""
    model = read(folder)
    texts = [
        text for pair in islice(corpora.find("tatoeba-sample").rows("test", "en", "de"), 25) for text in pair
    ]
    found = Compared(len(texts), float(np.abs(embed(list(texts), model) - reference(folder, texts)).max()))
    if not found.worst < NEAR:
        raise UnequalError(
            f"the model in regard is not equal to that of {folder} ({found}); nothing was kept, please report this"
        )
    return model, found


def reference(folder: Path, texts: Sequence[str]) -> Vectors:
    """Vectors by transformers: BertModel, mean over real tokens, length 1."""
    from transformers import AutoTokenizer, BertModel

    longest = read(folder).longest
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    theirs: Any = BertModel.from_pretrained(str(folder), dtype=torch.float32, use_safetensors=True).eval()
    given = tokenizer(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.inference_mode():
        states, real = theirs(**given).last_hidden_state, given["attention_mask"][..., None]
        return torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1).numpy()
