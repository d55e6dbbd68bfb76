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
    from regard.pipelines.job import Distribute, File, Outputs, Stream, Work
    from regard.pipelines.table import Place


@dataclass(frozen=True)
class How:
    """How a job is run; what it gives does not depend on it."""

    what: str = "translate"  # the name of the bar
    restart: bool = False
    quiet: bool = False


def model_folder(model: Path | None, task: str, texts: Sequence[str], to: str | None = None) -> Path:
    """The folder of --model, or the default one. A model folder where the first text belongs is refused with the right command."""
    from regard.errors import OptionError
    from regard.models.default import default_model
    from regard.models.folder import is_file

    first = texts[0] if texts else ""
    if first and any(is_file(Path(first) / name) for name in ("config.json", "model/config.json")):
        words = sys.argv[1:]
        if first in words:
            words.remove(first)
        if task == "align" and len(texts) > 1 and is_file(Path(texts[1])):
            words.insert(words.index(texts[1]), "-i")
        named = [] if model is not None else ["--model", first]
        raise OptionError(
            f"{first} is a model folder and stands where a text is expected; the model is named by --model: "
            f"{shlex.join(['regard', *words, *named])}"
        )
    return default_model(task, to) if model is None else model


def find_place(
    texts: Sequence[str], files: Sequence[Path] | None, column: str | None, field: str | None, header: bool
) -> Place:
    """Where the text is in each line of what is read; what was assumed about a table is printed."""
    from regard.pipelines import table
    from regard.pipelines.input import Source

    named = [*files, *map(Path, texts)] if files else [] if texts else [Path("-")]
    if column is not None and not named:
        named = [Path("-")]  # texts as rows with tabs
    Source(tuple(named)).check()
    place = table.find_place(named, column, field, header)
    if place.note:
        say(place.note)
    return place


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
    over: Callable[[], Distribute] | None = None,
) -> None:
    """Look through the source, do what is left of the job, and say how it ended. `about` is asked where the job can go on."""
    from regard.pipelines.job import File, Outputs, run_job

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
            source, outputs, work, total, name=how.what, progress=progress, distribute=over and over()
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
