"""One process per run folder: a lock that ends with the process, however it ends."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import BinaryIO

from regard.errors import FolderError

NAME = ".lock"
NO_LOCKS = {
    errno.ENOLCK,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EINVAL,
}  # of some network file systems


class RunLock:
    """The lock of a run folder (flock on `.lock`, which names its owner). The file is removed on release.

    A killed process leaves the file but not the lock, so the next one takes it. Systems without flock lock nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self._file: BinaryIO | None = None

    def acquire(self) -> None:
        """Take the lock, or raise a FolderError that names the process which has it. Taking it again does nothing."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        while self._file is None:
            try:
                file = open(self.path, "a+b")  # noqa: SIM115 (closed by release)
            except OSError as error:
                raise FolderError(
                    f"{self.folder} cannot be written ({error.strerror or error}), and training writes its checkpoints there; "
                    "make it writable, or copy the run to a disk that is"
                ) from None
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.close()
                if error.errno in NO_LOCKS:
                    return
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                raise FolderError(
                    f"{self.folder} is in use by {owner(self.path)}; wait for it to end, or stop it first"
                ) from None
            if not self._is_current(file):  # its owner removed it between our open and our lock
                file.close()
                continue
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
            file.flush()
            self._file = file

    def _is_current(self, file: BinaryIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the lock back. Removing the file first is safe: who opened it before sees that it is gone and tries again."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def owner(path: Path) -> str:
    """`process 123 on host x`, as the lock file says."""
    try:
        found = json.loads(path.read_bytes())
        return f"process {found['pid']} on host {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
