"""File locks (flock). A lock ends with its process, however the process ends.

Windows and some network file systems have no flock: there, locks have no effect.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import IO, BinaryIO

from regard.errors import FolderError

NAME = ".lock"


def lock_file(file: IO[str] | IO[bytes] | int, *, shared: bool = False, wait: bool = True) -> bool | None:
    """Lock an open file or folder. True: locked. False: another process holds it. None: no lock support."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(file, operation)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # some network file systems
        return None
    return True


def open_locked(path: Path, *, shared: bool = False, wait: bool = True) -> BinaryIO | None:
    """Open a lock file for reading and appending, and lock it; None if another process holds it.

    If the holder deletes the file, a new one is opened, so that two processes never lock different files.
    """
    while True:
        file = open(path, "a+b")  # noqa: SIM115 (the caller closes it)
        if lock_file(file, shared=shared, wait=wait) is False:
            file.close()
            return None
        try:
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        file.close()


class RunLock:
    """The lock of a run folder: `.lock` names the process that holds it, and is deleted on release.

    A killed process leaves the file but not the lock, so the next process can take it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self._file: BinaryIO | None = None

    def acquire(self) -> None:
        """Take the lock, or raise a FolderError that names its holder. Repeated calls do nothing."""
        if self._file is not None:
            return
        try:
            file = open_locked(self.path, wait=False)
        except OSError as error:
            raise FolderError(
                f"{self.folder} cannot be written ({error.strerror or error}), and training writes its "
                "checkpoints there; make it writable, or copy the run to a disk that is"
            ) from None
        if file is None:
            raise FolderError(
                f"{self.folder} is in use by {lock_owner(self.path)}; wait for it to end, or stop it first"
            )
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        file.flush()
        self._file = file

    def release(self) -> None:
        """Release the lock. The file is deleted first, so a waiting process notices and opens a new one."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def in_use(folder: Path) -> bool:
    """Whether a process holds the lock of a run folder; False where there are no locks."""
    try:
        with (folder / NAME).open("rb") as file:
            return lock_file(file, shared=True, wait=False) is False
    except OSError:
        return False


def lock_owner(path: Path) -> str:
    """`process 123 on host x`, from the lock file."""
    try:
        holder = json.loads(path.read_bytes())
        return f"process {holder['pid']} on host {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
