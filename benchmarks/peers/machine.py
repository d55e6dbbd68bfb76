"""What every table states: the versions, the machine and the date it was made with."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version

from regard.version import __version__


def stamp(device: str | None = None) -> str:
    """One line: device, versions of regard, torch and Python, and today's date."""
    versions = f"regard {__version__}, torch {version('torch')}, Python {platform.python_version()}"
    return f"{device or cpu_name()}; {versions}; {datetime.now(UTC):%Y-%m-%d}"


def cpu_name() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            found = next(
                (line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), ""
            )
    except OSError:
        found = ""
    return found or platform.processor() or platform.machine()


def load() -> float | None:
    """The load average over one minute; None where the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
