"""File jobs: read chunks of lines, process them, write them in order; an interrupted job can be resumed.

An output file grows as FILE.part. After every chunk it is synced to disk, and a line is added to
FILE.progress: how many lines of the input and how many bytes of every output belong together. When a job is
resumed, bytes beyond that are cut off, so the result is byte-identical to that of an uninterrupted job. FILE
itself appears when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from regard.decoding.engine.shortlist import FILE_NAME as SHORTLIST
from regard.errors import DataError, FolderError, OptionError
from regard.files.atomic import check_output, is_stream, open_stream
from regard.files.checksums import file_sha256
from regard.files.lock import lock_file
from regard.files.progress import track
from regard.models.folder import load, model_in
from regard.models.model import Model
from regard.pipelines.input import Chunk, Reader, Source
from regard.pipelines.packing import Packing, Plain, packing
from regard.version import __version__

M = TypeVar("M", bound=Model)
Work = Callable[[Chunk], list[bytes]]  # the bytes of each output for a chunk
Distribute = Callable[[Work, Iterator[Chunk]], Iterable[tuple[Chunk, list[bytes]]]]


def run_job(
    source: Source,
    outputs: Outputs,
    work: Work,
    total: int | None,
    *,
    name: str = "translate",
    progress: bool = True,
    distribute: Distribute | None = None,
) -> Reader:
    """Run the rest of a job.

    Args:
        source: the input.
        outputs: the output files; they know how many lines are done.
        work: turns a chunk into the bytes of each output.
        total: the number of lines of the input, for the progress bar.
        name: the name of the progress bar.
        progress: show a progress bar.
        distribute: runs `work` on other machines and returns the chunks in order; by default it runs here.
    """
    reader = Reader(source)
    if outputs.lines and reader.skip(outputs.lines) != outputs.digest:
        raise OptionError(
            f"the first {outputs.lines:,} lines are not those that {outputs.outputs[0].name} was started "
            "with; give the same input, or start over with --restart"
        )
    chunks = reader.chunks()
    bar = track(None if total is None else total - outputs.lines, name, "lines")
    with bar if progress else nullcontext():
        results = distribute(work, chunks) if distribute else ((chunk, work(chunk)) for chunk in chunks)
        for chunk, data in results:
            outputs.commit(data, chunk.first + len(chunk.rows), chunk.digest)
            bar.advance(len(chunk.rows))
    if not outputs.lines:  # empty input: packed files still need a header
        outputs.commit(work(Chunk(0, [], "")), 0, reader.skip(0))
    outputs.finish()
    return reader


def job_settings(options: Any, fingerprint: str, left_out: Sequence[str] = ("output",)) -> dict[str, Any]:
    """Return version, model and options of a job as JSON values; a job resumes only one with the same
    settings.

    Keys are words for error messages; nested options are flattened.
    """
    settings = asdict(options)
    for name in ("strategy", "constraints", "limits"):
        if name in settings:
            nested = settings.pop(name)
            settings |= {"beam" if key == "size" else key: value for key, value in nested.items()}
    if hasattr(options, "strategy"):
        settings["strategy"] = type(options.strategy).__name__
    settings = {"version": __version__, "model": fingerprint} | settings
    return json.loads(
        json.dumps({key.replace("_", " "): value for key, value in settings.items() if key not in left_out})
    )


def load_kind(folder: Path, device: Any, kind: type[M], needed: str) -> M:
    """Load a model and check its kind; `needed` says what the job takes: "tagging takes a tagger"."""
    model = load(folder, device)
    if not isinstance(model, kind):
        raise FolderError(f"{folder} is {model.what}, and {needed}; `{model.command}` uses it")
    return model


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model folder (or of the run it is in), with its shortlist."""
    folder = model_in(folder)
    names = (
        "config.json", "model.safetensors", "tokenizer.json", "source.json", "target.json", "card.json",
        SHORTLIST,
    )  # fmt: skip
    return [folder / name for name in names if (folder / name).is_file()]


def fingerprint(folders: Sequence[Path], shortlist: bool = False) -> str:
    """Return the SHA-256 over the files of all models; over their shortlists only if these are used."""
    files = [
        path for folder in folders for path in model_files(folder) if shortlist or path.name != SHORTLIST
    ]
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()


@dataclass
class Stream:
    """A pipe, a terminal or a device: cannot be resumed."""

    handle: int
    name: str
    packing: Packing = field(default_factory=Plain)

    def write(self, data: bytes) -> None:
        _write(self.handle, data)


@dataclass
class File:
    """A file that grows as FILE.part."""

    path: Path
    packing: Packing
    bytes: int = 0

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    def open(self, size: int) -> None:
        """Continue after `size` bytes."""
        self._file: BinaryIO = self.part.open("r+b" if size else "wb", buffering=0)
        self._file.truncate(size)
        self._file.seek(size)
        self.bytes = size

    def write(self, data: bytes) -> None:
        _write(self._file.fileno(), data)
        self.bytes += len(data)

    def sync(self) -> None:
        os.fsync(self._file.fileno())


def open_output(path: Path) -> Stream | File:
    """Return the output of a path; `-` is standard output, and devices and pipes are written directly."""
    if str(path) == "-":
        return Stream(1, "standard output")
    if is_stream(path):
        with convert_write_errors(str(path)):
            return Stream(open_stream(path), str(path), packing(path))
    check_output(path)
    return File(path.resolve() if path.is_symlink() else path, packing(path))


