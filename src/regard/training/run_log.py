"""The log of a run: one JSON object per line, an event `train` or `validation`.

A `train` event has means over `training.log_every` steps. When a run is resumed, the log is truncated to its
length at the checkpoint, so it equals that of an uninterrupted run, except for times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from regard.files.atomic import disk_error, write_file
from regard.training.step_folders import RESUME


class RunLog:
    """An append-only file of JSON lines."""

    def __init__(
        self,
        path: Path,
        position: int = 0,
        step: int | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Truncate the log to `position` bytes, its length at the checkpoint of `step`, and append to it.

        A log that was lost, shortened or edited does not stop a run: its complete lines up to `step` are
        kept, and `report` gets a message.
        """
        self.path = path
        try:
            if not _is_intact(path, position, step):
                complete = _complete_lines(path, step)
                problem = "was shortened or changed" if path.is_file() else "is missing"
                report(
                    f"{path} {problem}; its {len(complete)} complete lines up to this checkpoint are kept. "
                    "The weights are not affected"
                )
                write_file(path, b"".join(complete))
                position = sum(map(len, complete))
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
            self._file.truncate(position)
            self._file.seek(position)
        except OSError as error:
            raise disk_error(path, error, RESUME) or error from None
        self.position = position

    def add(self, event: str, **values: Any) -> None:
        """Append a line. Non-finite numbers become null, because JSON has none."""
        entry = {"event": event, **{key: _finite_or_none(value) for key, value in values.items()}}
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise disk_error(self.path, error, RESUME) or error from None
        self.position += len(line)

    def sync(self) -> int:
        """Flush to the disk and return the position of the end."""
        os.fsync(self._file.fileno())
        return self.position

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_intact(path: Path, position: int, step: int | None) -> bool:
    """True if the first `position` bytes are complete lines of which the last is not after `step`."""
    if position == 0:
        return True
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        content = file.read(position)
    return (
        len(content) == position
        and content.endswith(b"\n")
        and _is_entry_until(content.splitlines()[-1], step)
    )


def _complete_lines(path: Path, step: int | None) -> list[bytes]:
    """The readable lines of a log up to `step`."""
    if not path.is_file():
        return []
    return [
        line
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n") and _is_entry_until(line, step)
    ]


def _is_entry_until(line: bytes, step: int | None) -> bool:
    """True if the line is a valid entry of a step that is not after `step`."""
    try:
        entry = json.loads(line)
        return isinstance(entry, dict) and "event" in entry and (step is None or int(entry["step"]) <= step)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and value - value != 0 else value


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over a file of JSON lines, up to the first line that cannot be read."""
    if path.is_file():
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    return
