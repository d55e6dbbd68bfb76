"""Answers to the exercises of lesson 6."""

import torch


def alibi_slopes(heads):
    return [2 ** (-8 * (h + 1) / heads) for h in range(heads)]


def sinusoidal_table(length, width):
    rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * rates  # (length, width/2)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
