"""Pictures of attention: heat maps, lines between tokens, grids of heads; line charts. Shown and saved.

SVG and HTML need no other package; PNG, PDF and `plot` need matplotlib: pip install "regard[plot]".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.pictures.head_grid import HeadGrid
    from regard.pictures.line_chart import LineChart
    from regard.pictures.matrix_picture import MatrixPicture
    from regard.pictures.picture import Picture, save_pictures

__all__ = ["HeadGrid", "LineChart", "MatrixPicture", "Picture", "save_pictures"]
__getattr__ = exported(
    __name__,
    {
        "HeadGrid": "head_grid",
        "LineChart": "line_chart",
        "MatrixPicture": "matrix_picture",
        "Picture": "picture",
        "save_pictures": "picture",
    },
)
