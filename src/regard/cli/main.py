"""`regard`: the entry point. Bad input ends in one sentence and exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import regard
from regard.cli import (
    align,
    bleu,
    cache,
    classify,
    cost,
    data,
    demo,
    duplicates,
    embed,
    evaluate,
    export,
    generate,
    index,
    label,
    recipes,
    recommend,
    runs,
    search,
    serve,
    shortlist,
    tag,
    train,
    translate,
)
from regard.errors import RegardError

app = typer.Typer(
    help="Run, train and inspect attention models: translators, language models, classifiers, taggers, search.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("cost")(cost.command)
app.command("demo")(demo.command)
app.command("train")(train.command)
app.command("resume")(train.resume)
app.command("runs")(runs.command)
app.command("recipes")(recipes.command)
app.command("evaluate")(evaluate.command)
app.command("average")(train.average)
app.command("bleu")(bleu.command)
app.command("data")(data.command)
app.command("cache")(cache.command)
app.command("translate")(translate.command)
app.command("generate")(generate.command)
app.command("align")(align.command)
app.command("serve")(serve.command)
app.command("shortlist")(shortlist.command)
app.command("classify")(classify.command)
app.command("tag")(tag.command)
app.command("embed")(embed.command)
app.command("index")(index.command)
app.command("search")(search.command)
app.command("duplicates")(duplicates.command)
app.command("label")(label.command)
app.command("recommend")(recommend.command)
app.command("export")(export.command)
app.command("import")(export.bring)


def _version(show: bool) -> None:
    if show:
        print(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention, end to end."""


def run() -> None:
    """Run the command line; errors about input are one sentence on standard error."""
    try:
        app()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # where typer does not catch it
        print("regard: stopped", file=sys.stderr)
        sys.exit(130)
