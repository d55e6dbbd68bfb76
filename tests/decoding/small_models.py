"""Small models with random weights and a trained tokenizer."""

from regard.data.tokenizer import Tokenizer
from tests.models.small import DECODERS, ENCODERS, make

LINES = [
    "the cat sat on the mat",
    "a dog ran to the house",
    "die Katze saß — süß 🐱",
    "der Hund läuft zum Haus",
    "naïve façade 日本",
]


def translator(decoder="transformer", kind="bpe", **options):
    tokenizer = Tokenizer.train(LINES * 3, kind, {"byte-bpe": 300, "word": 30}.get(kind, 90))
    model = make(ENCODERS["transformer"], DECODERS[decoder], vocab=len(tokenizer), **options).eval()
    model.source_tokenizer = model.target_tokenizer = tokenizer
    return model


def language_model(decoder="transformer", kind="bpe", mode=None, **options):
    tokenizer = Tokenizer.train(LINES * 3, kind, {"byte-bpe": 300, "word": 30}.get(kind, 90))
    model = make(None, DECODERS[decoder] | options, vocab=len(tokenizer)).eval()
    model.target_tokenizer, model.card = tokenizer, {"recipe": {"batch": {"mode": mode}}}
    return model
