"""Environments: regard runs in this one, each peer in a virtual environment in the cache, same torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

PLACES: dict[str, tuple[str, ...]] = {
    # importlib_metadata is imported by Joey NMT 2.3.0 and not among its requirements
    "joeynmt": ("joeynmt==2.3.0", "importlib_metadata"),
    "surprise": ("scikit-surprise==1.1.5",),
    "transformers": ("transformers==5.22.2", "x-transformers==2.31.10"),
    "scikit-learn": ("scikit-learn==1.9.1",),
    "fasttext": ("fasttext-wheel==0.9.2", "numpy<2"),  # it asks numpy for what version 2 no longer does
}
WITHOUT_TORCH = ("scikit-learn", "fasttext", "surprise")


@dataclass(frozen=True)
class Place:
    """An interpreter to run a system with, or the reason why there is none."""

    python: str | None
    trouble: str | None = None


def here() -> Place:
    return Place(sys.executable)


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("REGARD_CACHE") or os.path.join(base, "regard")) / "peers"


def peer(name: str) -> Place:
    """The environment of a peer, made on the first call, and complete once all packages are installed."""
    torch = () if name in WITHOUT_TORCH else (f"torch=={version('torch').split('+')[0]}",)
    packages = [*PLACES[name], *torch]
    folder = cache() / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    made = folder / "made.txt"
    if python.exists() and made.exists() and made.read_text(encoding="utf-8").split("\n") == packages:
        return Place(str(python))
    print(
        f"making the environment of {name} ({', '.join(packages)}); this takes minutes",
        file=sys.stderr,
        flush=True,
    )
    try:
        _install(folder, python, packages)
    except (OSError, subprocess.CalledProcessError) as trouble:
        return Place(None, f"could not be installed: {_error_text(trouble)}")
    made.write_text("\n".join(packages), encoding="utf-8")
    return Place(str(python))


def _install(folder: Path, python: Path, packages: list[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _quietly([sys.executable, "-m", "venv", str(folder)])
    constraints = folder / "constraints.txt"  # an unpinned torch would be the newest, and another than ours
    constraints.write_text(packages[-1] + "\n", encoding="utf-8")
    _quietly(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--quiet",
            "-c",
            str(constraints),
            *packages,
        ]
    )


def _quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8", errors="replace")


def _error_text(trouble: OSError | subprocess.CalledProcessError) -> str:
    """The last line that names an error, else the last line."""
    text = str(trouble) if isinstance(trouble, OSError) else f"{trouble.stdout or ''}\n{trouble.stderr or ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [str(trouble)])[-1][:200]
