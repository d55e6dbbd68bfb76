"""`regard`: the entry point. Bad input ends in one sentence and exit code 2."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated

import typer

import regard
from regard.cli import (
    align,
    average,
    bleu,
    cache,
    classify,
    cost,
    data,
    demo,
    distill,
    draw,
    duplicates,
    embed,
    evaluate,
    explore,
    export,
    faithfulness,
    generate,
    import_,
    index,
    label,
    lessons,
    models,
    probe,
    quantize,
    recipes,
    recommend,
    resume,
    runs,
    search,
    serve,
    shortlist,
    tag,
    train,
    translate,
)
from regard.cli.help_format import Command, Group, help_text
from regard.errors import RegardError

# The panels of `regard --help`, with the commands of each in order of use.
PANELS = {
    "Look": {
        "demo": demo,
        "explore": explore,
        "lessons": lessons,
        "models": models,
        "data": data,
        "draw": draw,
        "cache": cache,
    },
    "Train": {
        "recipes": recipes,
        "train": train,
        "distill": distill,
        "resume": resume,
        "runs": runs,
        "average": average,
    },
    "Translate and generate": {
        "translate": translate,
        "generate": generate,
        "align": align,
        "shortlist": shortlist,
    },
    "Understand": {
        "classify": classify,
        "tag": tag,
        "embed": embed,
        "faithfulness": faithfulness,
        "probe": probe,
    },
    "Search and recommend": {
        "index": index,
        "search": search,
        "duplicates": duplicates,
        "label": label,
        "recommend": recommend,
    },
    "Measure": {"evaluate": evaluate, "bleu": bleu, "cost": cost},
    "Serve and exchange": {"serve": serve, "quantize": quantize, "export": export, "import": import_},
}

app = typer.Typer(
    cls=Group,
    help="Run, train and inspect attention models: translators, language models, classifiers, taggers, "
    "search.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for panel, commands in PANELS.items():
    for name, module in commands.items():
        text = help_text(module.command.__doc__ or "")
        app.command(name, cls=Command, help=text, rich_help_panel=panel)(module.command)


def _print_version(show: bool) -> None:
    if show:
        print(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run, train and inspect attention models."""


def run() -> None:
    """Run the command line; an error about the input is one sentence on standard error."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # like files, in UTF-8 whatever the locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # where typer does not catch it
        print("regard: stopped", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = str(error.filename)
            size = f"{len(name):,} characters"
            print(f"regard: {name[:60]}… is too long for the name of a file ({size})", file=sys.stderr)
            sys.exit(2)
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still in the buffer of standard output
        print("regard: the disk is full; free some space and run the command again", file=sys.stderr)
        sys.exit(2)
