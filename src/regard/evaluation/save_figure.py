"""Save matplotlib figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import DataError, OptionError


def save_figure(figure: Any, path: str | Path) -> Path:
    """Save a matplotlib figure; an unknown suffix or an unwritable path is an error."""
    path = Path(path)
    if path.suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise OptionError(f"plots are saved as .png, .svg or .pdf, got {path.name}")
    try:
        figure.savefig(path)
    except OSError as error:
        raise DataError(f"the plot {path} cannot be written: {error.strerror or error}") from error
    return path
