"""Inputs of `attend`, a call with an edit, and a model with two encoder layers and a cross-attention."""

import torch
from torch import nn

from regard import MultiHead, Padding, attend, intervene


def inputs(heads=4, key_heads=4, Tq=5, Tk=7, batch=2):
    q = torch.randn(batch, heads, Tq, 8, dtype=torch.float64)
    k, v = (torch.randn(batch, key_heads, Tk, 8, dtype=torch.float64) for _ in "kv")
    return q, k, v


def run(edit, q, k, v, **options):
    with intervene(None, {"attend.0": edit}):
        return attend(q, k, v, **options)


def expand(v, heads):
    return v.repeat_interleave(heads // v.shape[1], 1)


class Model(nn.Module):
    def __init__(self, key_heads=4):
        super().__init__()
        self.encoder = nn.ModuleList(MultiHead(16, 4, key_heads=key_heads) for _ in range(2))
        self.cross = MultiHead(16, 4, key_heads=key_heads)

    def forward(self, x, source, lengths=None):
        for layer in self.encoder:
            source = source + layer(source, mask=None if lengths is None else Padding(lengths))
        return x + self.cross(x, source)


X, SOURCE = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 16, dtype=torch.float64)
