"""Compile C++ with the machine's compiler on first use and cache the library: optional, never at import."""

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
from regard.files.atomic import replace_file
from regard.files.cache import CACHE_HINT, cache_folder

_FLAGS = ["-O3", "-march=native", "-std=c++17", "-fPIC", "-fno-math-errno", "-ffp-contract=fast"]
_SECONDS = 300  # for one run of the compiler


def _check_private(path: Path) -> None:
    """Refuse to load code that others could have written: only this user may own and write it."""
    status = path.stat()
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise RuntimeError(
            f"{path} belongs to another user, so its code is not loaded; "
            "delete it, or set REGARD_CACHE to a folder of yours"
        )
    if os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RuntimeError(
            f"others may write to {path}, so its code is not loaded; "
            "chmod go-w it, or set REGARD_CACHE to another folder"
        )


def _compiler() -> str | None:
    names = [os.environ.get("CXX"), "g++", "clang++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _openmp_runtime() -> str | None:
    """The OpenMP library that torch uses; two OpenMP runtimes in one process would compete for the cores.

    The one in torch's folder comes first. Libraries that other packages have loaded (scikit-learn brings its
    own) must not change the choice, or a process with them would compile again.
    """
    bundled = sorted(glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libgomp*.so*")))
    if bundled:
        return bundled[0]
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            loaded = sorted({line.split(maxsplit=5)[-1].strip() for line in maps if "libgomp" in line})
    except OSError:
        return None
    return next(
        (path for path in loaded if os.path.basename(path).startswith("libgomp") and os.path.exists(path)),
        None,
    )


def _cpu_flags() -> str:
    """The processor's instruction sets, part of the cache key."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
            return next((line for line in info if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        import platform

        return platform.machine() + platform.processor()


def lacks(*instructions: str) -> str | None:
    """The first of these instruction sets that the processor lacks; None if it has all or this is unknown."""
    flags = _cpu_flags().lower()
    if not flags.startswith("flags"):  # Linux on x86
        return None
    return next((name for name in instructions if name not in flags.split()), None)


def _run(command: list[str]) -> str:
    process = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=_SECONDS
    )
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.strip()] or ["no message"]
        errors = [line for line in lines if "error" in line] or lines  # not the source excerpts around them
        raise RuntimeError(f"the compiler failed: {errors[-1].strip()}")
    return process.stdout


def _build(source: Path) -> Path:
    """Path of the compiled library; compiles it unless it is cached."""
    compiler, runtime = _compiler(), _openmp_runtime()
    if compiler is None:
        raise RuntimeError("no C++ compiler (g++ or clang++) was found on PATH")
    # Linked by name, not with -fopenmp, which would link the compiler's own runtime.
    link = [runtime] if runtime else ["-fopenmp"]
    code = source.read_text(encoding="utf-8")
    key = "\n".join([_run([compiler, "--version"]), *_FLAGS, *link, _cpu_flags(), code])
    folder = cache_folder() / "native"
    library = folder / f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.so"
    if folder.exists():
        _check_private(folder)
    if not library.exists():
        what = "decoding engine" if source.stem == "engine" else "attention kernels"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_private(folder)
            # Build in a temporary folder, then rename atomically: another process may be building the file.
            temporary = tempfile.TemporaryDirectory(dir=folder)
        except OSError as error:
            raise RuntimeError(f"{folder} cannot be written ({error.strerror}); {CACHE_HINT}") from None
        print(f"regard: compiling its {what} for this CPU, once (up to a minute)", file=sys.stderr)
        with temporary as scratch:
            object_file, shared = Path(scratch) / "native.o", Path(scratch) / "native.so"
            _run([compiler, *_FLAGS, "-fopenmp", "-c", str(source), "-o", str(object_file)])
            _run([compiler, "-shared", str(object_file), *link, "-o", str(shared)])
            shared.chmod(0o700)
            replace_file(shared, library)
    _check_private(library)
    return library


@functools.cache
def library(source: Path) -> ctypes.CDLL | str:
    """The library compiled from a file, or a sentence why there is none."""
    if os.environ.get("REGARD_NATIVE", "1") == "0":
        return "REGARD_NATIVE=0 switches it off"
    try:
        return ctypes.CDLL(str(_build(source)))
    except RuntimeError as error:
        return str(error)
    except subprocess.TimeoutExpired as error:
        return f"the compiler did not finish in {error.timeout:.0f} seconds; try again on a less busy machine"
    except (OSError, subprocess.SubprocessError) as error:
        return f"the native library could not be built or loaded: {error}"


def check_code(code: int, what: str) -> None:
    """Raise an error for a native return code: 0 success, 1 out of memory, other codes are bugs."""
    if code == 1:
        raise KernelError(
            f"the native code for {what} got no memory; "
            "use smaller batches, or set REGARD_NATIVE=0 to disable it"
        )
    if code:
        raise KernelError(
            f"the native code for {what} failed (code {code}); "
            "set REGARD_NATIVE=0 to disable it, and report this"
        )
