"""Folders that are either whole or not there: written beside, checked by SHA-256, renamed into place.

A crash at any moment leaves the folders that were there before, and at most a temporary one, which the next start removes.
The list of checksums is written last, so a folder that has it and agrees with it is what was meant to be written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from regard.errors import FolderError

CHECKSUMS = "checksums.json"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
STEP = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
    """The folder of a step; eight digits, so that names sort as numbers do."""
    return f"step-{step:08d}"


def step_of(folder: Path) -> int | None:
    """The step a folder belongs to; None for a folder of another kind."""
    match = STEP.fullmatch(folder.name)
    return int(match[1]) if match else None


def steps(parent: Path) -> list[Path]:
    """The step folders in `parent`, oldest first, whole or not."""
    found = [f for f in parent.iterdir() if step_of(f) is not None] if parent.is_dir() else []
    return sorted(found, key=lambda f: step_of(f) or 0)


def commit(target: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write files into a temporary folder, and make it `target` in one move once everything is on the disk."""
    temporary = target.with_name(f".{target.name}.writing")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        fill(temporary)
        sums = {str(path.relative_to(temporary)): digest(path) for path in files(temporary)}
        write(temporary / CHECKSUMS, json.dumps(sums, indent=1).encode())
        for path in [*files(temporary), *(f for f in temporary.rglob("*") if f.is_dir()), temporary]:
            sync(path)
        if target.exists():  # a step that is done again after a damaged checkpoint
            old = target.with_name(f".{target.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
            temporary.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.rename(target)
        sync(target.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise full_disk(target.parent, error) or error from None


def full_disk(place: Path, error: BaseException) -> FolderError | None:
    """The sentence for a disk that is full; None for any other error. Safetensors gives the number in its text alone."""
    number = error.errno if isinstance(error, OSError) else None
    told = re.search(r"\(os error (\d+)\)", str(error))
    if number is None and told and type(error).__name__ == "SafetensorError":
        number = int(told[1])
    if number not in NO_ROOM:
        return None
    return FolderError(
        f"there is no room left to write to {place} ({os.strerror(number)}); free some and go on with `regard resume`"
    )


def replace(path: Path, content: bytes) -> None:
    """A file that is whole or as it was before."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        write(temporary, content)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        raise full_disk(path.parent, error) or error from None


def write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(folder: Path) -> None:
    """A FolderError that names the first file which is missing or not what was written."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        wanted = {str(name): str(value) for name, value in sums.items()}
    except (OSError, ValueError, AttributeError):
        raise FolderError(f"{folder} has no readable {CHECKSUMS}, so it was not written to the end") from None
    for name, value in wanted.items():
        try:
            found = digest(folder / name)
        except OSError as error:
            raise FolderError(f"{folder / name} cannot be read ({error.strerror})") from None
        if found != value:
            raise FolderError(f"{folder / name} is damaged: its SHA-256 is not the one it was written with")


def newest(parent: Path, say: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint. What is wrong with newer ones is said; None when there are no checkpoints at all."""
    found = steps(parent)
    for folder in reversed(found):
        try:
            verify(folder)
        except FolderError as error:
            say(f"{error}; the checkpoint before it is used")
        else:
            return folder
    if found:
        raise FolderError(f"none of the {len(found)} checkpoints in {parent} is whole; begin again with `regard train --overwrite`")
    return None


def clean(parent: Path, keep: Collection[str]) -> None:
    """Remove every folder but those named, temporary ones too."""
    if parent.is_dir():
        for folder in parent.iterdir():
            if folder.name not in keep:
                shutil.rmtree(folder, ignore_errors=True)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; a last line that was cut off is left out."""
    if path.is_file():
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    return
