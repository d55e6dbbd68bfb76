"""What a table says about the machine it was made on."""

from __future__ import annotations

import os
import platform


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            found = next(
                (line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), ""
            )
    except OSError:
        found = ""
    return found or platform.processor() or platform.machine()


def load() -> float | None:
    """How busy it is; None where nobody knows."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
