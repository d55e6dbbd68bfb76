"""The log of a run: one JSON object per line, cut back to the checkpoint's place when a run is resumed.

So the log of a run that was interrupted is that of one which was not, times aside. Events: `train` every `log_every` steps
(means over those steps) and `validation`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from regard.errors import FolderError
from regard.training.checkpoint import full_disk


class Log:
    """A file of JSON lines that is added to."""

    def __init__(self, path: Path, position: int = 0) -> None:
        """Go on after `position` bytes; what stands behind is dropped."""
        self.path = path
        if position > (size := path.stat().st_size if path.exists() else 0):
            raise FolderError(
                f"{path} is {size} bytes long and its checkpoint was written at byte {position}; it was cut by someone"
            )
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._file.truncate(position)
        self._file.seek(position)
        self.position = position

    def add(self, event: str, **values: Any) -> None:
        """One line. Numbers that are not finite become null, which JSON can hold."""
        line = json.dumps({"event": event, **{k: _number(v) for k, v in values.items()}}, ensure_ascii=False).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise full_disk(self.path, error) or error from None
        self.position += len(line)

    def sync(self) -> int:
        """Wait until all is on the disk; the place of the end."""
        os.fsync(self._file.fileno())
        return self.position

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and value - value != 0 else value
