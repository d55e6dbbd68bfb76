"""The cache directory: prepared data, learned tokenizers, checksums and compiled C++ are kept there."""

from __future__ import annotations

import os
from pathlib import Path

OTHER_CACHE = "free some space, or set REGARD_CACHE to a folder that you can write"


def cache_folder() -> Path:
    """REGARD_CACHE if it is set, otherwise `regard` in the user's cache (XDG_CACHE_HOME, or ~/.cache)."""
    given = os.environ.get("REGARD_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "regard"
