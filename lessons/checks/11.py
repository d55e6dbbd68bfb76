"""Checks of lesson 11."""

import random

import torch

from regard.evaluation.alignment import Gold, score
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close
from regard.pipelines.word_links import flipped, strongest


@exercise
def aer(answer):
    draw = random.Random(0)
    cells = [(s, t) for s in range(5) for t in range(6)]
    for _ in range(5):
        links, possible = ({cell for cell in cells if draw.random() < 0.4} for _ in range(2))
        sure = {cell for cell in possible if draw.random() < 0.6}
        expected = score([links], [Gold(frozenset(sure), frozenset(possible))]).aer
        require_close(answer(links, sure, possible), expected, f"the error of {len(links)} links")
    return "it agrees with regard.evaluation.alignment on five sets of links"


@exercise
def mutual_links(answer):
    for shape in ((3, 3), (4, 7), (9, 2)):
        weights = torch.rand(shape).softmax(-1)
        expected = strongest(weights) & flipped(strongest(weights.T))
        got = answer(weights)
        if not isinstance(got, set | frozenset) or set(got) != set(expected):
            raise WrongAnswer(f"for weights {shape} it is {sorted(expected)}, got {got!r}")
    return "both directions agree on every link"
