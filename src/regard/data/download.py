"""Fetch corpora from the public repositories that the manifest names, at pinned commits.

    from regard.data.download import get

    folder = get("sst2")  # the licence is printed first; data/sst2, or REGARD_DATA/sst2

Every download is checked against its SHA-256, converted, and the result is checked against the SHA-256 of our
file. Only then are files written, atomically, into the folder of the corpus. An interrupted download is a
`.part` file, which is resumed with an HTTP Range request. HTTPS_PROXY and NO_PROXY are respected;
REGARD_MIRROR names a server to use instead of GitHub's.
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
from regard.files.atomic import disk_errors, replace_file, write_file
from regard.files.checksums import file_sha256
from regard.files.lock import open_locked
from regard.files.progress import track
from regard.version import __version__

DISK_HINT = "free some space, or set REGARD_DATA to a folder that you can write"
HOST = "https://raw.githubusercontent.com"
BLOCK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
TRIES = 4  # consecutive attempts without a new byte before giving up
PAUSE = 0.5  # seconds before the second attempt; doubled before each further one
Advance = Callable[[int], None]  # reports the number of bytes received
RETRIED_CODES = (408, 429, 500, 502, 503, 504)  # HTTP status codes of temporary errors
RESUME_HINT = "run the same command again to resume"


class _Interrupted(Exception):
    """A temporary failure of the connection. Not an OSError, because here that means a disk error."""


def get(name: str) -> Path:
    """Fetch the missing files of a corpus and return its folder; print the licence first, on standard error.

    Examples:

        >>> from regard.data.download import get
        >>> get("sst2")  # doctest: +SKIP
        PosixPath('data/sst2')
    """
    corpus = find(name)
    missing = _missing(corpus)
    if missing and corpus.by_hand:
        raise DataError(f"{name} cannot be fetched: {corpus.by_hand}; put its files into {corpus.folder}")
    if missing:
        server = f"github.com/{corpus.repository}" + (f", through {mirror()}" if mirror() != HOST else "")
        print(f"{name}: {megabytes(corpus.downloads)} from {server}", file=sys.stderr)
        print(f"licence: {corpus.licence}; cite {corpus.cite}", file=sys.stderr, flush=True)
        _get(corpus)
    return corpus.folder


def _get(corpus: NamedCorpus) -> None:
    parent = corpus.folder.parent
    folder, lock = parent / f".{corpus.name}.download", parent / f".{corpus.name}.lock"
    with disk_errors(parent, DISK_HINT):
        parent.mkdir(parents=True, exist_ok=True)
        with open_locked(lock) or nullcontext():
            missing = _missing(corpus)  # another process may have fetched it meanwhile
            downloads = [source for source in corpus.downloads if missing & set(source.makes)]
            if downloads:
                _check_disk_space(corpus, downloads, missing)
                folder.mkdir(exist_ok=True)
                _fetch_all(corpus, downloads, folder)
                _write(corpus, _converted(corpus, downloads, folder), missing)
                shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def mirror() -> str:
    """The server that downloads come from: REGARD_MIRROR/OWNER/REPOSITORY/COMMIT/PATH, or GitHub's."""
    server = os.environ.get("REGARD_MIRROR", "").rstrip("/")
    if server and not server.startswith(("http://", "https://")):
        fix = "give an address that begins with https:// or http://, or unset it"
        raise OptionError(f"REGARD_MIRROR is {server!r}; {fix}")
    return server or HOST


def megabytes(downloads: list[Download]) -> str:
    """The total size of downloads, as text."""
    return f"{max(0.1, sum(source.bytes for source in downloads) / 1e6):,.1f} MB"


def download(url: str, path: Path, size: int, sha256: str, advance: Advance = lambda count: None) -> None:
    """Download a file of known size and SHA-256; resume from PATH.part if that exists.

    A failure of the network is a DataError; an OSError means a disk error.
    """
    part, failures, restarted = path.with_name(path.name + ".part"), 0, False
    while True:
        length = _length(part)
        try:
            if length != size:
                _request(url, part, length if length < size else 0, size, advance)
        except _Interrupted as error:
            failures = 0 if _length(part) > length else failures + 1
            if failures == TRIES:
                fix = f"check the network and HTTPS_PROXY; {RESUME_HINT}"
                raise DataError(f"{url} cannot be fetched: {error}; {fix}") from None
            time.sleep(PAUSE * 2 ** max(0, failures - 1))
            continue
        checksum = file_sha256(part)
        if checksum == sha256:
            replace_file(part, path)
            return
        part.unlink()
        if length == 0 or restarted:
            raise _wrong_bytes(url, f"SHA-256 {checksum[:12]}…, not {sha256[:12]}…")
        restarted = True  # the earlier part may have been damaged: download once more from the start


def _wrong_bytes(url: str, difference: str) -> DataError:
    fix = "a proxy or mirror may have changed them: try without it, or set REGARD_MIRROR to another server"
    return DataError(f"{url} does not have the bytes that the manifest names ({difference}); {fix}")


