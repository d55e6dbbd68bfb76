"""`regard evaluate`: score a trained model on a test set."""

from __future__ import annotations

import json
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
            help="A corpus, or a file (.tsv, .csv, .jsonl, .txt, CoNLL), instead of the model's test or "
            "validation set; give it twice for source and target.",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the corpus; default: the test set.")] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Beam size; default: the recipe's.")
    ] = None,
    by_length: Annotated[
        bool, typer.Option("--by-length", help="Translators: also print BLEU by sentence length.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help="Plot BLEU by sentence length (translators), or confusion matrix and calibration "
            "(classifiers).",
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

    Translators: BLEU, chrF, TER. Language models: perplexity, bits per character. Classifiers: accuracy, F1
    per class,
    confusion matrix, calibration. Taggers: precision, recall and F1 of entities. Embedders: retrieval or
    similarity scores.

    Examples:

        regard evaluate runs/small --by-length

        regard evaluate runs/sst2 --plot confusion.png    # a classifier

        regard evaluate runs/sst2 --data my.csv

        regard evaluate runs/small --data test.en --data test.de
    """
    from regard.cli.data import offer
    from regard.cli.jobs import report
    from regard.evaluation import evaluate as evaluation
    from regard.models.folder import load
    from regard.training.distributed import pick_device

    _check_folders(plot, output)
    loaded: Any = load(model, pick_device(device))
    if cost_table:
        _check_cost(loaded, model)
    section = evaluation.data_section(loaded.card, data or ())
    offer(section)
    for file in evaluation.trained_on(loaded.card, data or ()):
        report(f"warning: the model was trained on {file}; scores on it say nothing about new text")
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
        record = result.as_dict() | {"training_flops": cost and cost.flops}
        print(json.dumps(record, ensure_ascii=False, indent=2))
    else:
        _print(result)
        _print_cost(cost, cost_table)


def _check_folders(*paths: Path | None) -> None:
    from regard.errors import OptionError

    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise OptionError(f"{path} cannot be written, its folder does not exist; create it first")


def _check_cost(model: Any, folder: Path) -> None:
    """Raise OptionError if --cost-table does not apply to the model."""
    from regard.errors import OptionError

    if model.kind != "translator":
        raise OptionError(f"--cost-table compares translators, and this model is {model.what}; leave it out")
    if not (model.card.get("flops") and model.card.get("seconds")):
        raise OptionError(
            f"--cost-table needs the training FLOPs, and the card of {folder} does not have them; leave it "
            "out"
        )


def _print_cost(cost: Any, with_table: bool) -> None:
    from regard.evaluation.training_cost import table

    if cost is None:
        return
    print(f"\ntrained with {cost.flops:.1e} FLOPs in {duration(cost.hours * 3600)}")
    if with_table:
        print("published models on WMT-2014; costs compare, BLEU on other data does not")
        print(table(cost))


def _print(result: Evaluation) -> None:
    from regard.cli.jobs import report

    beam = f", beam {result.beam}" if result.beam else ""
    print(f"{result.data}, {result.split}: {result.lines} lines in {result.seconds:.1f} s{beam}")
    for metrics in (result.language, result.metrics):
        if metrics is not None:
            print(metrics)
    for tokenize, scores in result.text.items():
        if len(result.text) > 1:
            how = "as it is, like published scores" if tokenize == "none" else "tokenised again by sacreBLEU"
            print(f"\nthe text is tokenised; {how} ({tokenize})")
        print(scores)
        for warning in scores.warnings:
            if "look tokenised" not in warning:  # printed above
                report(f"warning: {warning}")
    if result.lengths is not None:
        print(f"\n{result.lengths}")
