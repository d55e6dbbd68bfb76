"""Options that several commands share: the model, where texts come from, how tokens are chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        metavar="FOLDER",
        help="A model folder, or the run it is in; REGARD_MODEL unless given.",
    ),
]
To = Annotated[
    str | None, typer.Option("--to", metavar="LANGUAGE", help="Translate into this language, such as de.")
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="FILE",
        help="Text, .tsv, .csv or .jsonl, also .gz or .xz; - is standard input.",
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        "--column", metavar="NAME|N", help="The column of a table: its number, or its name in the first line."
    ),
]
Header = Annotated[
    bool, typer.Option("--header", help="The first line of a table names its columns; else it is guessed.")
]
Field = Annotated[
    str | None, typer.Option("--field", metavar="NAME", help="The field of JSON lines; text unless given.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at a line that is not UTF-8.")]
Restart = Annotated[bool, typer.Option("--restart", help="Start over instead of resuming from FILE.part.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Beam = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Beam size; 1 is greedy search."),
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Exponent a of the length normalisation log p / lengthᵃ; 1 unless given.")
]
Temperature = Annotated[
    float | None, typer.Option(min=0.001, help="Softmax temperature of sampling; 1 unless given.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample from the k most likely tokens.")]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, help="Nucleus sampling: smallest set of tokens whose probability reaches P."
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, help="Sample from tokens with at least this share of the best token's probability."
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of sampling; 0 unless given.")]
Forbid = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Phrase that must not occur; repeatable.")
]
NoRepeat = Annotated[int | None, typer.Option(min=1, metavar="N", help="Never repeat an N-gram of tokens.")]
MinLength = Annotated[int | None, typer.Option(min=0, help="Minimum number of tokens.")]
Precision = Annotated[str, typer.Option(help="auto, float32, bfloat16 or int8.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def check_text(name: str, *texts: str) -> None:
    """A shell hands over any bytes; what is not UTF-8 among them cannot be a word."""
    from regard.errors import OptionError

    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise OptionError(
                f"--{name} is not UTF-8: {text.encode('utf-8', 'surrogateescape')!r}; spell it in UTF-8"
            ) from None
