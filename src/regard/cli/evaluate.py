"""`regard evaluate`: score a trained model on a test set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.option_groups import Ensemble, OptionGroup, check_outputs, grouped, option
from regard.cli.runs import duration

if TYPE_CHECKING:
    from regard.evaluation.evaluate import EvaluationResult
    from regard.evaluation.training_cost import TrainingCost


@dataclass(frozen=True)
class DataOptions(OptionGroup):
    """What the model is scored on."""

    data: Annotated[
        list[str] | None,
        option(
            "--data",
            metavar="NAME|FILE",
            help="A corpus, or a file (.tsv, .csv, .jsonl, .txt, CoNLL), instead of the model's test or "
            "validation set; give it twice for source and target.",
        ),
    ] = None
    split: Annotated[str | None, option(help="Split of the corpus; default: the test set.")] = None

    def section(self, card: dict[str, Any]) -> dict[str, Any]:
        """Return the `data:` block; download the corpus if the user agrees, warn about training files."""
        from regard.cli.data import offer
        from regard.cli.jobs import report
        from regard.evaluation.evaluate import data_section, trained_on

        section = data_section(card, self.data or ())
        offer(section)
        for file in trained_on(card, self.data or ()):
            report(f"warning: the model was trained on {file}; scores on it say nothing about new text")
        return section


@dataclass(frozen=True)
class EvaluateOutputOptions(OptionGroup):
    """What is printed and written."""

    by_length: Annotated[
        bool, option("--by-length", help="Translators: also print BLEU by sentence length.")
    ] = False
    plot: Annotated[
        Path | None,
        option(
            metavar="PNG",
            help="Plot BLEU by sentence length (translators), or confusion matrix and calibration "
            "(classifiers).",
        ),
    ] = None
    cost_table: Annotated[
        bool,
        option(
            "--cost-table", help="Translators: compare the training cost with published models of WMT-2014."
        ),
    ] = False
    rate: Annotated[
        str | None,
        option(
            metavar="FLOPS|DEVICE",
            help="Sustained FLOP/s of the training device, or its name (P100, H200): training cost as device "
            "time × rate, and utilisation.",
        ),
    ] = None
    output: Annotated[
        Path | None,
        option(
            "--output", "-o", help="Write the predictions (translations, labels, tags) here, one per line."
        ),
    ] = None
    as_json: Annotated[bool, option("--json", help="Print JSON.")] = False


@grouped
def command(
    model: Annotated[Path, typer.Argument(help="Folder of a model or a run.")],
    *,
    ensemble: Ensemble = None,
    data: DataOptions,
    beam: Annotated[int | None, option(min=1, max=1000, help="Beam size; default: the recipe's.")] = None,
    length_penalty: Annotated[
        float | None,
        option(help="Exponent a of the length normalisation log p / lengthᵃ; default: the recipe's."),
    ] = None,
    against: Annotated[
        Path | None,
        option(
            metavar="MODEL|FILE",
            help="Compare with another model, or with a file of its outputs (one per line, as -o writes): "
            "difference, confidence interval, paired bootstrap and approximate randomisation.",
        ),
    ] = None,
    output: EvaluateOutputOptions,
    device: Annotated[str, option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Score a model on its test set, its held-out rows, or a file of your own.

    Translators: BLEU, chrF, TER. Language models: perplexity, bits per character. Classifiers: accuracy, F1
    per class, confusion matrix, calibration. Taggers: precision, recall and F1 of entities. Embedders:
    retrieval or similarity scores.

    Examples:

        regard evaluate runs/small --by-length

        regard evaluate runs/sst2 --plot confusion.png    # a classifier

        regard evaluate runs/sst2 --data my.csv

        regard evaluate runs/small --data test.en --data test.de

        regard evaluate runs/small --against runs/other    # significance

        regard evaluate runs/sst2 --with runs/sst2-cnn    # an ensemble
    """
    from regard.evaluation.evaluate import evaluate, training_cost
    from regard.evaluation.training_cost import parse_rate

    inputs = [*(data.data or ()), *([against] if against else ())]
    check_outputs(output.plot, output.output, inputs=inputs)
    other = _other_system(against, device)
    loaded = _load(model, ensemble or [], device)
    rate = None if output.rate is None else parse_rate(output.rate)
    if output.cost_table or rate is not None:
        _check_cost(loaded, model, output)
    result = evaluate(
        loaded,
        data.section(loaded.card),
        data.split,
        beam=beam,
        length_penalty=length_penalty,
        lengths=output.by_length,
        plot=output.plot,
        output=output.output is not None,
        progress=not output.as_json,
        against=other,
    )
    if result.comparison is not None:
        result.comparison = replace(result.comparison, name=str(against))
    _print(result, output, training_cost(loaded.card, result, rate))
    _write_files(result, output, model.name)


