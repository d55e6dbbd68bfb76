"""Atomic writes: a file or folder is complete or as it was before, even after a crash or a power failure.

`atomic_path` and `write_file` write one file. `replace_file` moves a file into place that was written bit by
bit, such as a resumable download. `write_folder` replaces a folder and writes its checksums.json.
`build_folder` builds a folder of a cache once, however many processes need it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from regard.errors import FolderError, OptionError
from regard.files.checksums import CHECKSUMS, file_sha256
from regard.files.lock import lock_file

MAKE_ROOM = "free some space, or make the folder writable"


@contextlib.contextmanager
def atomic_path(path: Path, fix: str = MAKE_ROOM) -> Iterator[Path]:
    """Yield a temporary path beside `path`; if the block succeeds, the file written there replaces `path`.

    If the block fails, the temporary file is deleted and `path` stays as it was. A disk error becomes a
    FolderError that ends with `fix`. A link stays a link: what it points to is replaced. A device, a pipe or
    an open file (`is_stream`) is written to.
    """
    with disk_errors(path, fix):
        if is_stream(path):
            with tempfile.TemporaryDirectory() as folder:
                temporary = Path(folder, path.name)
                yield temporary
                with os.fdopen(open_stream(path), "wb") as stream:
                    stream.write(temporary.read_bytes())
            return
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            os.chmod(temporary, 0o644)  # mkstemp creates files that only their owner can read
            replace_file(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


_OPEN_FILE = re.compile(r"/(proc/[^/]+|dev)/fd/\d+")


def is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe, or a name of an open file, such as /dev/stdout, also as a link.

    These are written to; a new file in their place would not be what the caller reads.
    """
    for _ in range(40):  # links of links
        place = os.path.abspath(path)
        if _OPEN_FILE.fullmatch(place):
            return True
        if not os.path.islink(place):
            return os.path.exists(place) and not os.path.isfile(place) and not os.path.isdir(place)
        path = Path(os.path.dirname(place), os.readlink(place))
    return False


def open_stream(path: Path) -> int:
    """Open a device, a pipe or an open file for writing; return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_APPEND)


def check_output(path: Path) -> None:
    """Raise OptionError for an output file that is a folder, or in a folder that does not exist."""
    if path.is_dir():
        raise OptionError(f"{path} is a folder; name a file in it")
    if not is_stream(path) and not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written, its folder does not exist; create it first")


def replace_file(temporary: Path, path: Path) -> None:
    """Rename a complete file to `path`; its content is on the disk before the new name is."""
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def write_file(path: Path, content: str | bytes, fix: str = MAKE_ROOM) -> None:
    """Write a file atomically; text as UTF-8."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    with atomic_path(path, fix) as temporary:
        temporary.write_bytes(data)


def write_folder(target: Path, fill: Callable[[Path], None], fix: str = MAKE_ROOM) -> None:
    """Let `fill` write files into a temporary folder, add their checksums, and rename the folder to `target`.

    Files that others put into an existing `target` are copied into the new folder.
    """
    temporary = target.with_name(f".{target.name}.writing")
    with disk_errors(target.parent, fix):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            fill(temporary)
            sums = {str(path.relative_to(temporary)): file_sha256(path) for path in files_in(temporary)}
            (temporary / CHECKSUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
            copy_foreign(target, temporary)
            for path in [*files_in(temporary), *(f for f in temporary.rglob("*") if f.is_dir()), temporary]:
                sync(path)
            _replace_folder(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync(target.parent)


def _replace_folder(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    target.rename(old)
    temporary.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def build_folder(
    final: Path, is_complete: Callable[[Path], bool], build: Callable[[Path], None], fix: str = MAKE_ROOM
) -> None:
    """Make sure that `final` is a complete folder: keep it if it is, else build one and rename it into place.

    If several processes need the same folder, one builds it and the others wait; if it dies, the next builds.
    On a file system without locks all of them build, and the first to finish wins; the content is the same.
    """
    if is_complete(final):
        return
    with disk_errors(final.parent, fix):
        final.parent.mkdir(parents=True, exist_ok=True)
        with final.with_name(final.name + ".lock").open("a") as file:
            locked = lock_file(file)
            if is_complete(final):
                return
            if locked:  # left by a killed process; without a lock another process could still be writing it
                for leftover in final.parent.glob(f"{final.name}.tmp-*"):
                    shutil.rmtree(leftover, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(prefix=f"{final.name}.tmp-", dir=final.parent))
            try:
                build(temporary)
                _move_into_place(temporary, final, is_complete)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


def _move_into_place(temporary: Path, final: Path, is_complete: Callable[[Path], bool]) -> None:
    os.chmod(temporary, 0o755)
    for _ in range(2):
        with contextlib.suppress(OSError):
            os.rename(temporary, final)
        if is_complete(final):
            return
        shutil.rmtree(final, ignore_errors=True)  # damaged, or written by an older version
    os.rename(temporary, final)  # raises the reason


@contextlib.contextmanager
def disk_errors(place: Path, fix: str = MAKE_ROOM) -> Iterator[None]:
    """Errors of the disk inside the block become a FolderError that names `place` and ends with `fix`."""
    try:
        yield
    except BaseException as error:
        raise disk_error(place, error, fix) or error from None


def disk_error(place: Path, error: BaseException, fix: str = MAKE_ROOM) -> FolderError | None:
    """The FolderError for an error of the disk (full, read-only, …); None for any other error.

    Safetensors reports the error number only in its message.
    """
    number = error.errno if isinstance(error, OSError) else None
    in_message = re.search(r"\(os error (\d+)\)", str(error))
    if number is None and in_message and type(error).__name__ == "SafetensorError":
        number = int(in_message[1])
    if number is None:
        return None
    return FolderError(f"{place} cannot be written ({os.strerror(number)}); {fix}")


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def foreign(folder: Path) -> list[Path]:
    """Files and folders at the top of `folder` that are not listed in its checksums.json.

    In a folder without readable checksums everything is foreign.
    """
    try:
        listed = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        own = {name.partition("/")[0] for name in listed} | {CHECKSUMS}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        own = set()
    return [path for path in folder.iterdir() if path.name not in own] if folder.is_dir() else []


def copy_foreign(old: Path, new: Path) -> None:
    """Copy the foreign files of `old` into `new`, except where `new` has a file of that name."""
    for path in foreign(old):
        target = new / path.name
        if target.exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, target, symlinks=True)
        else:
            shutil.copy2(path, target, follow_symlinks=False)


def remove_folder(folder: Path) -> None:
    """Remove what `write_folder` wrote; foreign files stay, and then the folder too."""
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
