"""`regard faithfulness`: measure whether a model's attention explains its outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a model or a run, or of a Hugging Face model.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME|FILE",
            help="A corpus, or a file, instead of the model's test or validation set; for a Hugging Face "
            "model a file with one text per line.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help="A text instead of data; repeatable.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the corpus; default: the test set.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of texts, drawn with the seed.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    attention: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Attention that is the explanation: a name as in regard.watch."),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this measure: correlation, permuted, uniform, adversary, erasure, flips, rollout or "
            "flow; repeatable."
        ),
    ] = None,
    other_seed: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="A model of the same recipe with another seed; repeatable."),
    ] = None,
    diagnostic: Annotated[
        bool,
        typer.Option(
            "--diagnostic", help="Classifiers: also train a perceptron guided by the model's attention."
        ),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="HTML", help="Write a page with plots and the texts.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure whether attention explains the outputs of a classifier, tagger, translator or language model.

    Rank correlation with gradients and leave-one-out; permuted, uniform and adversarial attention; erasure of
    tokens and weights; attention rollout and flow. Prints one sentence per figure.

    Examples:

        regard faithfulness runs/sst2-attention --limit 200 --report faithfulness.html

        regard faithfulness runs/sst2-attention --text "a film to remember"

        regard faithfulness runs/sst2-attention --other-seed seed-2 --other-seed seed-3
    """
    from regard.cli.option_groups import check_utf8
    from regard.errors import OptionError
    from regard.evaluation.explanation.diagnostic_mlp import diagnostic_mlp
    from regard.evaluation.explanation.explained_models import explained_model
    from regard.evaluation.explanation.faithfulness import faithfulness
    from regard.evaluation.explanation.inputs import load_inputs
    from regard.evaluation.explanation.report import check_folder, write_report
    from regard.evaluation.explanation.seed_variance import seed_variance
    from regard.models.folder import load
    from regard.training.distributed import pick_device

    check_utf8("text", *(text or ()))
    if report is not None:
        check_folder(report)
    if data and text:
        raise OptionError("--data and --text both name the texts; give one of them")
    inputs = load_inputs(model, pick_device(device))
    explained_model(inputs.model, inputs.tokenizer)  # before data are read
    texts = list(text or ()) or inputs.draw(data or [], split, limit, seed)
    result = faithfulness(
        inputs.model,
        texts,
        tokenizer=inputs.tokenizer,
        attention=attention,
        measures=measure or None,
        seed=seed,
        progress=True,
    )
    more: dict[str, Any] = {}
    if other_seed:
        others = [load(folder, pick_device(device)) for folder in other_seed]
        options: dict[str, Any] = {"attention": attention, "seed": seed, "progress": True}
        more["seeds"] = seed_variance([inputs.model, *others], texts, **options)
    if diagnostic:
        more["diagnostic"] = diagnostic_mlp(
            inputs.model, *inputs.labelled(data or [], split), seed=seed, progress=True
        )
    if as_json:
        record = result.as_dict() | {name: part.as_dict() for name, part in more.items()}
        print(json.dumps(record, ensure_ascii=False, indent=2))
    else:
        print(result)
        for part in more.values():
            print(f"\n{part}")
    if report is not None:
        notes = [" ".join(str(part).split()) for part in more.values()]
        write_report(result, report, f"Faithfulness of attention: {model.name}", notes)
        if not as_json:
            print(f"\nreport: {report}")
