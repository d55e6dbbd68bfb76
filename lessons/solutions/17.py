"""Answers to the exercises of lesson 17."""

import torch

import regard


def fixed_weights(x, y):
    return torch.linalg.lstsq(x, y[:, None]).solution[:, 0]


def read_marked(x):
    numbers, marks = x[..., :1], x[..., 1:]  # (batch, T, 1) each
    query = torch.full((len(x), 1, 1), 40.0)
    return regard.attend(query, marks, numbers)[:, 0, 0]
