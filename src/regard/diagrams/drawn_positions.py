"""What each position scheme says about two positions, as matrices and curves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.arguments import integer, one_of
from regard.attention.attend import weights
from regard.attention.bias import Bias
from regard.errors import OptionError
from regard.models.attention_options import POSITIONS, ChannelPosition, Position
from regard.pictures.canvas import Canvas
from regard.pictures.matrix_picture import draw_cells
from regard.pictures.picture import Picture

SIDE, GAP, PER_ROW = 144.0, 36.0, 5
CURVE = 46.0  # height of the curve below a matrix
ABOUT = {
    "sinusoidal": "PE(t) · PE(s)",
    "learned": "P(t) · P(s), untrained",
    "learned-norm": "normalized P(t) · P(s), untrained",
    "channel": "product of the position channels",
    "rotary": "R(t)x · R(s)x",
    "alibi": "bias, first head",
    "relative-buckets": "bias, first head, untrained",
    "relative-vectors": "x · r(s − t), untrained",
    "none": "nothing: order is not seen",
}


@dataclass(frozen=True, eq=False)
class PositionPicture(Picture):
    """Similarity matrices (length, length) of position schemes, each on its own colour scale.

    The curve below a matrix is its middle row: one query and every key.
    """

    matrices: dict[str, Tensor]
    title: str = "What position schemes say about two positions"

    def canvas(self) -> Canvas:
        canvas = Canvas(self.title)
        canvas.text(16, 28, self.title, size=15, bold=True)
        note = "matrix: query ↓, key →, each on its own scale; curve: the middle row, lowest to highest value"
        canvas.text(16, 47, note, "mute", size=11)
        for i, (name, matrix) in enumerate(self.matrices.items()):
            x = 16 + i % PER_ROW * (SIDE + GAP)
            y = 66 + i // PER_ROW * (SIDE + CURVE + 74)
            _panel(canvas, x, y, name, matrix)
        return canvas


def _panel(canvas: Canvas, x: float, y: float, name: str, matrix: Tensor) -> None:
    low, high = float(matrix.min()), float(matrix.max())
    canvas.text(x, y + 12, name, size=12.5, bold=True)
    canvas.text(x, y + 27, ABOUT.get(name, ""), "mute", size=10)
    top = y + 34
    cell = SIDE / len(matrix)
    draw_cells(canvas, x, top, (cell, cell), matrix, low, high if high > low else low + 1)
    row = matrix[len(matrix) // 2]
    least, most = float(row.min()), float(row.max())
    span = most - least if most - least > 1e-9 else 1.0
    bottom = top + SIDE + 8 + CURVE
    points = [
        (x + (j + 0.5) * cell, bottom - (value - least) / span * (CURVE - 6))
        for j, value in enumerate(row.tolist())
    ]
    canvas.path(("M", x, bottom + 1), ("L", x + SIDE, bottom + 1), style="frame", width=1)
    segments = [("L" if j else "M", *point) for j, point in enumerate(points)]
    canvas.path(*segments, style="weight", width=1.6)
    canvas.text(x, bottom + 15, f"{least:.2g}", "mute", size=10)
    canvas.text(x + SIDE, bottom + 15, f"to {most:.2g}", "mute", size=10, anchor="end")
    canvas.reach(x + SIDE, bottom + 18)


def position_similarity(
    schemes: str | Iterable[str] | None = None, length: int = 32, dim: int = 64
) -> PositionPicture:
    """Draw what position schemes say about every pair of positions, before any content.

    >>> position_similarity("sinusoidal", length=8).matrices["sinusoidal"].shape
    torch.Size([8, 8])

    Of a scheme that changes the inputs it is the dot product of two position vectors, divided by the largest;
    of a rotation the dot product of a vector with itself, rotated to both positions; of a bias its value.

    Args:
        schemes: names as in a recipe (`position:`), one or several; by default all registered ones.
        length: number of positions.
        dim: width of the position vectors and of a head; even.
    """
    length, dim = integer("length", length, 2, 512), integer("dim", dim, 2, 4096, even=True)
    names = list(POSITIONS) if schemes is None else [schemes] if isinstance(schemes, str) else list(schemes)
    if not names:
        raise OptionError(f"schemes must name a position scheme; there are {', '.join(POSITIONS)}")
    for name in names:
        one_of("a position scheme", name, tuple(POSITIONS))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return PositionPicture({name: similarity(POSITIONS[name], length, dim) for name in names})


def similarity(position: Position, length: int, dim: int) -> Tensor:
    """The matrix (length, length) of one scheme."""
    x = torch.ones(1, 1, length, dim, device="cpu", dtype=torch.float64) / dim**0.5
    bias = position.bias(8, dim, False)
    if bias is not None:
        return _bias_values(bias, x)
    rotary = position.rotary(dim)
    if rotary is not None:
        turned = rotary(x)[0, 0]
        return turned @ turned.T
    module = position.inputs(dim, length).double()
    if isinstance(module, ChannelPosition):
        module = module.channel  # before it is mapped back to the model's width
    vectors = module(torch.zeros(1, length, dim, device="cpu", dtype=torch.float64))[0]
    products = vectors @ vectors.T
    return products / products.diagonal().max().clamp(min=1e-12)


def _bias_values(bias: Bias, x: Tensor) -> Tensor:
    """What the bias adds to the scores of the first head."""
    x = x.expand(1, 8, -1, -1)
    return (weights(x, x, bias=bias, stage="biased") - weights(x, x, stage="energy"))[0, 0]
