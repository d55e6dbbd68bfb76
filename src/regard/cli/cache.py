"""`regard cache`: list and prune prepared data."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from regard.data.prepared_cache import Entry

DAY = 86_400  # seconds
DEFAULT_DAYS = 30
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def command(
    prune: Annotated[
        bool,
        typer.Option("--prune", help=f"Remove entries, by default those not used for {DEFAULT_DAYS} days."),
    ] = False,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            min=0,
            metavar="DAYS",
            help="With --prune: remove entries not used for this many days.",
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            help="With --prune: remove the least recently used until this size, such as 10G, is left.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List prepared data and tokenizers with size, last use and what made them; --prune removes old ones.

    What a running process uses is never removed. A run prepares removed data again when it is resumed.

    Examples:

        regard cache

        regard cache --prune --older-than 7

        regard cache --prune --max-size 20G
    """
    from regard.data.prepared_cache import entries
    from regard.data.prepared_cache import prune as remove
    from regard.errors import OptionError
    from regard.files.cache import cache_folder

    limit = None if max_size is None else parse_size(max_size)
    if not prune:
        if older_than is not None or limit is not None:
            name = "--older-than" if older_than is not None else "--max-size"
            raise OptionError(f"{name} is for --prune; add --prune")
        listed = entries()
    else:
        days = DEFAULT_DAYS if older_than is None and limit is None else older_than
        listed = remove(None if days is None else days * DAY, limit)
    if as_json:
        typer.echo(json.dumps([entry.as_dict() for entry in listed], indent=2, ensure_ascii=False))
        return
    _print_table(listed)
    total = size(sum(entry.size for entry in listed))
    typer.echo(
        f"{'removed ' if prune else ''}{len(listed)} entries, {total}, {'from' if prune else 'in'} "
        f"{cache_folder()}"
    )


def _print_table(listed: list[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table

    if not listed:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("entry", "kind", "size", "last used", "made by"):
        table.add_column(head, justify="right" if head == "size" else "left", no_wrap=head != "made by")
    for entry in listed:
        used = "in use" if entry.in_use else ago(entry.age)
        table.add_row(entry.path.name[:8], entry.kind, size(entry.size), used, entry.made_by)
    Console().print(table, highlight=False, markup=False)


def parse_size(text: str) -> int:
    """Return the bytes of 500, 20M, 1.5G, 10GB or 10GiB; units are powers of 1024."""
    from regard.errors import OptionError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise OptionError(f"--max-size must be a number with a unit, such as 500M or 20G, got {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


def size(count: int) -> str:
    """Return a size such as `1.5 GiB`."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def ago(seconds: float) -> str:
    """Return a time such as `3 days ago`."""
    for name, length in (("day", DAY), ("hour", 3600), ("minute", 60)):
        if (count := int(seconds // length)) >= 1:
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"
