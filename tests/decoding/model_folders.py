"""Folders of tiny models with random weights."""

import torch

from regard.data.tokenizer import EOS, Tokenizer
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.models.classifier import ClassifierOptions
from regard.models.folder import save
from regard.models.tagger import TaggerOptions

# With large weights a recurrence is chaotic: its output depends on every input token.
ENCODER = {"kind": "recurrent", "cell": "gru"}
DECODER = {"kind": "recurrent", "cell": "gru", "attention": "bilinear"}
TAGGED = [
    ("ada lovelace met Babbage", "B-PER I-PER O B-PER"),
    ("London", "B-LOC"),
    ("the Tower of London in London is in London", "O B-LOC I-LOC I-LOC O B-LOC O O B-LOC"),
    ("nothing here", "O O"),
]
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,!?0123456789"


def translator(folder, *, seed=2, max_length=40):
    """A character-level translator; its card gives `max_length` as the longest training sentence."""
    return _folder(folder, ENCODER, seed, {"recipe": {"data": {"max_length": max_length}}})


def language_model(folder, *, seed=1):
    return _folder(folder, None, seed, {})


def classifier(folder, *, encoder="embedding", pooling="attention", labels=("bad", "fine", "good"), seed=3):
    """A character-level classifier with random weights."""
    source, target = Tokenizer.train([ALPHABET], "character", 100), Tokenizer.labels(list(labels))
    encoder = {"kind": encoder} if isinstance(encoder, str) else encoder
    config = ClassifierOptions.model_validate(
        {"dim": 16, "encoder": encoder, "pooling": pooling, "dropout": 0.0}
    ).model_dump()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(config, len(source), len(target))
        model.head.labels.weight.data.mul_(4)  # confident about some texts, uncertain about others
    save(folder, model, config, source, target, {})
    return folder


def tagger(folder, *, seed=5):
    """A tagger with the words and tags of four sentences, and random weights."""
    source = Tokenizer.train([text for text, _ in TAGGED], "word", 100, lowercase=True)
    target = Tokenizer.train([tags for _, tags in TAGGED], "word", 100)
    config = TaggerOptions.model_validate(
        {"dim": 20, "encoder": {"kind": "recurrent", "cell": "lstm"}}
    ).model_dump()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(config, len(source), len(target))
    save(folder, model, config, source, target, {"name": "tagger"})
    return folder


def _folder(folder, encoder, seed, card):
    tokenizer = Tokenizer.train([ALPHABET], "character", 100)
    config = AutoregressiveOptions.model_validate(
        {
            "dim": 16,
            "encoder": encoder,
            "decoder": DECODER if encoder else DECODER | {"attention": "none"},
            "dropout": 0.0,
        }
    ).model_dump()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(config, len(tokenizer) if encoder else None, len(tokenizer))
        for p in model.parameters():
            p.data.copy_(torch.randn_like(p))
        model.output.projection.weight.data[EOS] *= 2  # outputs end after a few tokens
    save(folder, model, config, tokenizer if encoder else None, tokenizer, card)
    return folder
