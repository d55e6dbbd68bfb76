"""Python environments: regard runs in this one, each peer in its own, all with the same version of torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.process import log

PACKAGES: dict[str, tuple[str, ...]] = {
    # Joey NMT 2.3.0 imports importlib_metadata without requiring it.
    "joeynmt": ("joeynmt==2.3.0", "importlib_metadata"),
    "surprise": ("scikit-surprise==1.1.5",),
    "transformers": ("transformers==5.22.2", "x-transformers==2.31.10"),
    "scikit-learn": ("scikit-learn==1.9.1",),
    "fasttext": ("fasttext-wheel==0.9.2", "numpy<2"),  # it calls functions that numpy 2 removed
}
WITHOUT_TORCH = ("scikit-learn", "fasttext", "surprise")


@dataclass(frozen=True)
class Environment:
    """An interpreter to run a system with, or the reason why there is none."""

    python: str | None
    failure: str | None = None


def own_environment() -> Environment:
    """The environment of this process, in which regard is installed."""
    return Environment(sys.executable)


def cache_folder() -> Path:
    """The folder of the virtual environments of all peers."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("REGARD_CACHE") or os.path.join(base, "regard")) / "peers"


def peer_environment(name: str) -> Environment:
    """The virtual environment of a peer, created with pip on the first call."""
    torch = () if name in WITHOUT_TORCH else (f"torch=={version('torch').split('+')[0]}",)
    packages = [*PACKAGES[name], *torch]
    folder = cache_folder() / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    installed = folder / "made.txt"  # written last: an interrupted installation is repeated
    is_complete = python.exists() and installed.exists()
    if is_complete and installed.read_text(encoding="utf-8").split("\n") == packages:
        return Environment(str(python))
    log(f"installing {name} ({', '.join(packages)}) into {folder}; this takes minutes")
    try:
        _install(folder, python, packages)
    except (OSError, subprocess.CalledProcessError) as error:
        return Environment(None, f"could not be installed: {_error_text(error)}")
    installed.write_text("\n".join(packages), encoding="utf-8")
    return Environment(str(python))


def _install(folder: Path, python: Path, packages: list[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    constraints = folder / "constraints.txt"  # otherwise a dependency may pull in a newer torch than ours
    constraints.write_text(packages[-1] + "\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    _run([*pip, "-c", str(constraints), *packages])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8", errors="replace")


def _error_text(error: OSError | subprocess.CalledProcessError) -> str:
    """The last line that starts with "error", otherwise the last line."""
    text = str(error) if isinstance(error, OSError) else f"{error.stdout or ''}\n{error.stderr or ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [str(error)])[-1][:200]
