"""SHA-256 checksums of files, and checksums.json: the list of them in a model folder, checkpoint or index."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from regard.errors import FolderError
from regard.files.cache import cache_folder

CHECKSUMS = "checksums.json"
MAX_BYTES = 1 << 24  # of a checksums.json


def file_sha256(path: Path, advance: Callable[[int], None] = lambda n: None) -> str:
    """SHA-256 of the bytes of a file; `advance` receives the bytes done, for a progress bar."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def cached_sha256(path: Path) -> str:
    """SHA-256 of a file, cached by path, device, inode, size and modification time."""
    try:
        status = path.stat()
        identity = [str(path.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
        key = hashlib.sha256(str(identity[0]).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        entry = cache_folder() / "checksums" / key
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(entry.read_bytes())
            if (
                isinstance(known, dict)
                and known.get("state") == identity
                and isinstance(known.get("sha256"), str)
            ):
                return known["sha256"]
        sha256 = file_sha256(path)
    except OSError as error:
        raise FolderError(
            f"{path} cannot be read ({error.strerror}); the folder is incomplete, so copy it again"
        ) from None
    from regard.files.atomic import write_file  # which imports this module

    with contextlib.suppress(FolderError):  # without a writable cache the file is hashed again next time
        write_file(entry, json.dumps({"state": identity, "sha256": sha256}))
    return sha256


def verify_listed(folder: Path, names: Iterable[str] | None = None) -> None:
    """Raise a FolderError that names the first file which differs from checksums.json.

    `names` are the files to check, by default all listed. A folder without checksums.json is not checked.
    Hashes are cached, so that loading a model twice reads it once.
    """
    if not (folder / CHECKSUMS).exists():
        return
    sums = _listed(folder / CHECKSUMS)
    for name in sums if names is None else names:
        if name in sums and cached_sha256(folder / name) != sums[name]:
            raise FolderError(
                f"{folder / name} is damaged: its SHA-256 is not the one in {CHECKSUMS}; copy the folder "
                f"again, or delete {CHECKSUMS} if you changed the file yourself"
            )


def verify_complete(folder: Path) -> None:
    """Raise a FolderError unless there is a checksums.json and every listed file matches. Caches nothing."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        expected = {str(name): str(value) for name, value in sums.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        raise FolderError(f"{folder} has no readable {CHECKSUMS}, so it was not written completely") from None
    for name, value in expected.items():
        try:
            sha256 = file_sha256(folder / name)
        except OSError as error:
            raise FolderError(f"{folder / name} cannot be read ({error.strerror})") from None
        if sha256 != value:
            raise FolderError(f"{folder / name} is damaged: its SHA-256 is not the one it was written with")


def _listed(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        sums = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(sums, dict) or not all(isinstance(value, str) for value in sums.values()):
            raise ValueError("it is not an object of file names and hashes")
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{path} cannot be read ({error}); copy the folder again") from None
    return sums
