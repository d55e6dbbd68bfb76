"""The cache of prepared data: list entries, keep those in use, remove old ones.

cache/prepared/KEY/      tokens of a dataset (see `prepare`)
cache/tokenizers/KEY/    trained vocabularies
cache/distilled/KEY/     translations by a teacher (see `distilled_rows`)
cache/…/KEY.used         what made the entry, one JSON line. Its modification time is the last use; a
                         shared lock on it means "in use"
cache/…/KEY.lock         locked while KEY is built (see `build_folder`)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.distilled_rows import TeacherTranslations
from regard.data.prepare import Prepared
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError, RegardError
from regard.files.cache import cache_folder
from regard.files.lock import open_locked

KINDS = {
    "prepared": "data",
    "tokenizers": "tokenizer",
    "distilled": "translations",
}  # folder: what its entries are


@dataclass(frozen=True)
class Entry:
    """One entry of the cache."""

    path: Path
    kind: str  # data, tokenizer, translations, or unfinished: left by a process that was killed
    size: int  # bytes
    last_used: float  # seconds since 1970
    made_by: str
    in_use: bool

    @property
    def age(self) -> float:
        """Seconds since the last use."""
        return max(0.0, time.time() - self.last_used)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "path": str(self.path)}


def hold(prepared: Prepared | TeacherTranslations, made_by: str) -> bool:
    """Protect a dataset from pruning as long as the object lives. Return False if it was just pruned."""
    with contextlib.suppress(OSError):  # a read-only cache cannot be pruned either
        file = open_locked(_used_file(prepared.folder), shared=True)
        if file is not None:
            weakref.finalize(prepared, file.close)
            file.seek(0)
            if not file.read(1):
                file.write((json.dumps({"made_by": made_by}, ensure_ascii=False) + "\n").encode())
                file.flush()
            os.utime(file.fileno())
        return (prepared.folder / "meta.json").is_file()
    return True


def entries() -> list[Entry]:
    """All entries of the cache, least recently used first."""
    mapped = _mapped_files(cache_folder())
    unsorted = []
    for name, kind in KINDS.items():
        parent = cache_folder() / name
        for path in parent.iterdir() if parent.is_dir() else ():
            if path.is_dir():
                with contextlib.suppress(FileNotFoundError):  # removed by another process
                    unsorted.append(_entry(path, "unfinished" if ".tmp-" in path.name else kind, mapped))
    return sorted(unsorted, key=lambda entry: entry.last_used)


def prune(older_than: float | None = None, max_size: int | None = None) -> list[Entry]:
    """Remove entries not used for `older_than` seconds, then the least recently used until `max_size` bytes
    are left.

    What a running process uses or builds stays. Returns what was removed.
    """
    removed = []
    all_entries = entries()
    total = sum(entry.size for entry in all_entries)
    for entry in all_entries:
        old = older_than is not None and entry.age >= older_than
        large = max_size is not None and total > max_size
        if (old or large) and not entry.in_use and _remove(entry):
            removed.append(entry)
            total -= entry.size
    return removed


def _remove(entry: Entry) -> bool:
    """Remove an entry unless it is in use or being built."""
    path = entry.path
    key = path.with_name(path.name.partition(".tmp-")[0])
    try:
        with contextlib.ExitStack() as stack:
            for name in (key.with_name(key.name + ".lock"), _used_file(key)):
                lock = open_locked(name, wait=False)
                if lock is None:
                    return False
                stack.enter_context(lock)
            doomed = path if ".tmp-" in path.name else path.with_name(f"{path.name}.tmp-pruned")
            if doomed != path:
                shutil.rmtree(doomed, ignore_errors=True)
                path.rename(doomed)  # atomic, so that no process sees a partly deleted entry
            shutil.rmtree(doomed)
            _used_file(key).unlink(missing_ok=True)
    except FileNotFoundError:  # another process was faster
        return False
    except OSError as error:
        raise DataError(f"{path} cannot be removed ({error.strerror or error}); remove it yourself") from None
    return True


def _entry(path: Path, kind: str, mapped: set[str]) -> Entry:
    files = [file for file in path.rglob("*") if file.is_file()]
    stats = [file.stat() for file in files]
    used_file = _used_file(path)
    times = [
        path.stat().st_mtime,
        *(max(s.st_mtime, s.st_atime) for s in stats),
        *([used_file.stat().st_mtime] if used_file.is_file() else []),
    ]
    used = any(str(file) in mapped or str(file.resolve()) in mapped for file in files)
    return Entry(
        path, kind, sum(s.st_size for s in stats), max(times), _made_by(path, kind), used or _is_held(path)
    )


def _is_held(path: Path) -> bool:
    key = path.with_name(path.name.partition(".tmp-")[0])
    for name in (key.with_name(key.name + ".lock"), _used_file(key)):
        if name.is_file():
            with contextlib.suppress(OSError):
                lock = open_locked(name, wait=False)
                if lock is None:
                    return True
                lock.close()
    return False


def _made_by(path: Path, kind: str) -> str:
    """The description beside an entry, or one made from its files."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RegardError):
        if kind == "unfinished":
            return "a process that was killed"
        if _used_file(path).is_file():
            return str(json.loads(_used_file(path).read_text(encoding="utf-8").splitlines()[0])["made_by"])
        if kind == "data":
            with _times_kept(path / "meta.json") as file:
                meta = json.loads(file.read_text(encoding="utf-8"))
            return f"{meta['rows']:,} {'pairs' if meta['paired'] else 'lines'}"
        with contextlib.ExitStack() as stack:
            tokenizers = [
                Tokenizer.load(stack.enter_context(_times_kept(file))) for file in sorted(path.glob("*.json"))
            ]
        return " and ".join(f"{len(tokenizer):,} {tokenizer.kind} entries" for tokenizer in tokenizers)
    return "unknown"


@contextlib.contextmanager
def _times_kept(path: Path) -> Iterator[Path]:
    """Restore the access and modification times of a file after reading it: they are its last use."""
    before = path.stat()
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _used_file(folder: Path) -> Path:
    return folder.with_name(folder.name + ".used")


def _mapped_files(under: Path) -> set[str]:
    """Files under a folder that some process has memory-mapped (Linux): datasets used without `hold`."""
    mapped: set[str] = set()
    names = {str(under), str(under.resolve())}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(encoding="utf-8", errors="replace")
            if any(name in text for name in names):
                mapped |= {
                    line.split(maxsplit=5)[-1]
                    for line in text.splitlines()
                    if any(name in line for name in names)
                }
    return mapped
