"""Without positions a model cannot distinguish two word orders; with any position scheme it can.

Row 22 of docs/lectures.md; the sentences are Enevoldsen's.
"""

import math

import pytest
import torch

from regard.data.tokenizer import EOS, SPECIALS
from regard.models.build import build
from regard.models.classifier import ClassifierOptions
from tests.models.small import make

QUESTION, STATEMENT = "are you happy today", "you are happy today"
TEACHER, STUDENTS = (
    "the teacher told the students to open their",
    "the students told the teacher to open their",
)
VOCABULARY = sorted({*QUESTION.split(), *TEACHER.split()})
LAYER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32}
SCHEMES = ["sinusoidal", "learned", "channel", "rotary", "alibi", "relative-buckets", "relative-vectors"]
UNORDERED = {
    "mean of words": ({"kind": "embedding"}, "mean"),
    "sum of words": ({"kind": "embedding"}, "sum"),
    "max of words": ({"kind": "embedding"}, "max"),
    "attention pooling": ({"kind": "embedding"}, "attention"),
    "three additive queries": (
        {"kind": "embedding"},
        {"kind": "attention", "queries": 3, "energy": "additive"},
    ),
    "sparse attention pooling": (
        {"kind": "embedding"},
        {"kind": "attention", "heads": 2, "normalize": "sparsemax"},
    ),
    "transformer, mean": ({**LAYER, "position": "none"}, "mean"),
    "transformer, attention pooling": ({**LAYER, "position": "none"}, "attention"),
    "transformer, state of EOS": ({**LAYER, "position": "none"}, "last"),
}
ORDERED = {
    **{scheme: ({**LAYER, "position": scheme}, "mean") for scheme in SCHEMES},
    "recurrent": ({"kind": "recurrent"}, "last"),
    "recurrence over words": ({"kind": "embedding"}, "recurrent"),
    "convolutions": ({"kind": "text-cnn", "kernels": [2, 3], "width": 8}, "max"),
    "convolution layers": ({"kind": "convolutional", "layers": 2, "position": "none"}, "mean"),
}


def classifier(encoder, pooling, labels=2):
    """A classifier in float64 with random weights."""
    section = ClassifierOptions.model_validate(
        {"dim": 16, "encoder": encoder, "pooling": pooling, "dropout": 0.0}
    )
    return (
        build(section.model_dump(), len(SPECIALS) + len(VOCABULARY), len(SPECIALS) + labels).double().eval()
    )


def tokens(*texts, end=True):
    """Token ids of texts, with EOS unless `end` is False."""
    return torch.tensor(
        [[len(SPECIALS) + VOCABULARY.index(word) for word in text.split()] + [EOS] * end for text in texts]
    )


@pytest.mark.parametrize("name", UNORDERED)
def test_without_positions_a_question_and_a_statement_have_equal_outputs(name):
    question, statement = classifier(*UNORDERED[name])(tokens(QUESTION, STATEMENT))
    torch.testing.assert_close(question, statement, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ORDERED)
def test_with_each_position_scheme_a_question_and_a_statement_differ(name):
    question, statement = classifier(*ORDERED[name])(tokens(QUESTION, STATEMENT))
    assert (question - statement).abs().max() > 1e-6


@pytest.mark.parametrize("name", UNORDERED)
def test_without_positions_shuffled_words_give_equal_outputs(name):
    model = classifier(*UNORDERED[name], labels=len(VOCABULARY))
    words = TEACHER.split()
    shuffled = [" ".join(words[i] for i in torch.randperm(len(words))) for _ in range(5)]
    first, *others = model(tokens(TEACHER, *shuffled))
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-13)


def least_loss(encoder, pooling, steps, enough=0.1):
    """The smallest loss during training to predict one label for each of the two word orders."""
    model, texts, losses = classifier(encoder, pooling), tokens(TEACHER, STUDENTS), [math.inf]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    while len(losses) <= steps and losses[-1] > enough:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(texts), torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return min(losses)


@pytest.mark.parametrize("name", ["mean of words", "attention pooling", "transformer, mean"])
def test_training_cannot_separate_two_orders_without_positions(name):
    """Both orders are the same input, so the mean loss is −(log p + log(1 − p))/2 ≥ log 2 for any weights."""
    assert least_loss(*UNORDERED[name], steps=60) >= math.log(2) - 1e-12


@pytest.mark.parametrize("name", ORDERED)
def test_training_separates_two_orders_with_positions(name):
    assert least_loss(*ORDERED[name], steps=600) <= 0.1


def test_a_symmetric_position_scheme_cannot_distinguish_a_reversed_text():
    """ALiBi encodes distance but not direction: without EOS a reversed text gives the same output."""
    forward, backward = tokens(TEACHER, " ".join(reversed(TEACHER.split())), end=False)
    for scheme, differs in (
        ("alibi", False),
        ("rotary", True),
        ("relative-buckets", True),
        ("relative-vectors", True),
    ):
        model = classifier({**LAYER, "position": scheme}, "mean")
        one, other = model(torch.stack([forward, backward]))
        assert ((one - other).abs().max() > 1e-9) == differs, scheme
    model = classifier({**LAYER, "position": "alibi"}, "mean")
    one, other = model(tokens(TEACHER, " ".join(reversed(TEACHER.split()))))  # EOS breaks the symmetry
    assert (one - other).abs().max() > 1e-9


@pytest.mark.parametrize(("layers", "differs"), [(1, False), (2, True)])
def test_a_causal_mask_encodes_order_from_the_second_layer_on(layers, differs):
    """One causal layer sees the set of previous tokens; a second layer sees which sets came first."""
    model = make(
        None,
        {"kind": "transformer", "layers": layers, "heads": 2, "inner": 32, "position": "none"},
        tie="none",
    ).eval()
    one, other = model(tokens(TEACHER, STUDENTS, end=False))[:, -1]
    assert ((one - other).abs().max() > 1e-9) == differs
