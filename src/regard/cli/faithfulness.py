"""`regard faithfulness`: measure whether a model's attention explains its outputs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.option_groups import OptionGroup, check_utf8, grouped, option

if TYPE_CHECKING:
    from regard.evaluation.explanation.explained_inputs import ExplainedInputs
    from regard.evaluation.explanation.faithfulness import FaithfulnessResult


@dataclass(frozen=True)
class TextOptions(OptionGroup):
    """The texts, or sequences of numbers, whose outputs are explained."""

    data: Annotated[
        list[str] | None,
        option(
            "--data",
            metavar="NAME|FILE",
            help="A corpus, or a file, instead of the model's test or validation set; for a Hugging Face "
            "model a file with one text per line, for a model of sequences of numbers .npy, .csv or a table "
            "of file names.",
        ),
    ] = None
    text: Annotated[
        list[str] | None,
        option("--text", help="A text, or the file of a sequence, instead of data; repeatable."),
    ] = None
    split: Annotated[str | None, option(help="Split of the corpus; default: the test set.")] = None
    limit: Annotated[int, option(min=1, help="Number of texts, drawn with the seed.")] = 100
    seed: Annotated[int, option(min=0, help="Seed of all random choices.")] = 0

    def check(self) -> None:
        """Raise OptionError for texts from two sources, or in another encoding than UTF-8."""
        from regard.errors import OptionError

        check_utf8("text", *(self.text or ()))
        if self.data and self.text:
            raise OptionError("--data and --text both name the texts; give one of them")

    def draw(self, inputs: ExplainedInputs) -> list[str]:
        """Return the texts of --text, or a random sample of the data."""
        return list(self.text or ()) or inputs.draw(self.data or [], self.split, self.limit, self.seed)


@dataclass(frozen=True)
class FaithfulnessOptions(OptionGroup):
    """What is measured."""

    attention: Annotated[
        str | None,
        option(metavar="PATTERN", help="Attention that is the explanation: a name as in regard.watch."),
    ] = None
    measure: Annotated[
        list[str] | None,
        option(
            help="Only this measure: correlation, permuted, uniform, adversary, erasure, flips, rollout or "
            "flow; repeatable."
        ),
    ] = None
    other_seed: Annotated[
        list[Path] | None,
        option(metavar="FOLDER", help="A model of the same recipe with another seed; repeatable."),
    ] = None
    diagnostic: Annotated[
        bool,
        option("--diagnostic", help="Classifiers: also train a perceptron guided by the model's attention."),
    ] = False


@dataclass(frozen=True)
class FaithfulnessOutputOptions(OptionGroup):
    """What is printed and written."""

    report: Annotated[Path | None, option(metavar="HTML", help="Write a page with plots and the texts.")] = (
        None
    )
    as_json: Annotated[bool, option("--json", help="Print JSON.")] = False


@grouped
def command(
    model: Annotated[Path, typer.Argument(help="Folder of a model or a run, or of a Hugging Face model.")],
    *,
    texts: TextOptions,
    measures: FaithfulnessOptions,
    output: FaithfulnessOutputOptions,
    device: Annotated[str, option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure whether attention explains the outputs of a classifier, tagger, translator or language model.

    Rank correlation with gradients and leave-one-out; permuted, uniform and adversarial attention; erasure of
    tokens and weights; attention rollout and flow. Prints one sentence per metric.

    Examples:

        regard faithfulness runs/sst2-attention --report faithfulness.html

        regard faithfulness film-reviews --text "a film to remember"

        regard faithfulness runs/sst2-attention --other-seed seed-2

        regard faithfulness runs/signals --data x.npy    # numbers
    """
    from regard.attention.devices import pick_device
    from regard.evaluation.explanation.explained_inputs import load_inputs
    from regard.evaluation.explanation.explained_models import explained_model
    from regard.evaluation.explanation.faithfulness import faithfulness
    from regard.evaluation.explanation.report import check_folder

    texts.check()
    if output.report is not None:
        check_folder(output.report)
    inputs = load_inputs(model, pick_device(device))
    explained_model(inputs.model, inputs.tokenizer)  # raises for an unsupported model, before data are read
    drawn = texts.draw(inputs)
    result = faithfulness(
        inputs.model,
        drawn,
        tokenizer=inputs.tokenizer,
        attention=measures.attention,
        measures=measures.measure or None,
        seed=texts.seed,
        progress=True,
    )
    extra = _extra_results(inputs, drawn, texts, measures, device)
    _print(result, extra, output.as_json)
    if output.report is not None:
        _write_report(result, extra, output, model.name)


def _extra_results(
    inputs: ExplainedInputs, drawn: list[str], texts: TextOptions, measures: FaithfulnessOptions, device: str
) -> dict[str, Any]:
    """Return the results of --other-seed and --diagnostic."""
    from regard.attention.devices import pick_device
    from regard.evaluation.explanation.diagnostic_mlp import diagnostic_mlp
    from regard.evaluation.explanation.seed_variance import seed_variance
    from regard.models.folder import load

    results: dict[str, Any] = {}
    if measures.other_seed:
        models = [inputs.model, *(load(folder, pick_device(device)) for folder in measures.other_seed)]
        results["seeds"] = seed_variance(
            models, drawn, attention=measures.attention, seed=texts.seed, progress=True
        )
    if measures.diagnostic:
        labelled = inputs.labelled(texts.data or [], texts.split)
        results["diagnostic"] = diagnostic_mlp(inputs.model, *labelled, seed=texts.seed, progress=True)
    return results


def _print(result: FaithfulnessResult, extra: dict[str, Any], as_json: bool) -> None:
    if as_json:
        record = result.as_dict() | {name: part.as_dict() for name, part in extra.items()}
        print(json.dumps(record, ensure_ascii=False, indent=2))
    else:
        print("\n\n".join(map(str, (result, *extra.values()))))


def _write_report(
    result: FaithfulnessResult, extra: dict[str, Any], output: FaithfulnessOutputOptions, name: str
) -> None:
    from regard.evaluation.explanation.report import write_report

    assert output.report is not None
    notes = [" ".join(str(part).split()) for part in extra.values()]
    write_report(result, output.report, f"Faithfulness of attention: {name}", notes)
    if not output.as_json:
        print(f"\nreport: {output.report}")
