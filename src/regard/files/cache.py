"""The cache directory, for prepared data, trained tokenizers, checksums and compiled C++."""

from __future__ import annotations

import os
from pathlib import Path

# How to fix a write error in the cache directory, for error messages.
CACHE_HINT = "free some space, or set REGARD_CACHE to a folder that you can write"


def cache_folder() -> Path:
    """Return REGARD_CACHE if it is set, else `regard` in XDG_CACHE_HOME or ~/.cache."""
    folder = os.environ.get("REGARD_CACHE")
    if folder:
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "regard"
