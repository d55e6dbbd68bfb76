"""What travels to the GPU machine and what comes back: libraries, corpora, models in pieces."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from regard.data import corpora
from regard.errors import DataError

LIBRARIES = (
    "pydantic",
    "typer",
    "sacrebleu",
    "pyyaml",
    "pytest",
    "pytest-xdist",
    "hypothesis",
)  # the machine has torch and transformers
# A peer of benchmarks.watch, and what Hugging Face's trainer needs for benchmarks.europarl.
WITHOUT_DEPENDENCIES = ("attnread", "accelerate", "psutil")
CORPORA = ("sentence-polarity", "wnut17", "broad-twitter", "tiny-shakespeare")  # of the small companions
PLATFORM = ("--python-version", "3.12", "--platform", "manylinux2014_x86_64", "--only-binary=:all:")
PIECE = 15 << 20  # bytes of a file that comes back; the limit is 16 MiB


def gather(out: Path) -> None:
    """Download the libraries into `wheels` and copy the companions' data to `corpora`; print the sizes."""
    missing = [name for name in CORPORA if not corpora.find(name).present()]
    if missing:
        raise DataError(
            f"{corpora.data_folder()} lacks {', '.join(missing)}; set REGARD_DATA to their folder"
        )
    wheels = out / "wheels"
    if not wheels.is_dir():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "-d", str(wheels)]
        subprocess.run([*pip, *PLATFORM, *LIBRARIES], check=True)
        subprocess.run([*pip, *PLATFORM, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
        for wheel in wheels.glob("numpy-*"):  # torch brings it
            wheel.unlink()
    for name in CORPORA:
        shutil.copytree(corpora.find(name).folder, out / "corpora" / name, dirs_exist_ok=True)
    for folder in (wheels, out / "corpora", out / "data"):
        size = sum(path.stat().st_size for path in folder.glob("**/*") if path.is_file())
        print(f"{folder}: {size / 2**20:.1f} MiB")


def pack(folder: Path, out: Path) -> None:
    """Write a folder as an archive in pieces: NAME.tar.00, NAME.tar.01, …"""
    out.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(folder, folder.name)
    data = buffer.getvalue()
    starts = range(0, len(data), PIECE)
    for number, start in enumerate(starts):
        (out / f"{folder.name}.tar.{number:02}").write_bytes(data[start : start + PIECE])
    print(f"{folder.name}: {len(data) / 2**20:.1f} MiB, {len(starts)} files", flush=True)


def unpack(folder: Path, out: Path) -> None:
    """Join the pieces in a folder and extract them into `out`."""
    names = sorted({path.name[:-3] for path in folder.glob("*.tar.[0-9][0-9]")})
    if not names:
        raise DataError(f"there is no NAME.tar.00 in {folder}; give the folder of the files that came back")
    for name in names:
        data = b"".join(path.read_bytes() for path in sorted(folder.glob(f"{name}.[0-9][0-9]")))
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extractall(out, filter="data")
        print(out / name.removesuffix(".tar"))
