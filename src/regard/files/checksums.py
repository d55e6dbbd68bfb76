"""SHA-256 of files against the checksums.json beside them; a file that has not changed since it was hashed is not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from regard.errors import DataError, FolderError
from regard.files.store import cache_folder, file_sha256, write_atomically

CHECKSUMS = "checksums.json"
LARGEST = 1 << 24  # bytes of a list of checksums


def verify(folder: Path, names: Iterable[str] | None = None) -> None:
    """Raise a FolderError that names the first file whose bytes are not those that were written.

    `names` are the files to check, all that are listed unless given. A folder without a list is not checked.
    """
    if not (folder / CHECKSUMS).exists():
        return
    sums = _listed(folder / CHECKSUMS)
    for name in sums if names is None else names:
        if name in sums and digest(folder / name) != sums[name]:
            raise FolderError(
                f"{folder / name} is damaged: its SHA-256 is not the one in {CHECKSUMS}; copy the folder again, "
                f"or delete {CHECKSUMS} if you changed the file yourself"
            )


def digest(path: Path) -> str:
    """SHA-256 of a file, remembered in the cache directory by device, inode, size and time of the last change."""
    try:
        facts = path.stat()
        state = [str(path.resolve()), facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns]
        memory = (
            cache_folder()
            / "checksums"
            / hashlib.sha256(str(state[0]).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        )
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(memory.read_bytes())
            if (
                isinstance(known, dict)
                and known.get("state") == state
                and isinstance(known.get("sha256"), str)
            ):
                return known["sha256"]
        found = file_sha256(path)
    except OSError as error:
        raise FolderError(
            f"{path} cannot be read ({error.strerror}); the folder is incomplete, so copy it again"
        ) from None
    with contextlib.suppress(OSError, DataError):  # a cache that cannot be written only costs time
        write_atomically(memory, json.dumps({"state": state, "sha256": found}))
    return found


def _listed(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError("it is no list of names and hashes")
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{path} cannot be read ({error}); copy the folder again") from None
    return found
