"""A tiny translator of several target languages, with random weights, in a folder."""

import torch

from regard.data.tokenizer import EOS, Tokenizer
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.models.folder import save

LANGUAGES = ("de", "en", "fr")
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,!?äöüßéèà0123456789"
RECURRENT = {"kind": "recurrent", "cell": "gru"}
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 1, "inner": 32}
CARD = """---
about: a tiny translator with random weights
task: translate
languages: [de, en, fr]
into: [de, en, fr]
license: CC0
scores: {BLEU of nothing: 0.1}
default: true
---

# Tiny
Nothing to see.
"""


def multilingual(folder, *, layer=RECURRENT, languages=LANGUAGES, max_length=40, seed=2, precision="float32"):
    """Write the folder; the output depends on the language token and on every character."""
    tokenizer = Tokenizer.train([ALPHABET], "character", 100, languages=languages)
    decoder = layer | ({"attention": "bilinear"} if layer["kind"] == "recurrent" else {})
    config = AutoregressiveOptions.model_validate(
        {"dim": 16, "encoder": layer, "decoder": decoder, "dropout": 0.0}
    ).model_dump()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(config, len(tokenizer), len(tokenizer))
        for name, p in model.named_parameters():
            if "norm" not in name:
                p.data.copy_(torch.randn_like(p))
        model.output.projection.weight.data[EOS] *= 2  # outputs end after a few tokens
    cost = {"steps": 7, "tokens": 3_000_000, "flops": 1_500_000_000, "seconds": 90.0, "device": "nothing"}
    card = {"recipe": {"seed": seed, "data": {"max_length": max_length}}, **cost}
    save(folder, model, config, tokenizer, tokenizer, card, precision)
    return folder


def catalogued(folder, name="tiny", card=CARD, **options):
    """Write a translator with a card into a folder of models; return the folder of the translator."""
    multilingual(folder / name, **options)
    (folder / name / "card.md").write_text(card, encoding="utf-8")
    return folder / name
