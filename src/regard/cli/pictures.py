"""--picture: draw the attention of texts that were given on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from regard.cli.option_groups import PictureFileOptions, PictureOptions
from regard.errors import OptionError

if TYPE_CHECKING:
    from regard.decoding.attention_weights import AttentionMaps
    from regard.pictures.picture import Picture

MAX_PICTURES = 50  # pictures in one .html file


def check_options(options: PictureFileOptions, texts: Sequence[str] | None) -> bool:
    """Check the file, the view and the texts (None: they are in files); return whether a picture is drawn.

    To be called before the model is loaded.
    """
    if options.picture is None:
        for field in fields(options):
            if getattr(options, field.name) is not None:
                raise OptionError(
                    f"--{field.name} is for --picture FILE; add it, or leave --{field.name} out"
                )
        return False
    from regard.arguments import one_of
    from regard.pictures.attention_views import ALL_VIEWS
    from regard.pictures.picture import check_picture_path

    path = check_picture_path(options.picture)
    if options.view is not None:
        one_of("--view", options.view, ALL_VIEWS)
    if texts is None:
        raise OptionError("--picture draws texts of the command line; give TEXT, and leave out -i")
    count = len(lines_of(texts))
    if count == 0:
        raise OptionError("--picture draws texts of the command line; give TEXT")
    check_count(path.name, count)
    return True


def check_count(file: str, count: int) -> None:
    """Raise OptionError if a file cannot hold this many pictures."""
    if count > 1 and not file.lower().endswith(".html"):
        raise OptionError(
            f"{file} holds one picture, and there are {count} texts; give one, or a file that ends in .html"
        )
    if count > MAX_PICTURES:
        raise OptionError(f"{file} would hold {count} pictures; give at most {MAX_PICTURES} texts")


def lines_of(texts: Sequence[str]) -> list[str]:
    """Return the lines of texts that have a picture: all but blank ones."""
    return [line for text in texts for line in text.split("\n") if line.strip()]


def check_model(options: PictureOptions, probe: AttentionMaps) -> None:
    """Raise OptionError if the model has no such attention, layer or head; `probe` is that of any text."""
    draw(options, probe)


def draw(options: PictureOptions, maps: AttentionMaps) -> Picture:
    """Return the picture of one text."""
    chosen: dict[str, Any] = {"kind": options.kind, "layer": options.layer, "head": options.head}
    return maps.picture(options.view, **chosen)


def save(options: PictureOptions, attention: Sequence[AttentionMaps | None]) -> None:
    """Write the pictures of texts; a text without tokens has none."""
    save_all(options, [draw(options, maps) for maps in attention if maps is not None])


def save_all(options: PictureFileOptions, pictures: Sequence[Picture]) -> None:
    """Write pictures to the file, and report it."""
    from regard.cli.jobs import report
    from regard.pictures.picture import save_pictures

    assert options.picture is not None
    if not pictures:
        report(f"there is no attention to draw, so {options.picture} was not written")
        return
    save_pictures(pictures, options.picture)
    report(f"the attention is drawn in {options.picture}")
