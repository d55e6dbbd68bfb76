"""Small models of every encoder and decoder, and a batch for them."""

import torch

from regard.data.batch import Batch
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build

VOCAB = 20
SOURCE_LENGTHS, TARGET_LENGTHS = torch.tensor([7, 5, 2]), torch.tensor([6, 3, 4])

LAYER = {"layers": 1, "heads": 4, "inner": 64}
ENCODERS = {
    "rnn": {"kind": "recurrent", "cell": "rnn", "bidirectional": False},
    "gru": {"kind": "recurrent", "cell": "gru"},
    "lstm": {"kind": "recurrent", "cell": "lstm", "layers": 2},
    "convolutional": {"kind": "convolutional", "layers": 2},
    "transformer": {"kind": "transformer", **LAYER},
    "attention on gru": {
        "kind": "stacked",
        "below": {"kind": "recurrent"},
        "above": {**LAYER, "position": "none"},
    },
    "attention on convolution": {
        "kind": "stacked",
        "below": {"kind": "convolutional", "layers": 1},
        "above": {**LAYER, "position": "none"},
    },
}
DECODERS = {
    "none": {"kind": "recurrent", "attention": "none"},
    "dot": {"kind": "recurrent", "attention": "dot", "cell": "lstm"},
    "projected": {"kind": "recurrent", "attention": "projected"},
    "bilinear": {"kind": "recurrent", "attention": "bilinear", "initial_state": "mean"},
    "input feeding": {"kind": "recurrent", "attention": "bilinear", "input_feeding": True},
    "bahdanau": {"kind": "bahdanau"},
    "transformer": {"kind": "transformer", **LAYER},
}


def make(encoder=None, decoder=None, *, dim=32, vocab=VOCAB, **rest):
    """A model in float64, without dropout."""
    section = AutoregressiveOptions.model_validate(
        {"dim": dim, "encoder": encoder, "decoder": decoder or {}, "dropout": 0.0, **rest}
    )
    return build(section.model_dump(), vocab if encoder is not None else None, vocab).double()


def make_batch():
    """Three pairs of unequal length; 0 is padding, 2 is BOS, 3 is EOS."""
    source = torch.randint(4, VOCAB, (3, 7))
    target = torch.randint(4, VOCAB, (3, 7))
    target[:, 0] = 2
    for i in range(3):
        source[i, SOURCE_LENGTHS[i] :] = 0
        target[i, TARGET_LENGTHS[i]] = 3
        target[i, TARGET_LENGTHS[i] + 1 :] = 0
    return Batch(
        target=target,
        target_lengths=TARGET_LENGTHS,
        rows=torch.arange(3),
        source=source,
        source_lengths=SOURCE_LENGTHS,
    )
