"""Answers to the exercises of lesson 12."""

import torch


def step_factor(gradients):
    return float(gradients[0] / gradients[-1]) ** (1 / (len(gradients) - 1))


def jacobian(W, states):
    product = torch.eye(len(W), dtype=W.dtype)
    for h in states:
        product = (1 - h**2)[:, None] * W @ product  # tanh' is 1 − tanh²
    return product
