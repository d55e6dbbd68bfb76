"""Import a BERT-like sentence encoder and compare its vectors with those of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data import corpora
from regard.interchange.export.compare import UnequalError
from regard.interchange.importer import IMPORTERS, VectorComparison
from regard.models.bert import read
from regard.models.embedder import Embedder
from regard.pipelines.embed import Vectors, embed

MAX_DIFFERENCE = 1e-5


@IMPORTERS.add("bert")
def import_bert(folder: Path) -> tuple[Embedder, VectorComparison]:
    """Return the embedder and how its vectors compare with those of transformers."""
    model = read(folder)
    pairs = islice(corpora.find("tatoeba-sample").rows("test", "en", "de"), 25)
    texts = [text for pair in pairs for text in pair]
    difference = np.abs(embed(texts, model) - transformers_vectors(folder, texts)).max()
    comparison = VectorComparison(len(texts), float(difference))
    if not comparison.max_difference < MAX_DIFFERENCE:
        raise UnequalError(
            f"the model in regard does not give the vectors of {folder} ({comparison}); "
            "nothing was kept, please report this"
        )
    return model, comparison


def transformers_vectors(folder: Path, texts: Sequence[str]) -> Vectors:
    """Embed texts with transformers: BertModel, mean over the tokens, normalised to length 1."""
    from transformers import AutoTokenizer, BertModel

    longest = read(folder).longest
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model: Any = BertModel.from_pretrained(str(folder), dtype=torch.float32, use_safetensors=True).eval()
    inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.inference_mode():
        states, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1).numpy()
