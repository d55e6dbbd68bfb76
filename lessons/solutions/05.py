"""Answers to the exercises of lesson 5."""

import torch


def equivariance_violation(layer, X, order):
    return (layer(X[order]) - layer(X)[order]).abs().max().item()


def position_channel(X):
    positions = torch.arange(1, len(X) + 1, dtype=X.dtype)
    return torch.cat([X, positions[:, None]], dim=1)
