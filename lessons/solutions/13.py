"""Answers to the exercises of lesson 13."""

import torch
from torch.nn.functional import one_hot

import regard


def layers_needed(distance, kernel):
    return -(-distance // ((kernel - 1) // 2))


def copy(tokens):
    values = one_hot(tokens, 16)[..., :8].float()  # (batch, T, 8): noise is zero
    keys = (tokens < 8).float()[..., None]  # (batch, T, 1)
    query = torch.full((len(tokens), 1, 1), 50.0)
    return regard.attend(query, keys, values)[:, 0]
