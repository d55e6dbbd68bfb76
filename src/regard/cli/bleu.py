"""`regard bleu`: score a translated file against its references."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.option_groups import OptionGroup, grouped, option

if TYPE_CHECKING:
    from regard.evaluation.by_length import BleuByLength
    from regard.evaluation.translation import Scores


@dataclass(frozen=True)
class TokenizationOptions(OptionGroup):
    """How sacreBLEU splits a line into words."""

    tokenize: Annotated[str, option(help="sacreBLEU tokenizer; none for tokenised text.")] = "13a"
    lowercase: Annotated[bool, option("--lowercase", help="Ignore case.")] = False


@dataclass(frozen=True)
class BleuOutputOptions(OptionGroup):
    """What is computed besides the scores, and how it is printed."""

    by_length: Annotated[
        Path | None, option(metavar="SRC", help="Also print BLEU by the length of these source lines.")
    ] = None
    plot: Annotated[Path | None, option(metavar="PNG", help="Plot BLEU by length into this file.")] = None
    sentence: Annotated[
        bool, option("--sentence", help="Print Schmidt-Thieme's BLEU of each line instead.")
    ] = False
    against: Annotated[
        Path | None,
        option(metavar="HYP2", help="Compare with this translation: significance of the difference."),
    ] = None
    as_json: Annotated[bool, option("--json", help="Print JSON.")] = False

    def check(self, references: int) -> None:
        """Raise OptionError for options that exclude or need each other."""
        from regard.errors import OptionError

        if self.sentence and (references > 1 or self.by_length or self.plot or self.against):
            raise OptionError(
                "--sentence is for one reference and excludes --by-length, --plot and --against; leave them "
                "out"
            )
        if self.plot and not self.by_length:
            raise OptionError(
                "--plot needs the source lines for BLEU by sentence length; add --by-length SRC"
            )


@grouped
def command(
    hypothesis: Annotated[
        Path, typer.Argument(metavar="HYP", help="Translations, one per line; plain, .gz or .xz.")
    ],
    reference: Annotated[
        list[Path],
        typer.Argument(metavar="REF", help="References; give several files for several references."),
    ],
    *,
    tokenization: TokenizationOptions,
    output: BleuOutputOptions,
) -> None:
    """Score a translation: corpus BLEU, chrF and TER with sacreBLEU's signatures.

    Warns about files that look wrong: shifted lines, tokenised against plain text and so on.

    Example:

        regard bleu translations.txt references.txt
    """
    from regard.data.text_files import aligned_lines
    from regard.evaluation.significance import compare_translations
    from regard.evaluation.translation import translation_scores
    from regard.files.progress import track

    output.check(len(reference))
    hypotheses, references = aligned_lines(hypothesis), [aligned_lines(path) for path in reference]
    if output.sentence:
        _print_sentence_scores(hypotheses, references[0], tokenization, output.as_json)
        return
    settings = asdict(tokenization)
    # Before TER, which is slow: an unwritable plot file is reported at once.
    curve = _bleu_by_length(hypotheses, references, output, settings)
    with track(len(hypotheses), "scoring", "lines") as progress:
        scores = translation_scores(hypotheses, references, **settings, advance=progress.advance)
    comparison = None
    if output.against:
        other = aligned_lines(output.against)
        comparison = compare_translations(hypotheses, other, references, **settings, name=str(output.against))
    _print(scores, {"by_length": curve, "comparison": comparison}, output.as_json)


def _bleu_by_length(
    hypotheses: list[str], references: list[list[str]], output: BleuOutputOptions, settings: dict[str, Any]
) -> BleuByLength | None:
    """Return BLEU by source length, and plot it; None without --by-length."""
    from regard.data.text_files import aligned_lines
    from regard.evaluation.by_length import bleu_by_length, plot

    if output.by_length is None:
        return None
    curve = bleu_by_length(hypotheses, references, aligned_lines(output.by_length), **settings)
    if output.plot:
        print(f"regard: plotted into {plot({'BLEU': curve}, output.plot)}", file=sys.stderr)
    return curve


def _print(scores: Scores, extra: dict[str, Any], as_json: bool) -> None:
    """Print the scores and the extra results that are not None; warnings go to standard error."""
    extra = {name: result for name, result in extra.items() if result is not None}
    for warning in scores.warnings:
        print(f"regard: warning: {warning}", file=sys.stderr)
    if as_json:
        record = scores.as_dict() | {name: result.as_dict() for name, result in extra.items()}
        print(json.dumps(record, ensure_ascii=False, indent=2))
    else:
        print("\n\n".join(map(str, (scores, *extra.values()))))


def _print_sentence_scores(
    hypotheses: list[str], references: list[str], tokenization: TokenizationOptions, as_json: bool
) -> None:
    """Print one score per line, or all scores and their mean as JSON."""
    from regard.evaluation.bleu import sentence_bleu_of_lines

    settings = asdict(tokenization)
    scores = sentence_bleu_of_lines(hypotheses, references, **settings)
    if as_json:
        print(json.dumps({"sentence_bleu": scores, "mean": sum(scores) / len(scores)} | settings))
    else:
        print("\n".join(f"{score:.4f}" for score in scores))
