"""Weights stored in int8: integers and one scale per row, the form in which the C++ engine computes.

    weight[r, c] ≈ scale[r] · values[r, c],   values in −127 … 127

A scale is chosen such that the engine computes the same integers and the same scale, to the last bit, from
the restored weights. So a stored model is rounded only once, and the engine needs nothing but these weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from regard.errors import FolderError

LEVELS = 127
SCALE = ".scale"  # appended to the name of a stored tensor
BITS = 16  # of a scale
MIN_SIZE = 4096  # smaller tensors stay in float32: int8 would save few bytes and add errors


def is_quantized(weight: Tensor) -> bool:
    """True for matrices, embedding tables and kernels of convolutions; norms and biases stay in float32."""
    return weight.ndim >= 2 and weight.numel() >= MIN_SIZE and weight.is_floating_point()


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers, of the shape of the weight, and the scales, (rows,).

    >>> quantize(torch.tensor([[1.0, -0.5, 0.25]]))[0].tolist()
    [[127, -63, 32]]
    """
    rows = weight.detach().float().flatten(1)  # (rows, columns)
    scale = _scale(rows.abs().amax(1))
    values = (rows / scale[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8)
    return values.view(weight.shape), scale


def restore(values: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write scale · values into `out`."""
    torch.mul(values, scale.view(-1, *[1] * (values.ndim - 1)), out=out)


def quantized(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors to store: `NAME` in int8 and `NAME.scale`, or `NAME` unchanged if it is not quantized."""
    stored: dict[str, Tensor] = {}
    for name, weight in tensors.items():
        if is_quantized(weight):
            stored[name], stored[name + SCALE] = quantize(weight)
        else:
            stored[name] = weight
    return stored


def take_scales(path: Path, shapes: dict[str, tuple[int, ...]]) -> set[str]:
    """Remove the scales from the shapes of a file; return the names of the tensors that they belong to."""
    names = {name for name in shapes if name + SCALE in shapes}
    for name in names:
        scales, shape = shapes.pop(name + SCALE), shapes[name]
        if scales != shape[:1]:
            raise FolderError(
                f"{path} holds {len(shape) and shape[0]} rows of {name!r} and {scales} scales; copy it again"
            )
    return names


def check_types(path: Path, name: str, values: Tensor, scale: Tensor) -> None:
    """Raise a FolderError unless the values are int8 and the scales float32."""
    if values.dtype != torch.int8 or scale.dtype != torch.float32:
        raise FolderError(
            f"{path} holds {name!r} as {values.dtype} with scales in {scale.dtype}, and int8 with float32 is "
            "expected; copy it again"
        )


def _scale(largest: Tensor) -> Tensor:
    """largest / 127, rounded up to 16 significant bits.

    Then 127 · scale is exact in float32, and so is the division by 127 by which the engine computes the scale
    from the largest weight of a row.
    """
    mantissa, exponent = torch.frexp(largest / LEVELS)
    scale = torch.ldexp(torch.ceil(mantissa * 2**BITS), exponent - BITS)
    return torch.where(scale > 0, scale, torch.ones_like(scale))
