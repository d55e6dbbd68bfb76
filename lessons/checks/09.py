"""Checks of lesson 9."""

import torch

import regard
from regard.lessons import exercise
from regard.lessons.exercises import require_close


@exercise
def simple_attention(answer):
    for length in (1, 5, 30):
        states, query = torch.randn(length, 8), torch.randn(8)
        expected = regard.attend(query[None], states, states, energy=regard.attention.Dot())[0]
        require_close(answer(states, query), expected, f"y^a over {length} states")
    return "it agrees with regard.attend over 1, 5 and 30 states"


@exercise
def raw_attention(answer):
    for length in (1, 5, 30):
        states, query = torch.randn(length, 8), torch.randn(8)
        options = {"energy": regard.attention.Dot(), "normalize": regard.attention.Raw()}
        expected = regard.attend(query[None], states, states, **options)[0]
        require_close(answer(states, query), expected, f"y^a over {length} states", tolerance=1e-3)
    return "it agrees with regard.attend without a normaliser"
