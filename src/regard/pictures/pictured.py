"""`Pictured`: objects that hold attention weights and can draw them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from regard.errors import OptionError
from regard.pictures.picture import Picture, check_picture_path


class Pictured:
    """Adds `plot`, `save` and the display in notebooks to a class that has `picture`."""

    def picture(self, view: str | None = None, **options: Any) -> Picture:
        """Return the picture; the options of each class are in its own `picture`."""
        raise NotImplementedError

    def plot(self, view: str | None = None, *, axes: Any = None, **options: Any) -> Any:
        """Draw with matplotlib, into `axes` if given; return the `matplotlib.figure.Figure`.

        `view` and the other options are those of `picture`.
        """
        picture: Any = self.picture(view, **options)
        if axes is None:
            return picture.plot()
        if view == "grid":
            raise OptionError("view='grid' makes its own figure; leave axes out, or take another view")
        return picture.plot(axes)

    def save(self, path: str | PathLike[str], view: str | None = None, **options: Any) -> Path:
        """Write the picture to a file that ends in .svg, .html, .png or .pdf; return its path.

        `view` and the other options are those of `picture`.
        """
        check_picture_path(path)
        return self.picture(view, **options).save(path)

    def _repr_html_(self) -> str:
        """The picture in a notebook."""
        return self.picture()._repr_html_()
