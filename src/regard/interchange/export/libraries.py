"""Optional libraries that single formats need."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import OptionError


def require_library(library: str, extra: str | None = None) -> None:
    """Raise OptionError with the install command if a library is not installed."""
    try:
        spec = importlib.util.find_spec(library)
    except ModuleNotFoundError:  # its parent package is missing
        spec = None
    if spec is None:
        raise OptionError(f'this needs {library}; pip install "regard[{extra or library}]"')


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and warnings of transformers, which name temporary files."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