def _load(folder: Path, others: Sequence[Path], device: str) -> Any:
    """The model, or an ensemble of classifiers with others."""
    from regard.attention.devices import pick_device
    from regard.models.classifier import Classifier, ClassifierEnsemble
    from regard.models.folder import load
    from regard.pipelines.job import load_kind

    if not others:
        return load(folder, pick_device(device))
    needed = "evaluate --with takes classifiers"
    folders = (folder, *others)
    return ClassifierEnsemble([load_kind(f, pick_device(device), Classifier, needed) for f in folders])


def _other_system(against: Path | None, device: str) -> Any:
    """The model, or the file, that --against names; None without it."""
    from regard.attention.devices import pick_device
    from regard.models.folder import load

    if against is None or against.is_file():
        return against
    return load(against, pick_device(device))


def _write_files(result: EvaluationResult, options: EvaluateOutputOptions, name: str) -> None:
    """Write the predictions, and the plot of BLEU by length; evaluators draw the other plots."""
    from regard.evaluation.by_length import plot
    from regard.files.atomic import write_file

    if options.output is not None:
        write_file(options.output, "".join(f"{line}\n" for line in result.predictions))
    if options.plot is not None and result.lengths is not None:
        plot({name: result.lengths}, options.plot)


def _check_cost(model: Any, folder: Path, options: EvaluateOutputOptions) -> None:
    """Raise OptionError if --cost-table or --rate does not apply to the model."""
    from regard.errors import OptionError

    if options.cost_table and model.kind != "translator":
        raise OptionError(f"--cost-table compares translators, and this model is {model.what}; leave it out")
    if not (model.card.get("flops") and model.card.get("seconds")):
        raise OptionError(
            f"{'--cost-table' if options.cost_table else '--rate'} needs the training FLOPs, and the card of "
            f"{folder} does not have them; leave it out"
        )


def _print_cost(cost: TrainingCost | None, with_table: bool) -> None:
    from regard.evaluation.training_cost import table

    if cost is None:
        return
    print(f"\ntrained with {cost.flops:.1e} FLOPs in {duration(cost.hours * 3600)}")
    if cost.rate is not None:
        devices = "1 device" if cost.devices == 1 else f"{cost.devices} devices"
        print(
            f"device time × rate: {cost.estimated_flops:.1e} FLOPs ({devices}, {cost.rate:.2e} FLOP/s), "
            f"utilisation {cost.utilization:.1%}"
        )
    if with_table:
        print("published models on WMT-2014; costs compare, BLEU on other data does not")
        print(table(cost))


def _print(result: EvaluationResult, options: EvaluateOutputOptions, cost: TrainingCost | None) -> None:
    if options.as_json:
        names = {
            "training_flops": "flops",
            "estimated_flops": "estimated_flops",
            "utilization": "utilization",
        }
        record = result.as_dict() | {key: cost and getattr(cost, name) for key, name in names.items()}
        print(json.dumps(record, ensure_ascii=False, indent=2))
    else:
        _print_scores(result)
        _print_cost(cost, options.cost_table)


def _print_scores(result: EvaluationResult) -> None:
    from regard.cli.jobs import report

    beam = f", beam {result.beam}" if result.beam else ""
    print(f"{result.data}, {result.split}: {result.lines} lines in {result.seconds:.1f} s{beam}")
    for metrics in (result.language, result.metrics):
        if metrics is not None:
            print(metrics)
    for tokenize, scores in result.text.items():
        if len(result.text) > 1:
            text = "as it is, like published scores" if tokenize == "none" else "tokenised again by sacreBLEU"
            print(f"\nthe text is tokenised; {text} ({tokenize})")
        print(scores)
        for warning in scores.warnings:
            if "look tokenised" not in warning:  # printed above
                report(f"warning: {warning}")
    for part in (result.lengths, result.comparison):
        if part is not None:
            print(f"\n{part}")
