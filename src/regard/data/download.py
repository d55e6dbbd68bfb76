"""Fetch corpora from the public repositories that the manifest names, at pinned commits.

    from regard.data.download import get

    folder = get("sst2")  # the licence is printed first; data/sst2, or REGARD_DATA/sst2

Every download is compared with its SHA-256, converted, and compared again with the SHA-256 of our file; only
then are files written into the folder of the corpus, each of them whole. An interrupted download is a `.part`
file, resumed with an HTTP Range request. HTTPS_PROXY and NO_PROXY are respected; REGARD_MIRROR names a server
to use instead of GitHub's.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

from regard.data.conversions import convert, pack
from regard.data.corpora import Download, NamedCorpus, find
from regard.errors import DataError, OptionError
from regard.files.atomic import disk_errors, write_file
from regard.files.checksums import file_sha256
from regard.files.lock import open_locked
from regard.files.progress import track
from regard.version import __version__

OTHER_FOLDER = "free some space, or set REGARD_DATA to a folder that you can write"
HOST = "https://raw.githubusercontent.com"
BLOCK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
TRIES = 4  # in a row that bring nothing
PAUSE = 0.5  # seconds before the second try; each further one waits twice as long
Advance = Callable[[int], None]
RETRIED = (408, 429, 500, 502, 503, 504)
CONTINUE = "the same command continues where this one stopped"


class _Interrupted(Exception):
    """The connection failed in a way that may pass; not an OSError, which here is about the disk."""


def get(name: str) -> Path:
    """Fetch what is missing of a corpus and return its folder; the licence is printed first (standard error).

    Examples:

        >>> from regard.data.download import get
        >>> get("sst2")  # doctest: +SKIP
        PosixPath('data/sst2')
    """
    known = find(name)
    missing = _missing(known)
    if missing and known.by_hand:
        raise DataError(f"{name} cannot be fetched: {known.by_hand}; its files belong into {known.folder}")
    if missing:
        where = f"github.com/{known.repository}" + (f", by way of {mirror()}" if mirror() != HOST else "")
        print(f"{name}: {megabytes(known.downloads)} from {where}", file=sys.stderr)
        print(f"licence: {known.licence}; cite {known.cite}", file=sys.stderr, flush=True)
        _get(known)
    return known.folder


def _get(known: NamedCorpus) -> None:
    above = known.folder.parent
    kept, lock = above / f".{known.name}.download", above / f".{known.name}.lock"
    with disk_errors(above, OTHER_FOLDER):
        above.mkdir(parents=True, exist_ok=True)
        with open_locked(lock) or nullcontext():
            missing = _missing(known)  # another process may have fetched it meanwhile
            wanted = [each for each in known.downloads if missing & set(each.makes)]
            if wanted:
                _check_room(known, wanted, missing)
                kept.mkdir(exist_ok=True)
                _fetch_all(known, wanted, kept)
                _write(known, _converted(known, wanted, kept), missing)
                shutil.rmtree(kept, ignore_errors=True)
            lock.unlink(missing_ok=True)


def mirror() -> str:
    """The server that downloads come from: REGARD_MIRROR/OWNER/REPOSITORY/COMMIT/PATH, or GitHub's."""
    given = os.environ.get("REGARD_MIRROR", "").rstrip("/")
    if given and not given.startswith(("http://", "https://")):
        how = "give an address that begins with https:// or http://, or unset it"
        raise OptionError(f"REGARD_MIRROR is {given!r}; {how}")
    return given or HOST


def megabytes(downloads: list[Download]) -> str:
    """The size of downloads in words."""
    return f"{max(0.1, sum(each.bytes for each in downloads) / 1e6):,.1f} MB"


def download(url: str, path: Path, size: int, sha256: str, advance: Advance = lambda count: None) -> None:
    """Download a file of known size and SHA-256, or go on with what is in PATH.part.

    An OSError is about the disk; what the network does becomes a DataError.
    """
    part, failed, fresh = path.with_name(path.name + ".part"), 0, False
    while True:
        have = _length(part)
        try:
            if have != size:
                _request(url, part, have if have < size else 0, size, advance)
        except _Interrupted as error:
            failed = 0 if _length(part) > have else failed + 1
            if failed == TRIES:
                how = f"check the network and HTTPS_PROXY; {CONTINUE}"
                raise DataError(f"{url} cannot be fetched: {error}; {how}") from None
            time.sleep(PAUSE * 2 ** max(0, failed - 1))
            continue
        found = file_sha256(part)
        if found == sha256:
            part.replace(path)
            return
        part.unlink()
        if have == 0 or fresh:
            raise _other_bytes(url, f"SHA-256 {found[:12]}…, not {sha256[:12]}…")
        fresh = True  # what was there before may have been wrong, so once more from the start


