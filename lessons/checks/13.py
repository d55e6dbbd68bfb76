"""Checks of lesson 13."""

import torch

from regard.layers import Convolution
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def layers_needed(answer):
    for distance, kernel in ((4, 5), (5, 5), (1, 3), (50, 7), (128, 3)):
        layers = answer(distance, kernel)
        expected = _counted_layers(distance, kernel)
        if layers != expected:
            raise WrongAnswer(f"for distance {distance} and kernel {kernel} it is {expected}, got {layers!r}")
    return "it agrees with the reach of regard.layers.Convolution"


def _counted_layers(distance: int, kernel: int) -> int:
    left, _ = Convolution(4, kernel=kernel).reach
    count = 1
    while count * left < distance:
        count += 1
    return count


@exercise
def copy(answer):
    for length in (2, 12, 300):
        tokens = torch.randint(8, 16, (32, length))
        symbol = torch.randint(0, 8, (32,))
        tokens[torch.arange(32), torch.randint(0, length, (32,))] = symbol
        expected = torch.nn.functional.one_hot(symbol, 8)
        require_close(answer(tokens), expected, f"the output at length {length}", tolerance=0.01)
    return "it copies the symbol from any place, at lengths 2, 12 and 300"