class Outputs:
    """The outputs of a job. If the first is a file, the job is resumable.

    Attributes:
        lines: number of lines that are done.
        digest: digest of these lines of the input.
    """

    def __init__(
        self, outputs: Sequence[Stream | File], settings: dict[str, Any], restart: bool = False
    ) -> None:
        self.outputs, self.lines, self.digest = list(outputs), 0, ""
        self._files = [output for output in outputs if isinstance(output, File)]
        first = outputs[0]
        self._journal: _Journal | None = None
        with convert_write_errors(first.name):
            if isinstance(first, File):
                self._journal = _Journal(first.path.with_name(first.path.name + ".progress"), restart)
                self._journal.begin(settings, self._files, restart)
            last = self._journal.last if self._journal else None
            sizes = last["bytes"] if last else [0] * len(self._files)
            if last:
                self.lines, self.digest = last["lines"], last["digest"]
            for file, size in zip(self._files, sizes, strict=True):
                file.open(size)

    @property
    def resumable(self) -> bool:
        return self._journal is not None

    def commit(self, data: Sequence[bytes], lines: int, digest: str) -> None:
        """Write a chunk to each output; when this returns it is on the disk."""
        state = f"{self.lines:,} lines are written" + "; rerun the same command to resume" * self.resumable
        for output, packed in zip(self.outputs, data, strict=True):
            with convert_write_errors(output.name, state):
                output.write(packed)
        with convert_write_errors(self.outputs[0].name, state):
            if self._journal is not None:
                for file in self._files:
                    file.sync()
                sizes = [file.bytes for file in self._files]
                self._journal.add({"lines": lines, "bytes": sizes, "digest": digest})
        self.lines = lines

    def finish(self) -> None:
        """Rename the finished files to their final names and remove the journal."""
        with convert_write_errors(
            self.outputs[0].name, "all lines are written; rerun the same command to finish"
        ):
            if self._journal is not None:
                self._journal.add({"finished": True})
            for file in self._files:
                file.packing.finish(file.part, file.path)
            if self._journal is not None:
                self._journal.remove()
            for file in self._files:
                file.part.unlink(missing_ok=True)


class _Journal:
    """An append-only file of JSON lines; a truncated last line does not count."""

    def __init__(self, path: Path, restart: bool) -> None:
        self.path, self.last = path, None
        self._file = path.open("a+b", buffering=0)
        lock_output(self._file, path)
        self._file.seek(0)
        text = self._file.read()
        complete = text.rfind(b"\n") + 1
        self._file.truncate(complete)
        try:
            entries = [json.loads(line) for line in text[:complete].splitlines()]
            self._settings: dict[str, Any] | None = entries[0]["job"] if entries else None
            self._steps: list[dict[str, Any]] = entries[1:]
        except (ValueError, KeyError, TypeError, RecursionError):
            if not restart:
                raise DataError(
                    f"{path} was not written by this command, or is damaged; remove it, or add --restart"
                ) from None
            self._settings, self._steps = None, []

    def begin(self, settings: dict[str, Any], files: list[File], restart: bool) -> None:
        """Start a new job, or resume one with the same settings; other settings are an error."""
        if restart:
            self._settings = None
            self._file.truncate(0)
            for file in files:
                file.part.unlink(missing_ok=True)
        if self._settings is None:
            stray = next((file.part for file in files if file.part.exists()), None)
            if stray is not None:
                self.remove()
                raise DataError(
                    f"there is a file {stray} that this command did not create; remove it, or add --restart"
                )
            self.add({"job": settings})
            return
        self._check_settings(settings)
        self.last = next((step for step in reversed(self._steps) if "lines" in step), None)
        if self.last is not None:
            finished = "finished" in self._steps[-1]
            for file, size in zip(files, self.last["bytes"], strict=True):
                _restore_part(file, size, finished)

    def add(self, entry: dict[str, Any]) -> None:
        _write(self._file.fileno(), json.dumps(entry).encode() + b"\n")
        os.fsync(self._file.fileno())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        before = self._settings or {}
        for key in [*settings, *before]:
            if before.get(key) == settings.get(key):
                continue
            values = f" ({_quoted(before.get(key))}, now {_quoted(settings.get(key))})"
            raise OptionError(
                f"{self.path.name.removesuffix('.progress')} was started with another {key}"
                f"{'' if key in ('model', 'version') else values}; "
                "resume with the command that started it, or start over with --restart"
            )


def _restore_part(file: File, size: int, finished: bool) -> None:
    """Undo the renaming of a job that was killed while it finished, and check the size of the part."""
    if finished and not file.part.exists() and file.path.is_file() and file.path.stat().st_size == size:
        os.replace(file.path, file.part)
    if size and (not file.part.exists() or file.part.stat().st_size < size):
        raise DataError(
            f"{file.part} is shorter than its journal says, so it was changed; start over with --restart"
        )


def _quoted(value: Any) -> str:
    return "not given" if value is None else str(value)


def lock_output(file: BinaryIO, path: Path) -> None:
    """Lock a file; an error if another process is writing this output."""
    if lock_file(file, wait=False) is False:
        raise DataError(
            f"another process is writing {path.name.removesuffix('.progress')}; wait for it, or stop it"
        )


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


@contextlib.contextmanager
def convert_write_errors(name: str, state: str = "") -> Iterator[None]:
    """Turn disk errors inside the block into a DataError; a closed pipe is passed on."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        after = f"; {state}" if state else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"the disk of {name} is full{after or '; free some space'}") from None
        raise DataError(f"{name} cannot be written: {error.strerror or error}{after}") from None
