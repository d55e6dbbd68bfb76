"""The one line of an exception that fits into a table. Standard library only: workers of all peers use it."""

from __future__ import annotations


def first_line(error: BaseException, length: int = 160) -> str:
    """The first non-empty line of the message, or the name of the exception if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:length]
