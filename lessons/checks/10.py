"""Checks of lesson 10."""

import random

from regard.evaluation import bleu_by_length
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def bits(answer):
    for length, symbols, expected in ((1, 2, 1.0), (14, 16, 56.0), (3, 8, 9.0), (10, 1, 0.0)):
        require_close(answer(length, symbols), expected, f"the bits of {length} symbols out of {symbols}")
    return "it is length · log2(symbols)"


@exercise
def buckets(answer):
    draw = random.Random(0)
    for edges in ((10, 20, 30), (5,), (3, 4, 50)):
        lengths = [draw.randint(1, 60) for _ in range(300)]
        lines = ["w " * length for length in lengths]
        scored = bleu_by_length(lines, lines, lines, edges=edges, tokenize="none").buckets
        expected = [bucket.lines for bucket in scored]
        if list(answer(lengths, edges)) != expected:
            raise WrongAnswer(f"for edges {edges} it is {expected}, got {answer(lengths, edges)!r}")
    return "it agrees with bleu_by_length for three sets of edges"
