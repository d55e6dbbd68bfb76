"""Options that several commands share: how words are chosen."""

from __future__ import annotations

from typing import Annotated

import typer

Beam = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Texts kept at each step; 1 takes the best word every time."),
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="a in log p / lengthᵃ, by which texts are ranked; 1 unless given.")
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0.001, help="Below 1 likely words become likelier, above 1 less so; 1 unless given."),
]
TopK = Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest words only.")]
TopP = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Draw from the likeliest words that reach this share together."),
]
MinP = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Draw from words at least this likely beside the likeliest."),
]
Seed = Annotated[int | None, typer.Option(help="Another seed draws other words; 0 unless given.")]
Forbid = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Words that must not be written; may be given several times."),
]
NoRepeat = Annotated[int | None, typer.Option(min=1, metavar="N", help="Write no N tokens in a row twice.")]
MinLength = Annotated[int | None, typer.Option(min=0, help="Least tokens of a text.")]
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
