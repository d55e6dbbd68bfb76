"""Answers to the exercises of lesson 2."""

import torch


def scale_for(variance_q, variance_k, d):
    return 1 / (d * variance_q * variance_k) ** 0.5


def softmax_jacobian(scores):
    p = torch.softmax(scores, 0)
    return torch.diag(p) - p[:, None] * p[None, :]
