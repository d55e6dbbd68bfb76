"""What the commands share that work through lines: text, files or standard input in; order kept; what was stopped goes on."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from regard.pipelines.input import Layout, Source
    from regard.pipelines.output import File, Outputs, Stream
    from regard.pipelines.translate_file import Over, Work


@dataclass(frozen=True)
class How:
    """How a job is run; what it gives does not depend on it."""

    what: str = "translate"  # the name of the bar
    restart: bool = False
    quiet: bool = False


def find_source(
    text: Sequence[str],
    files: Sequence[Path] | None,
    layout: Layout,
    strict: bool = False,
    header: bool = False,
) -> Source:
    """The words of the command line are more files after -i, else texts; with neither there is standard input."""
    from regard.pipelines.input import Source

    if files:
        found = Source((*files, *map(Path, text)), layout=layout, strict=strict, header=header)
    elif text:
        found = Source(
            texts=tuple(line for each in text for line in each.split("\n")), layout=layout, strict=strict
        )
    else:
        found = Source((Path("-"),), layout=layout, strict=strict, header=header)
    found.check()
    return found


def check_paths(source: Source, paths: Sequence[str | Path]) -> None:
    """Stop in one sentence when a file would be read and written at once, or written twice."""
    from regard.errors import OptionError

    places = [Path(path).resolve() for path in paths if str(path) != "-"]
    if len(set(places)) < len(places):
        raise OptionError("each output goes to a file of its own; name each only once")
    both = next((path for path in source.files if path.is_file() and path.resolve() in places), None)
    if both is not None:
        raise OptionError(f"{both} would be read and written at once; name another output")


def work_through(
    source: Source,
    places: Sequence[Stream | File],
    work: Work,
    about: Callable[[], dict[str, Any]],
    how: How,
    over: Callable[[], Over] | None = None,
) -> None:
    """Look through the source, do what is left of the job, and say how it ended. `about` is asked where the job can go on."""
    from regard.pipelines.output import File, Outputs
    from regard.pipelines.translate_file import run_job

    total, bad = source.survey() if source.known else (None, None)
    outputs = Outputs(places, about() if isinstance(places[0], File) else {}, how.restart)
    if outputs.lines:
        say(f"going on after {outputs.lines:,} lines")
    asking, shown = os.isatty(0), os.isatty(2)  # of a closed one this says no
    if not source.known and asking:
        say("type a sentence and Enter; Ctrl-D ends")
    try:
        progress = not how.quiet and (total is not None or (shown and not asking))
        reading = run_job(
            source, outputs, work, total, what=how.what, progress=progress, over=over and over()
        )
    except BrokenPipeError:
        raise typer.Exit(141) from None  # as `cat` ends when nobody reads on
    except KeyboardInterrupt:
        say(_stopped(outputs))
        raise typer.Exit(130) from None
    if (bad or reading.bad).count:
        say(str(bad or reading.bad))


def say(what: str) -> None:
    print(f"regard: {what}", file=sys.stderr, flush=True)


def _stopped(outputs: Outputs) -> str:
    if not outputs.resumable:
        return f"stopped after {outputs.lines:,} lines"
    again = shlex.join(["regard", *(word for word in sys.argv[1:] if word != "--restart")])
    return f"stopped after {outputs.lines:,} lines, which are kept; go on with: {again}"
