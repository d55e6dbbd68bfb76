"""Small models of every encoder and decoder, and batches."""

import torch
from torch.nn.utils.rnn import pad_sequence

from regard.data.batch import Batch
from regard.data.tokenizer import BOS, EOS, PAD
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


def make(encoder=None, decoder=None, *, dim=32, vocab=VOCAB, **options):
    """A model in float64, without dropout."""
    section = AutoregressiveOptions.model_validate(
        {"dim": dim, "encoder": encoder, "decoder": decoder or {}, "dropout": 0.0, **options}
    )
    return build(section.model_dump(), vocab if encoder is not None else None, vocab).double()


def batch_of(sources, targets):
    """A batch of token ids as the trainer makes it: source EOS, BOS target EOS, padded."""
    source = [torch.tensor([*row, EOS]) for row in sources]
    target = [torch.tensor([BOS, *row, EOS]) for row in targets]
    return Batch(
        target=pad_sequence(target, batch_first=True, padding_value=PAD),
        target_lengths=torch.tensor([len(row) - 1 for row in target]),
        rows=torch.arange(len(target)),
        source=pad_sequence(source, batch_first=True, padding_value=PAD),
        source_lengths=torch.tensor([len(row) for row in source]),
    )


def make_batch():
    """Three pairs of random tokens, of unequal lengths."""
    source = torch.randint(4, VOCAB, (3, 7))
    target = torch.randint(4, VOCAB, (3, 7))
    target[:, 0] = BOS
    for i in range(3):
        source[i, SOURCE_LENGTHS[i] :] = PAD
        target[i, TARGET_LENGTHS[i]] = EOS
        target[i, TARGET_LENGTHS[i] + 1 :] = PAD
    return Batch(
        target=target,
        target_lengths=TARGET_LENGTHS,
        rows=torch.arange(3),
        source=source,
        source_lengths=SOURCE_LENGTHS,
    )
