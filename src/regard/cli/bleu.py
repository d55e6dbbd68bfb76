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
    against: Annotated[
        Path | None,
        typer.Option(metavar="HYP2", help="Compare with this translation: significance of the difference."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a translation: corpus BLEU, chrF and TER with sacreBLEU's signatures.

    Warns about files that look wrong: shifted lines, tokenised against plain text and so on.

    Example:

        regard bleu translations.txt references.txt
    """
    from regard.data.text_files import aligned_lines
    from regard.errors import OptionError
    from regard.evaluation import translation
    from regard.evaluation.by_length import bleu_by_length
    from regard.evaluation.by_length import plot as draw
    from regard.evaluation.significance import compare_translations
    from regard.files.progress import track

    if sentence and (len(reference) > 1 or by_length or plot or against):
        raise OptionError(
            "--sentence is for one reference and excludes --by-length, --plot and --against; leave them out"
        )
    if plot and not by_length:
        raise OptionError("--plot needs the source lines for BLEU by sentence length; add --by-length SRC")
    hypotheses, references = aligned_lines(hypothesis), [aligned_lines(path) for path in reference]
    if sentence:
        _sentences(hypotheses, references[0], tokenize, lowercase, as_json)
        return
    settings: Any = {"tokenize": tokenize, "lowercase": lowercase}
    curve = (
        bleu_by_length(hypotheses, references, aligned_lines(by_length), **settings) if by_length else None
    )
    if curve and plot:  # first, so that an unwritable file is reported before the slow TER
        print(f"regard: plotted into {draw({'BLEU': curve}, plot)}", file=sys.stderr)
    with track(len(hypotheses), "scoring", "lines") as progress:
        scores = translation.translation_scores(hypotheses, references, **settings, advance=progress.advance)
    comparison = None
    if against:
        other = aligned_lines(against)
        comparison = compare_translations(hypotheses, other, references, **settings, name=str(against))
    for warning in scores.warnings:
        print(f"regard: warning: {warning}", file=sys.stderr)
    if as_json:
        parts = {"by_length": curve, "comparison": comparison}
        record = scores.as_dict() | {name: part.as_dict() for name, part in parts.items() if part}
        print(json.dumps(record, ensure_ascii=False, indent=2))
    else:
        print(scores)
        for part in (curve, comparison):
            if part:
                print(f"\n{part}")


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
