"""End to end: eight pairs of encoder and decoder learn to copy and to reverse strings.

All have attention; without it, 2000 steps are not enough to pass a string through one vector.
Files, tokenizer, preparation, training, model folder and search are the real ones.
"""

import random

import pytest

import regard

LETTERS = "abcdefghijkl"
LAYER = {"layers": 2, "heads": 4, "inner": 128, "norm": "pre"}
PAIRS = {
    "GRU, dot": ({"kind": "recurrent"}, {"kind": "recurrent", "attention": "dot"}),
    "GRU, projected": ({"kind": "recurrent"}, {"kind": "recurrent", "attention": "projected"}),
    "LSTM, bilinear, input feeding": (
        {"kind": "recurrent", "cell": "lstm"},
        {"kind": "recurrent", "cell": "lstm", "attention": "bilinear", "input_feeding": True},
    ),
    "RNN, bilinear": ({"kind": "recurrent"}, {"kind": "recurrent", "cell": "rnn", "attention": "bilinear"}),
    "GRU, Bahdanau": ({"kind": "recurrent"}, {"kind": "bahdanau"}),
    "Transformer": ({"kind": "transformer", **LAYER}, {"kind": "transformer", **LAYER}),
    "convolution, Transformer": ({"kind": "convolutional", "layers": 3}, {"kind": "transformer", **LAYER}),
    "attention on GRU, Bahdanau": (
        {"kind": "stacked", "below": {"kind": "recurrent"}, "above": {**LAYER, "position": "none"}},
        {"kind": "bahdanau"},
    ),
}


def strings(n, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(LETTERS, k=draw.randint(2, 8))) for _ in range(n)]


def write(folder, name, lines, reverse):
    (folder / f"{name}.in").write_text("\n".join(lines) + "\n", encoding="utf-8")
    targets = [" ".join(reversed(line.split())) if reverse else line for line in lines]
    (folder / f"{name}.out").write_text("\n".join(targets) + "\n", encoding="utf-8")
    return [[str(folder / f"{name}.in"), str(folder / f"{name}.out")]]


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True], ids=["copy", "reverse"])
@pytest.mark.parametrize("pair", PAIRS)
def test_99_percent_of_unseen_strings_are_correct(pair, reverse, tmp_path):
    train = strings(20000, 1)
    known = set(train)
    unseen = [s for s in strings(2000, 2) if s not in known][:500]
    encoder, decoder = PAIRS[pair]
    recipe = {
        "name": "strings",
        "data": {
            "train": write(tmp_path, "train", train, reverse),
            "validation": write(tmp_path, "validation", strings(200, 3), reverse),
        },
        "tokenizer": {"kind": "word", "size": 20},
        "model": {"dim": 64, "dropout": 0.0, "encoder": encoder, "decoder": decoder},
        "batch": {"tokens": 1024},
        "optimizer": {"lr": 0.003},
        "schedule": {"kind": "cosine", "warmup": 100},
        "training": {
            "steps": 2000,
            "smoothing": 0.0,
            "validate_every": 500,
            "save_every": 2000,
            "device": "cpu",
            "threads": 1,
        },
        "decoding": {"beam": 1},
    }
    result = regard.train(recipe, folder=tmp_path / "run", quiet=True)
    translations = regard.translate(unseen, regard.load(result.folder))
    targets = [" ".join(reversed(s.split())) if reverse else s for s in unseen]
    accuracy = sum(a == b for a, b in zip(translations, targets, strict=True)) / len(unseen)
    assert len(unseen) == 500
    assert accuracy >= 0.99
