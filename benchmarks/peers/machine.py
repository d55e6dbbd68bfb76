"""What every table states: versions, machine and date."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version

from regard.version import __version__


def stamp(device: str | None = None) -> str:
    """One line: device, versions of regard, torch and Python, and today's date."""
    versions = f"regard {__version__}, torch {version('torch')}, Python {platform.python_version()}"
    return f"{device or cpu_name()}; {versions}; {today()}"


def cpu_facts(load: float | None) -> dict:
    """The machine, versions and date of a CPU benchmark, as keys of its JSON; `load` was measured before."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": load,
        "torch": version("torch"),
        "python": platform.python_version(),
        "date": today(),
    }


def cpu_text(facts: dict) -> str:
    """The processor, its cores and the load of `cpu_facts` in words."""
    load = "" if facts["load"] is None else f", load {facts['load']:.1f} at the start"
    return f"{facts['cpu']}, {facts['cores']} cores{load}"


def today() -> str:
    """The date in UTC, as YYYY-MM-DD."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def cpu_name() -> str:
    """The name of the processor."""
    name = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            models = (line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
            name = next(models, "")
    except OSError:
        pass
    return name or platform.processor() or platform.machine()


def load_average() -> float | None:
    """The load average over one minute; None where the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