def _other_bytes(url: str, what: str) -> DataError:
    how = "a proxy or mirror may have changed them: try without it, or set REGARD_MIRROR to another server"
    return DataError(f"{url} gives other bytes than the manifest names ({what}); {how}")


def _missing(known: NamedCorpus) -> set[str]:
    """The files to fetch. One that is there and is not what the manifest names is never replaced."""
    states = {finding.file: finding.state for finding in known.check()}
    changed = [file for file, state in states.items() if state == "differs"]
    if changed:
        path = known.folder / changed[0]
        raise DataError(
            f"{path} is there and is not the file of the manifest; move it away, then fetch again"
        )
    return {file for file, state in states.items() if state == "missing"}


def _check_room(known: NamedCorpus, wanted: list[Download], missing: set[str]) -> None:
    folder = known.folder.parent
    needed = sum(each.bytes for each in wanted) + sum(known.file(file)["bytes"] for file in missing)
    if (free := shutil.disk_usage(folder).free) < needed:
        how = "free some space, or set REGARD_DATA to a folder on another disk"
        free_mb, needed_mb = f"{free / 1e6:,.1f} MB", f"{needed / 1e6:,.1f} MB"
        raise DataError(f"{folder} has {free_mb} free and {known.name} needs {needed_mb}; {how}")


def _fetch_all(known: NamedCorpus, wanted: list[Download], kept: Path) -> None:
    """Download what is missing; files are kept under their SHA-256, never mixed with another commit's."""
    left = [each for each in wanted if not (kept / each.sha256).is_file()]
    come = sum(_length(kept / f"{each.sha256}.part") for each in left)
    with track(sum(each.bytes for each in left) - come, f"fetching {known.name}", "bytes") as progress:
        for each in left:
            url = f"{mirror()}/{known.repository}/{known.commit}/{quote(each.path)}"
            download(url, kept / each.sha256, each.bytes, each.sha256, progress.advance)


def _converted(known: NamedCorpus, wanted: list[Download], kept: Path) -> Iterator[tuple[str, bytes]]:
    """The files of the corpus by name, each compared with the manifest."""
    for each in wanted:
        data = (kept / each.sha256).read_bytes()
        if hashlib.sha256(data).hexdigest() != each.sha256:
            (kept / each.sha256).unlink()
            where = kept / each.sha256
            raise DataError(f"{where} changed on the disk and was removed; give the same command again")
        for file, steps in each.makes.items():
            text = convert(data, steps)
            if hashlib.sha256(text).hexdigest() != known.file(file)["text"]:
                what = f"{file} of {known.name} as the manifest names it"
                raise DataError(f"{each.path} does not give {what}; please report it")
            yield file, text


def _write(known: NamedCorpus, converted: Iterator[tuple[str, bytes]], missing: set[str]) -> None:
    made = {}
    with track(len(missing), f"converting {known.name}", "files") as progress:
        for file, text in converted:
            if file in missing:
                made[file] = pack(text, known.file(file)["as"])
                progress.advance()
    for file, data in made.items():  # all of them were right
        write_file(known.folder / (file + known.file(file)["as"]), data, OTHER_FOLDER)


def _request(url: str, part: Path, start: int, size: int, advance: Advance) -> None:
    """Append to `part` what is missing of it, or write it anew where the server sends the whole file."""
    headers = {"User-Agent": f"regard/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    opener = urllib.request.build_opener()  # reads the proxy settings of the environment
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is of another file
            part.unlink(missing_ok=True)
            raise _Interrupted("the server has no more bytes") from None
        if error.code in RETRIED:
            raise _Interrupted(f"the server answers {error.code} ({error.reason})") from None
        how = "set REGARD_MIRROR to a server that has it, or see `regard data` for other corpora"
        answer = f"the server answers {error.code} ({error.reason})"
        raise DataError(f"{url} cannot be fetched: {answer}; {how}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Interrupted(_reason(error)) from None
    with response:
        said = response.headers.get("Content-Range" if response.status == 206 else "Content-Length", "")
        total = said.rpartition("/")[2]
        if total.isdigit() and int(total) != size:
            part.unlink(missing_ok=True)
            raise _other_bytes(url, f"{int(total):,} of them, not {size:,}")
        goes_on = response.status == 206 and said.startswith(f"bytes {start}-")
        with part.open("ab" if goes_on else "wb") as file:
            for block in _blocks(response, size + 1 - (start if goes_on else 0)):
                file.write(block)
                advance(len(block))
    if _length(part) < size:
        raise _Interrupted(f"the connection ended after {_length(part):,} of {size:,} bytes")


def _blocks(response: Any, most: int) -> Iterator[bytes]:
    """What comes, but no more than a byte too much."""
    try:
        while most > 0 and (block := response.read1(min(BLOCK, most))):
            most -= len(block)
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(_reason(error)) from None


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
