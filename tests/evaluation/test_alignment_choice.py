"""Tests of alignment_choice.py: the choice has the lowest error of all combinations."""

from itertools import product

import pytest
import torch

import regard
from regard.data.tokenizer import Tokenizer
from regard.errors import OptionError
from regard.evaluation.alignment import Gold, score
from regard.evaluation.alignment_choice import JOINS, choose_alignment, layer_weights
from regard.pipelines.align import View, align_words
from regard.pipelines.word_links import LinkSelection

LAYER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32}
GOLD = [Gold(frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 2), (2, 1)}))] * 2


def random_weights(seed, names):
    """Weights of two pairs of three words by name."""
    draw = torch.Generator().manual_seed(seed)
    return {name: [torch.rand(3, 3, generator=draw).softmax(-1) for _ in range(2)] for name in names}


def test_the_choice_has_the_lowest_error_of_all_combinations():
    forward, backward = random_weights(1, "abc"), random_weights(2, "xy")
    choice = choose_alignment(forward, backward, GOLD)
    selections = [
        LinkSelection(mutual=mutual and join != "weights", join=join)
        for join, mutual in product(JOINS, (False, True))
    ]
    selections += [LinkSelection(threshold=threshold) for threshold in (0.1, 0.2, 0.3, 0.4)]
    errors = [
        score([selection.joined(f, b) for f, b in zip(forward[a], backward[x], strict=True)], GOLD).aer
        for a, x, selection in product(forward, backward, selections)
    ]
    assert choice.score.aer == pytest.approx(min(errors))
    assert score(choice.links(forward, backward), GOLD).aer == choice.score.aer


def test_perfect_weights_are_chosen():
    correct = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])  # (target, source)
    forward = {**random_weights(3, "a"), "right": [correct] * 2}
    backward = {**random_weights(4, "x"), "right": [correct.T] * 2}
    choice = choose_alignment(forward, backward, GOLD)
    assert choice.score.aer == 0 and "right" in str(choice)
    both = [Gold(frozenset({(0, 0), (1, 0)}), frozenset({(0, 0), (1, 0)}))]  # two links of one word
    halves, ones = {"a": [torch.tensor([[0.5, 0.5]])]}, {"x": [torch.tensor([[1.0], [1.0]])]}
    assert str(choose_alignment(halves, ones, both)).endswith("joined by weights of at least 0.1")
    with pytest.raises(OptionError, match="no weights to choose from"):
        choose_alignment({}, backward, GOLD)


def test_weights_of_layers_are_those_of_align():
    tokenizer = Tokenizer.train(["ein kleiner Hund", "a small dog"], "bpe", 40)
    model = regard.build(
        {"dim": 16, "encoder": LAYER, "decoder": LAYER}, len(tokenizer), len(tokenizer)
    ).eval()
    model.source_tokenizer = model.target_tokenizer = tokenizer
    sources, targets = ["ein Hund", "kleiner Hund ein"], ["a dog", "small a"]
    by_layer = layer_weights(sources, targets, model)
    assert list(by_layer) == [f"layer {i}, {step}" for i in (0, 1) for step in ("generates", "reads")]
    for i, alignment in align_words(sources, targets, model, View(1, shift=True)):
        torch.testing.assert_close(by_layer["layer 1, reads"][i], alignment.weights)