def _missing(corpus: NamedCorpus) -> set[str]:
    """The files to fetch. A file that exists and differs from the manifest is never replaced."""
    states = {status.file: status.state for status in corpus.check()}
    changed = [file for file, state in states.items() if state == "differs"]
    if changed:
        path = corpus.folder / changed[0]
        raise DataError(
            f"{path} exists and differs from the file of the manifest; move it away, then fetch again"
        )
    return {file for file, state in states.items() if state == "missing"}


def _check_disk_space(corpus: NamedCorpus, downloads: list[Download], missing: set[str]) -> None:
    folder = corpus.folder.parent
    needed = sum(source.bytes for source in downloads) + sum(corpus.file(file)["bytes"] for file in missing)
    if (free := shutil.disk_usage(folder).free) < needed:
        fix = "free some space, or set REGARD_DATA to a folder on another disk"
        free_mb, needed_mb = f"{free / 1e6:,.1f} MB", f"{needed / 1e6:,.1f} MB"
        raise DataError(f"{folder} has {free_mb} free and {corpus.name} needs {needed_mb}; {fix}")


def _fetch_all(corpus: NamedCorpus, downloads: list[Download], folder: Path) -> None:
    """Download the missing files, named by their SHA-256 so that files of two commits are never mixed."""
    pending = [source for source in downloads if not (folder / source.sha256).is_file()]
    done = sum(_length(folder / f"{source.sha256}.part") for source in pending)
    with track(
        sum(source.bytes for source in pending) - done, f"fetching {corpus.name}", "bytes"
    ) as progress:
        for source in pending:
            url = f"{mirror()}/{corpus.repository}/{corpus.commit}/{quote(source.path)}"
            download(url, folder / source.sha256, source.bytes, source.sha256, progress.advance)


def _converted(corpus: NamedCorpus, downloads: list[Download], folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of the corpus, checked against the manifest."""
    for source in downloads:
        data = (folder / source.sha256).read_bytes()
        if hashlib.sha256(data).hexdigest() != source.sha256:
            (folder / source.sha256).unlink()
            path = folder / source.sha256
            raise DataError(f"{path} changed on the disk and was removed; run the same command again")
        for file, steps in source.makes.items():
            text = convert(data, steps)
            if hashlib.sha256(text).hexdigest() != corpus.file(file)["text"]:
                expected = f"{file} of {corpus.name} as the manifest names it"
                raise DataError(f"{source.path} does not give {expected}; please report it")
            yield file, text


def _write(corpus: NamedCorpus, converted: Iterator[tuple[str, bytes]], missing: set[str]) -> None:
    packed = {}
    with track(len(missing), f"converting {corpus.name}", "files") as progress:
        for file, text in converted:
            if file in missing:
                packed[file] = pack(text, corpus.file(file)["as"])
                progress.advance()
    for file, data in packed.items():  # only after all files passed their checks
        write_file(corpus.folder / (file + corpus.file(file)["as"]), data, DISK_HINT)


def _request(url: str, part: Path, start: int, size: int, advance: Advance) -> None:
    """Append the missing bytes to `part`, or rewrite it if the server sends the complete file."""
    headers = {"User-Agent": f"regard/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    opener = urllib.request.build_opener()  # reads the proxy settings of the environment
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # Range Not Satisfiable: the part belongs to another file
            part.unlink(missing_ok=True)
            raise _Interrupted("the server has no more bytes") from None
        if error.code in RETRIED_CODES:
            raise _Interrupted(f"the server answers {error.code} ({error.reason})") from None
        fix = "set REGARD_MIRROR to a server that has it, or see `regard data` for other corpora"
        answer = f"the server answers {error.code} ({error.reason})"
        raise DataError(f"{url} cannot be fetched: {answer}; {fix}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Interrupted(_reason(error)) from None
    with response:
        length_header = response.headers.get(
            "Content-Range" if response.status == 206 else "Content-Length", ""
        )
        total = length_header.rpartition("/")[2]
        if total.isdigit() and int(total) != size:
            part.unlink(missing_ok=True)
            raise _wrong_bytes(url, f"{int(total):,} of them, not {size:,}")
        is_continued = response.status == 206 and length_header.startswith(f"bytes {start}-")
        with part.open("ab" if is_continued else "wb") as file:
            for block in _blocks(response, size + 1 - (start if is_continued else 0)):
                file.write(block)
                advance(len(block))
    if _length(part) < size:
        raise _Interrupted(f"the connection ended after {_length(part):,} of {size:,} bytes")


def _blocks(response: Any, limit: int) -> Iterator[bytes]:
    """Yield blocks of the response, at most `limit` bytes in all."""
    try:
        while limit > 0 and (block := response.read1(min(BLOCK, limit))):
            limit -= len(block)
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(_reason(error)) from None


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
