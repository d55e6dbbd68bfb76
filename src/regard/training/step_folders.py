"""Folders named by step, `step-00001000`: list them, find the newest complete one, remove old ones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from regard.errors import FolderError
from regard.files.checksums import verify_complete

RESUME = "free some space, or make the folder writable, then continue with `regard resume RUN`"
STEP = re.compile(r"step-(\d{8,})")
OWN = re.compile(r"step-\d{8,}|\.step-\d{8,}\.(writing|old)")  # the names that `remove_except` may remove


def folder_name(step: int) -> str:
    """Return the folder name of a step; eight digits, so that names sort like numbers."""
    return f"step-{step:08d}"


def step_of(folder: Path) -> int | None:
    """Return the step of a folder; None for other folders."""
    match = STEP.fullmatch(folder.name)
    return int(match[1]) if match else None


def step_folders(parent: Path) -> list[Path]:
    """Return the step folders in `parent`, oldest first, complete or not."""
    folders = [f for f in parent.iterdir() if step_of(f) is not None] if parent.is_dir() else []
    return sorted(folders, key=lambda f: step_of(f) or 0)


def newest_complete(parent: Path, report: Callable[[str], None]) -> Path | None:
    """Return the newest complete checkpoint, None if there are none. Newer damaged ones are reported."""
    folders = step_folders(parent)
    for folder in reversed(folders):
        try:
            verify_complete(folder)
        except FolderError as error:
            report(f"{error}; the checkpoint before it is used")
        else:
            return folder
    if folders:
        raise FolderError(
            f"none of the {len(folders)} checkpoints in {parent} is complete; "
            "start again with `regard train RECIPE --overwrite`"
        )
    return None


def remove_except(parent: Path, keep: Collection[str] = ()) -> None:
    """Remove all step folders except `keep`, and leftovers of interrupted writes; nothing else."""
    if parent.is_dir():
        for folder in parent.iterdir():
            is_ours = OWN.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink()
            if is_ours and folder.name not in keep:
                shutil.rmtree(folder, ignore_errors=True)
