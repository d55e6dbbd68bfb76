"""Answers to the exercises of lesson 19."""

import torch


def embed_frames(x, W):
    width = len(W)
    t = torch.arange(len(x))[:, None]
    angles = t / 10000 ** (torch.arange(0, width, 2) / width)  # (T, K/2)
    positions = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)  # sin, cos, sin, cos, …
    return x @ W.T + positions


def mean_pool(states, lengths):
    real = torch.arange(states.shape[1]) < lengths[:, None]  # (batch, T)
    return (states * real[..., None]).sum(1) / lengths[:, None]
