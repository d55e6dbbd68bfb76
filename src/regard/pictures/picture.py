"""`Picture`: the base class of drawings, shown in a notebook and saved as SVG, HTML, PNG or PDF."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from regard.errors import OptionError
from regard.files.atomic import write_file
from regard.pictures.canvas import Canvas

SUFFIXES = (".svg", ".html", ".png", ".pdf")
WITH_MATPLOTLIB = (".png", ".pdf")


class Picture:
    """A drawing. In a notebook it is shown as the result of a cell; `save` writes a file.

    SVG and HTML are written by regard itself, without scripts and without other files. PNG, PDF and `plot`
    need matplotlib: `pip install "regard[plot]"`.
    """

    def canvas(self) -> Canvas:
        """The shapes of the picture."""
        raise NotImplementedError

    def svg(self) -> str:
        """The picture as SVG text."""
        return self.canvas().svg()

    def plot(self) -> Any:
        """The picture as a `matplotlib.figure.Figure`."""
        check_matplotlib()
        from regard.pictures.figures import canvas_figure

        return canvas_figure(self.canvas())

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the picture to a file that ends in .svg, .html, .png or .pdf; return its path."""
        return save_pictures([self], path)

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self.svg()}</div>'


def check_picture_path(path: str | PathLike[str]) -> Path:
    """Check that a picture can be written to a path; to be called before any work."""
    if not isinstance(path, str | PathLike):
        raise OptionError(f"path must be the name of a file, got {type(path).__name__}")
    path = Path(fspath(path))
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(
            f"a picture is written to a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, "
            f"got {path.name!r}; rename it"
        )
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written, its folder does not exist; create it first")
    if path.is_dir():
        raise OptionError(f"{path} is a folder; name a file for the picture")
    if path.suffix.lower() in WITH_MATPLOTLIB:
        check_matplotlib(f"writing {path.name}", ", or name a file that ends in .svg or .html")
    return path


def check_matplotlib(what: str = "plot", otherwise: str = "") -> None:
    """Raise OptionError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise OptionError(f'{what} needs matplotlib; pip install "regard[plot]"{otherwise}')


def save_pictures(pictures: Sequence[Picture], path: str | PathLike[str]) -> Path:
    """Write pictures to one file: a page of them if it ends in .html, otherwise exactly one."""
    path = check_picture_path(path)
    suffix = path.suffix.lower()
    if suffix == ".html":
        write_file(path, html_page(pictures))
        return path
    if len(pictures) != 1:
        raise OptionError(
            f"{path.name} holds one picture, got {len(pictures)}; give one, or a file that ends in .html"
        )
    (picture,) = pictures
    if suffix == ".svg":
        write_file(path, picture.svg())
        return path
    content = io.BytesIO()
    picture.plot().savefig(content, format=suffix[1:], dpi=160)
    write_file(path, content.getvalue())
    return path


def html_page(pictures: Sequence[Picture]) -> str:
    """A self-contained page with pictures, one below the other."""
    drawn = [picture.canvas() for picture in pictures]
    title = escape(drawn[0].title) if drawn else "regard"
    style = (
        ":root{color-scheme:light dark}body{margin:24px;background:#f2f4f7}"
        "figure{margin:0 0 24px;overflow-x:auto}"
        "@media(prefers-color-scheme:dark){body{background:#0b0e14}}"
    )
    figures = "\n".join(f"<figure>\n{canvas.svg()}</figure>" for canvas in drawn)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n{figures}\n</body>\n</html>\n"
    )
