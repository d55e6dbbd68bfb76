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
OWN = re.compile(r"step-\d{8,}|\.step-\d{8,}\.(writing|old)")  # the names that `clean` may remove


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
        copy_foreign(target, temporary)
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
        raise disk_error(target.parent, error) or error from None


def disk_error(place: Path, error: BaseException) -> FolderError | None:
    """The sentence for a disk that is full or cannot be written; None for any other error. Safetensors gives the number in its
    text alone.
    """
    number = error.errno if isinstance(error, OSError) else None
    told = re.search(r"\(os error (\d+)\)", str(error))
    if number is None and told and type(error).__name__ == "SafetensorError":
        number = int(told[1])
    if number is None:
        return None
    if number not in NO_ROOM:
        return FolderError(
            f"{place} cannot be written ({os.strerror(number)}); check that it is there and writable, then try again"
        )
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
        raise disk_error(path.parent, error) or error from None


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
        raise FolderError(
            f"none of the {len(found)} checkpoints in {parent} is whole; begin again with `regard train --overwrite`"
        )
    return None


def clean(parent: Path, keep: Collection[str] = ()) -> None:
    """Remove every step folder but those named, and what `commit` left when it was killed. Other names are not ours: they stay."""
    if parent.is_dir():
        for folder in parent.iterdir():
            if (
                folder.name not in keep
                and OWN.fullmatch(folder.name)
                and folder.is_dir()
                and not folder.is_symlink()
            ):
                shutil.rmtree(folder, ignore_errors=True)


def foreign(folder: Path) -> list[Path]:
    """Files and folders at the top of a committed folder that `commit` did not write: those its checksums do not name.

    A folder without readable checksums was not committed: all of it is foreign.
    """
    try:
        own = {
            name.partition("/")[0] for name in json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        } | {CHECKSUMS}
    except (OSError, ValueError, AttributeError, TypeError):
        own = set()
    return [path for path in folder.iterdir() if path.name not in own] if folder.is_dir() else []


def copy_foreign(before: Path, now: Path) -> None:
    """Keep what others put into a folder that is about to be replaced, except where a new file has its name."""
    for path in foreign(before):
        target = now / path.name
        if target.exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, target, symlinks=True)
        else:
            shutil.copy2(path, target, follow_symlinks=False)


def remove(folder: Path) -> None:
    """Remove what `commit` wrote; a folder in which others put something stays, with that in it."""
    kept = {path.name for path in foreign(folder)}
    if not folder.is_dir() or folder.is_symlink():
        return
    for path in folder.iterdir():
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if not kept:
        folder.rmdir()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; a last line that was cut off is left out."""
    if path.is_file():
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    return
