"""`regard evaluate`: score a trained model on a test set."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.runs import duration

if TYPE_CHECKING:
    from regard.evaluation.evaluate import Evaluation


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a model or a run.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME|FILE",
            help="A known corpus or a file (.tsv, .csv, .jsonl, .txt, CoNLL) instead of the model's own test or validation set; "
            "give it twice for source and target.",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the corpus; the test set unless given.")] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Beam size; the recipe's unless given.")
    ] = None,
    by_length: Annotated[
        bool, typer.Option("--by-length", help="Translators: also print BLEU by sentence length.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help="Plot BLEU by sentence length (translators) or the confusion matrix and calibration (classifiers).",
        ),
    ] = None,
    cost_table: Annotated[
        bool,
        typer.Option(
            "--cost-table", help="Translators: compare the training cost with published models of WMT-2014."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the predictions (translations, labels, tags) here, one per line."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a model on its test set, its held-out rows, or a file of your own.

    Translators: BLEU, chrF, TER. Language models: perplexity, bits per character. Classifiers: accuracy, F1 per class, confusion
    matrix, calibration. Taggers: precision, recall and F1 of entities. Embedders: retrieval or similarity scores.

    Examples:

        regard evaluate runs/small --by-length

        regard evaluate runs/sst2 --plot confusion.png    # a classifier

        regard evaluate runs/sst2 --data my.csv

        regard evaluate runs/small --data test.en --data test.de
    """
    from regard.cli.data import offer
    from regard.errors import OptionError
    from regard.evaluation import evaluate as evaluation
    from regard.evaluation.training_cost import table
    from regard.models.folder import load
    from regard.training.distributed import pick_device

    for path in (plot, output):
        if path is not None and not path.absolute().parent.is_dir():
            raise OptionError(f"{path} cannot be written, its folder is not there; make it first")
    loaded: Any = load(model, pick_device(device))
    if cost_table and loaded.kind != "translator":
        raise OptionError(f"--cost-table compares translators, and this model is {loaded.what}; leave it out")
    if cost_table and not (loaded.card.get("flops") and loaded.card.get("seconds")):
        raise OptionError(
            f"--cost-table needs the training FLOPs, and the card of {model} does not say; leave it out"
        )
    section = evaluation.data_section(loaded.card, data or ())
    offer(section)
    for file in evaluation.trained_on(loaded.card, data or ()):
        print(
            f"regard: warning: {file} is what the model was trained on; scores on it say nothing about new text",
            file=sys.stderr,
        )
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
        from regard.evaluation.by_length import plot as draw

        draw({model.name: result.lengths}, plot)
    cost = evaluation.training_cost(loaded.card, result)
    if as_json:
        print(
            json.dumps(
                result.as_dict() | {"training_flops": cost and cost.flops}, ensure_ascii=False, indent=2
            )
        )
    else:
        _print(result)
        if cost is not None:
            print(f"\ntrained with {cost.flops:.1e} FLOPs in {duration(cost.hours * 3600)}")
        if cost is not None and cost_table:
            print("published models on WMT-2014: costs compare, BLEU on other data does not")
            print(table(cost))


def _print(result: Evaluation) -> None:
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
