"""Memory of a process as Linux reports it. Standard library only: workers of all peers use it."""

from __future__ import annotations


def memory_status(field: str, process: int | str = "self") -> int:
    """A size in bytes from /proc/PROCESS/status: VmRSS (now), VmHWM (peak) or RssAnon (without files).

    Raise OSError where there is no such file (other systems), KeyError if it has no such field.
    """
    with open(f"/proc/{process}/status", encoding="utf-8") as status:
        sizes = dict(line.split(":", 1) for line in status)
    return int(sizes[field].split()[0]) * 1024


def peak_memory() -> int | None:
    """Peak resident memory of this process in bytes; None if unknown.

    Not from getrusage, whose peak starts with that of the parent process.
    """
    try:
        return memory_status("VmHWM")
    except (OSError, KeyError):
        return None
