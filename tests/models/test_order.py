"""Row 22: without positions two word orders are one input, with each position scheme they are two.
Enevoldsen's sentences.
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
BLIND = {
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
    "transformer, the end mark's state": ({**LAYER, "position": "none"}, "last"),
}
ORDERED = {
    **{scheme: ({**LAYER, "position": scheme}, "mean") for scheme in SCHEMES},
    "recurrent": ({"kind": "recurrent"}, "last"),
    "recurrence over words": ({"kind": "embedding"}, "recurrent"),
    "convolutions": ({"kind": "text-cnn", "kernels": [2, 3], "width": 8}, "max"),
    "convolution layers": ({"kind": "convolutional", "layers": 2, "position": "none"}, "mean"),
}


def classifier(encoder, pooling, labels=2):
    """In float64, with drawn weights."""
    section = ClassifierOptions.model_validate(
        {"dim": 16, "encoder": encoder, "pooling": pooling, "dropout": 0.0}
    )
    return (
        build(section.model_dump(), len(SPECIALS) + len(VOCABULARY), len(SPECIALS) + labels).double().eval()
    )


def tokens(*texts, end=True):
    """Words as their numbers, and the end mark as every text has it."""
    return torch.tensor(
        [[len(SPECIALS) + VOCABULARY.index(w) for w in text.split()] + [EOS] * end for text in texts]
    )


@pytest.mark.parametrize("name", BLIND)
def test_without_positions_a_question_and_a_statement_are_one_input(name):
    request, output = classifier(*BLIND[name])(tokens(QUESTION, STATEMENT))
    torch.testing.assert_close(request, output, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ORDERED)
def test_with_each_position_scheme_they_are_two(name):
    request, output = classifier(*ORDERED[name])(tokens(QUESTION, STATEMENT))
    assert (request - output).abs().max() > 1e-6


@pytest.mark.parametrize("name", BLIND)
def test_any_shuffle_of_the_words_gives_the_same_next_word(name):
    model = classifier(*BLIND[name], labels=len(VOCABULARY))
    words = TEACHER.split()
    shuffled = [" ".join(words[i] for i in torch.randperm(len(words))) for _ in range(5)]
    first, *others = model(tokens(TEACHER, *shuffled))
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-13)


def least_loss(encoder, pooling, steps, enough=0.1):
    """The least mean loss on the way of learning to say books after one order of the words and eyes after the
    other.
    """
    model, given, losses = classifier(encoder, pooling), tokens(TEACHER, STUDENTS), [math.inf]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    while len(losses) <= steps and losses[-1] > enough:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(given), torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return min(losses)


@pytest.mark.parametrize("name", ["mean of words", "attention pooling", "transformer, mean"])
def test_no_training_tells_two_orders_apart_without_positions(name):
    """Both are one input x, so the mean loss is −(log p + log(1 − p))/2 ≥ log 2, whatever is learned."""
    assert least_loss(*BLIND[name], steps=60) >= math.log(2) - 1e-12


@pytest.mark.parametrize("name", ORDERED)
def test_some_training_does_with_them(name):
    assert least_loss(*ORDERED[name], steps=600) <= 0.1


def test_a_symmetric_scheme_cannot_tell_a_text_from_its_mirror():
    """ALiBi knows how far, not which way: without a mark at one end a text read backwards is the same."""
    forwards, backwards = tokens(TEACHER, " ".join(reversed(TEACHER.split())), end=False)
    for scheme, outcome in (
        ("alibi", False),
        ("rotary", True),
        ("relative-buckets", True),
        ("relative-vectors", True),
    ):
        model = classifier({**LAYER, "position": scheme}, "mean")
        one, other = model(torch.stack([forwards, backwards]))
        assert ((one - other).abs().max() > 1e-9) == outcome, scheme
    model = classifier({**LAYER, "position": "alibi"}, "mean")
    one, other = model(tokens(TEACHER, " ".join(reversed(TEACHER.split()))))  # the end mark gives it away
    assert (one - other).abs().max() > 1e-9


@pytest.mark.parametrize(("layers", "outcome"), [(1, False), (2, True)])
def test_a_causal_mask_is_an_order_from_the_second_layer_on(layers, outcome):
    """One layer sees the set of the words before; two see sets of sets, which only one order has."""
    model = make(
        None,
        {"kind": "transformer", "layers": layers, "heads": 2, "inner": 32, "position": "none"},
        tie="none",
    ).eval()
    one, other = model(tokens(TEACHER, STUDENTS, end=False))[:, -1]
    assert ((one - other).abs().max() > 1e-9) == outcome
