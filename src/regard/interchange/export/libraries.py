"""Libraries that regard does not need except for one format each."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import OptionError


def need(library: str, extra: str | None = None) -> None:
    """One sentence when a library is not installed."""
    try:
        found = importlib.util.find_spec(library)
    except ModuleNotFoundError:  # the package that it is a part of
        found = None
    if found is None:
        raise OptionError(f'this needs {library}; pip install "regard[{extra or library}]"')


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Its bars and remarks are about files that a caller of regard never named."""
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
