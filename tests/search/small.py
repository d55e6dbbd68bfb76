"""A tiny embedder for tests, with a tokenizer trained on a few sentences."""

import torch

from regard.data.tokenizer import Tokenizer
from regard.models.build import build
from regard.models.embedder import EmbedderOptions

TEXTS = [
    "the cat sat on the mat",
    "a dog barked at the moon",
    "heat flows through a thin plate",
    "the wing stalls at low speed",
    "cats like warm mats",
    "the shock wave leaves the body",
    "boundary layers grow along a plate",
    "a kitten slept on the rug",
]


def embedder(seed=1, dim=32, **changes):
    tokenizer = Tokenizer.train(TEXTS, "bpe", 200)
    settings = {
        "dim": dim,
        "encoder": {"kind": "transformer", "layers": 2, "heads": 4, "inner": 32},
        "dropout": 0.1,
        **changes,
    }
    config = EmbedderOptions.model_validate(settings).model_dump()
    torch.manual_seed(seed)
    model = build(config, None, len(tokenizer))
    model.config, model.card = config, {}
    model.source_tokenizer = model.target_tokenizer = tokenizer
    return model.eval()
