"""Diagrams: the computation graph of a model, as `regard.draw` makes it, and the similarity of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.diagrams.computation_graph import Graph
    from regard.diagrams.drawn_positions import PositionPicture, position_similarity

__all__ = ["Graph", "PositionPicture", "position_similarity"]
__getattr__ = exported(
    __name__,
    {
        "Graph": "computation_graph",
        "PositionPicture": "drawn_positions",
        "position_similarity": "drawn_positions",
    },
)
