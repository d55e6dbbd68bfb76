"""C++ that is built with the machine's own compiler on first need and kept in a cache folder: optional, and never at import."""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from regard.errors import KernelError
from regard.files.cache import cache_folder

_FLAGS = ["-O3", "-march=native", "-std=c++17", "-fPIC", "-fno-math-errno", "-ffp-contract=fast"]


def _check_private(path: Path) -> None:
    """Refuse code that somebody else could have put there: the owner must be this user, and nobody else may write."""
    facts = path.stat()
    if hasattr(os, "geteuid") and facts.st_uid != os.geteuid():
        raise RuntimeError(
            f"{path} belongs to another user, whose code is not run; delete it, or set REGARD_CACHE to a folder of yours"
        )
    if os.name == "posix" and facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RuntimeError(
            f"others may write to {path}, so its code is not run; chmod go-w it, or set REGARD_CACHE to another folder"
        )


def _compiler() -> str | None:
    names = [os.environ.get("CXX"), "g++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _openmp_runtime() -> str | None:
    """The OpenMP library that torch itself uses: a second one would fight with it over the cores.

    The one beside torch comes first. What other packages have loaded (scikit-learn and others bring their own) must not
    change the choice, or a process that has loaded them would build the library again.
    """
    shipped = sorted(glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libgomp*.so*")))
    if shipped:
        return shipped[0]
    try:
        with open("/proc/self/maps") as maps:
            loaded = sorted({line.split(maxsplit=5)[-1].strip() for line in maps if "libgomp" in line})
    except OSError:
        return None
    return next(
        (path for path in loaded if os.path.basename(path).startswith("libgomp") and os.path.exists(path)),
        None,
    )


def _cpu_flags() -> str:
    """What the processor can do: a library built elsewhere for another one must not be found."""
    try:
        with open("/proc/cpuinfo") as info:
            return next((line for line in info if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        import platform

        return platform.machine() + platform.processor()


def lacks(*instructions: str) -> str | None:
    """The first of these instruction sets that the processor does not have; None where it has all, or where nobody can tell."""
    flags = _cpu_flags().lower()
    if not flags.startswith("flags"):  # Linux on x86
        return None
    return next((name for name in instructions if name not in flags.split()), None)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        told = [line for line in lines if "error" in line] or lines  # not the drawings around it
        raise RuntimeError(f"the compiler failed: {told[-1].strip()}")
    return done.stdout


def _build(source: Path) -> Path:
    """The path of the compiled library, which is built unless the cache has it."""
    compiler, runtime = _compiler(), _openmp_runtime()
    if compiler is None:
        raise RuntimeError("no C++ compiler (g++ or clang++) was found on PATH")
    # Linked by name and not with -fopenmp, which would bring the compiler's own runtime along.
    link = [runtime] if runtime else ["-fopenmp"]
    key = "\n".join([_run([compiler, "--version"]), *_FLAGS, *link, _cpu_flags(), source.read_text()])
    folder = cache_folder() / "native"
    library = folder / f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.so"
    if folder.exists():
        _check_private(folder)
    if not library.exists():
        what = "decoding engine" if source.stem == "engine" else "attention kernels"
        print(f"regard: compiling its {what} for this CPU, once (up to a minute)", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
        # A private folder, then one atomic rename: another process may be building the same file.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            object_file, made = os.path.join(scratch, "native.o"), os.path.join(scratch, "native.so")
            _run([compiler, *_FLAGS, "-fopenmp", "-c", str(source), "-o", object_file])
            _run([compiler, "-shared", object_file, *link, "-o", made])
            os.chmod(made, 0o700)
            os.replace(made, library)
    _check_private(library)
    return library


@functools.cache
def library(source: Path) -> ctypes.CDLL | str:
    """The library built from a file, or one sentence why there is none."""
    if os.environ.get("REGARD_NATIVE", "1") == "0":
        return "REGARD_NATIVE=0 switches it off"
    try:
        return ctypes.CDLL(str(_build(source)))
    except RuntimeError as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"the native library could not be built or loaded: {error}"


def check_code(code: int, what: str) -> None:
    """Turn the code that a native function returns into an error: 0 is success, 1 no memory, anything else a fault of ours."""
    if code == 1:
        raise KernelError(
            f"the native code for {what} got no memory; use smaller batches, or set REGARD_NATIVE=0 to do without it"
        )
    if code:
        raise KernelError(
            f"the native code for {what} failed (code {code}); set REGARD_NATIVE=0 to do without it, and report this"
        )
