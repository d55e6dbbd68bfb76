"""`regard bleu`: score a translated file against its references."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    hypothesis: Annotated[
        Path, typer.Argument(metavar="HYP", help="Translations, one per line; plain, .gz or .xz.")
    ],
    reference: Annotated[
        list[Path],
        typer.Argument(metavar="REF", help="References; give several files for several references."),
    ],
    tokenize: Annotated[str, typer.Option(help="sacreBLEU tokenizer; none for tokenised text.")] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    by_length: Annotated[
        Path | None, typer.Option(metavar="SRC", help="Also print BLEU by the length of these source lines.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Plot BLEU by length into this file.")
    ] = None,
    sentence: Annotated[
        bool, typer.Option("--sentence", help="Print Schmidt-Thieme's BLEU of each line instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a translation: corpus BLEU, chrF and TER with sacreBLEU's signatures.

    Warns about files that look wrong: shifted lines, tokenised against plain text and so on.

    Example:

        regard bleu translations.txt references.txt
    """
    from regard.errors import OptionError
    from regard.evaluation import translation
    from regard.evaluation.by_length import bleu_by_length
    from regard.evaluation.by_length import plot as draw
    from regard.files.progress import track

    if sentence and (len(reference) > 1 or by_length or plot):
        raise OptionError(
            "--sentence is for one reference and excludes --by-length and --plot; leave them out"
        )
    if plot and not by_length:
        raise OptionError("--plot needs the source lines for BLEU by sentence length; add --by-length SRC")
    hypotheses, references = _read(hypothesis), [_read(path) for path in reference]
    if sentence:
        _sentences(hypotheses, references[0], tokenize, lowercase, as_json)
        return
    settings: Any = {"tokenize": tokenize, "lowercase": lowercase}
    curve = bleu_by_length(hypotheses, references, _read(by_length), **settings) if by_length else None
    if curve and plot:  # first, so that an unwritable file is reported before the slow TER
        print(f"regard: plotted into {draw({'BLEU': curve}, plot)}", file=sys.stderr)
    with track(len(hypotheses), "scoring", "lines") as progress:
        scores = translation.translation_scores(hypotheses, references, **settings, advance=progress.advance)
    for warning in scores.warnings:
        print(f"regard: warning: {warning}", file=sys.stderr)
    if as_json:
        record = scores.as_dict() | ({"by_length": curve.as_dict()} if curve else {})
        print(json.dumps(record, ensure_ascii=False, indent=2))
    else:
        print(scores)
        if curve:
            print(f"\n{curve}")


def _read(path: Path) -> list[str]:
    """Return all lines of a file; a line that is not text is an error, since lines must stay aligned."""
    from regard.data.text_files import BAD, LONG, lines
    from regard.errors import DataError

    content = [line for block in lines(path) for line in block]
    for number, line in enumerate(content, 1):
        if line == BAD or "\0" in line:
            raise DataError(f"line {number} of {path} is not UTF-8 text; is it a binary file?")
        if line == LONG:
            raise DataError(f"line {number} of {path} is too long for a sentence; give one sentence per line")
    return content


def _sentences(
    hypotheses: list[str], references: list[str], tokenize: str, lowercase: bool, as_json: bool
) -> None:
    """Print one score per line."""
    from regard.evaluation.bleu import bleu_metric, reference_documents, sentence_bleu

    (references,) = reference_documents(hypotheses, references)
    split = bleu_metric(tokenize, lowercase).tokenizer
    words = lambda line: split((line.lower() if lowercase else line).rstrip()).split()  # noqa: E731
    scores = [sentence_bleu(words(r), words(h)) for r, h in zip(references, hypotheses, strict=True)]
    if not as_json:
        print("\n".join(f"{score:.4f}" for score in scores))
        return
    mean = sum(scores) / len(scores)
    print(json.dumps({"sentence_bleu": scores, "mean": mean, "tokenize": tokenize, "lowercase": lowercase}))
