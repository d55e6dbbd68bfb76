"""`regard evaluate`: score a trained model on a test set."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.evaluation.evaluate import Evaluation


def command(
    model: Annotated[Path, typer.Argument(help="A model folder, or the run it is in.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME|FILE",
            help="A known corpus, or files (.tsv, .csv, .jsonl, CoNLL, or source and target); its own unless given.",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Part of the corpus; its customary test set unless given.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Beam; the recipe's unless given.")
    ] = None,
    by_length: Annotated[bool, typer.Option("--by-length", help="Also BLEU by sentence length.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help="Draw into this file: BLEU by sentence length, or the confusion of labels and (beside it) calibration.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the translations, labels or tags here, one line for each."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a model on text it did not learn from, and say what it cost to train.

    A translator gets BLEU, chrF and TER; a language model perplexity and bits per character; a classifier accuracy, F1 by class,
    the confusion matrix and calibration; a tagger precision, recall and F1 of entities; an embedder how it tells what is alike.

    Examples:

        regard evaluate runs/multi30k-en-de --by-length

        regard evaluate runs/sst2 --plot confusion.png

        regard evaluate runs/sst2 --data my.tsv
    """
    from regard.errors import OptionError
    from regard.evaluation import evaluate as evaluation
    from regard.models.folder import load
    from regard.training.distributed import pick_device

    for path in (plot, output):
        if path is not None and not path.absolute().parent.is_dir():
            raise OptionError(f"{path} cannot be written, its folder is not there; make it first")
    loaded: Any = load(model, pick_device(device))
    section = evaluation.data_section(loaded.card, data or ())
    result = evaluation.evaluate(
        loaded,
        section,
        split,
        beam=beam,
        lengths=by_length,
        plot=plot,
        output=output is not None,
        progress=not as_json,
    )
    if output is not None:
        output.write_text("".join(f"{line}\n" for line in result.predictions), encoding="utf-8")
    if plot is not None and result.lengths is not None:
        from regard.evaluation.bleu_by_length import plot as draw

        draw({model.name: result.lengths}, plot)
    cost = evaluation.training_cost(loaded.card, result)
    if as_json:
        print(
            json.dumps(
                result.as_dict() | {"training_flops": cost and cost.flops}, ensure_ascii=False, indent=2
            )
        )
    else:
        _print(result, cost)


def _print(result: Evaluation, cost: Any) -> None:
    from regard.evaluation.training_cost import table

    beam = f", beam {result.beam}" if result.beam else ""
    print(f"{result.data}, {result.split}: {result.lines} lines in {result.seconds:.1f} s{beam}")
    for each in (result.language, result.metrics):
        if each is not None:
            print(each)
    for tokenize, found in result.text.items():
        if len(result.text) > 1:
            again = (
                "as it is: what published figures on tokenised text are"
                if tokenize == "none"
                else "tokenised once more by sacreBLEU"
            )
            print(f"\nthe text is tokenised; {again} ({tokenize})")
        print(found)
        for warning in found.warnings:
            if "look tokenised" not in warning:  # said above
                print(f"regard: warning: {warning}", file=sys.stderr)
    if result.lengths is not None:
        print(f"\n{result.lengths}")
    if cost is not None and result.metrics is None:
        print(
            "\ntraining cost in FLOPs beside the lecture's WMT-2014 table (other tasks: costs compare, scores do not)"
        )
        print(table(cost))
