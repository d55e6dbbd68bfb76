"""Inputs, and the outputs of every kernel that can run a call."""

import torch

from regard import (
    attend,
)
from regard.attention.plan import KERNELS
from regard.errors import KernelError

CHECKED = [name for name in KERNELS if name != "flex"]  # Flex would compile for every kind


def inputs(*shape, dtype=torch.float32, grad=False):
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_(grad) for _ in range(3)]


def runs(*args, **options):
    """(name, output) of every kernel that can run the call, and of the automatic choice."""
    outputs = [("auto", attend(*args, **options))]
    for name in CHECKED:
        try:
            outputs.append((name, attend(*args, kernel=name, **options)))
        except KernelError:
            continue
    return outputs


def grads(out, leaves):
    return torch.autograd.grad(out.sum(), leaves, allow_unused=True)


def close(a, b, tol=1e-5):
    return torch.allclose(a.double(), b.double(), rtol=tol, atol=tol)
