"""Evaluate a trained model on a split of its own corpus, of another known corpus, or on files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.arguments import quoted
from regard.data import corpora
from regard.data.column_detection import column_number
from regard.data.datasets import Split, load_split
from regard.data.prepared_cache import hold
from regard.data.reader_choice import names_columns
from regard.data.row_formats import row_format_of
from regard.data.sequence_rows import SequenceRowFormat
from regard.data.text_files import aligned_lines
from regard.errors import DataError, OptionError
from regard.evaluation.evaluators import EVALUATORS, EvaluationOptions, EvaluationResult, evaluation_batches
from regard.evaluation.training_cost import TrainingCost, rate_of_device
from regard.models.target_language import language_of

__all__ = [
    "EvaluationResult",
    "data_section",
    "default_split",
    "evaluate",
    "evaluation_batches",
    "model_split",
    "trained_on",
    "training_cost",
]


def data_section(card: dict[str, Any], data: Sequence[str] = ()) -> dict[str, Any]:
    """The `data` section of a recipe for the model's own corpus (no `data`), a corpus name, or files."""
    own = dict((card.get("recipe") or {}).get("data") or {})
    if not data:
        if not own:
            raise DataError("this model's card does not name its training data; give the data with --data")
        held_out = _flat(own.get("test") or own.get("validation") or [])
        for name in (str(name) for name in held_out):
            if name.partition(":")[0] not in corpora.names() and not Path(name).expanduser().exists():
                raise DataError(
                    f"this model was validated on {name}, which is not here; give the data with --data: "
                    "files, or a corpus of `regard data`"
                )
        return own
    kept = {key: own[key] for key in ("source", "target", "scheme", "repair", "labels") if own.get(key)}
    if len(data) == 1 and data[0] in corpora.names():
        same = own.get("corpus") == data[0]
        known = corpora.find(data[0]).languages
        sides = {side: language_of(card, side) for side in ("source", "target")}
        kept |= {side: name for side, name in sides.items() if name in known}  # not columns of a table
        return {
            **kept,
            "corpus": data[0],
            **({k: own[k] for k in ("version", "fold", "folds") if own.get(k)} if same else {}),
        }
    if len(data) == 1 and names_columns(Path(data[0]), labelled=card.get("task") == "classify"):
        # The columns of the training files may have other places.
        kept = {key: value for key, value in kept.items() if column_number(value) is None}
    return {**kept, "test": list(data)}


def trained_on(card: dict[str, Any], data: Sequence[str]) -> list[str]:
    """Those of the files that are among the model's training files."""
    files = {str(name) for name in _flat(((card.get("recipe") or {}).get("data") or {}).get("train") or [])}
    return [name for name in data if str(Path(name).expanduser().absolute()) in files]


def default_split(data: dict[str, Any]) -> str:
    """The test set if there is one, else the validation set."""
    if data.get("test") or data.get("folds"):
        return "test"
    if not data.get("corpus"):
        return "validation" if data.get("validation") or data.get("hold_out") else "test"
    known = corpora.find(data["corpus"])
    return "test" if "test" in known.roles or known.folds else "validation"


def model_split(model: Any, data: dict[str, Any], split: str) -> Split:
    """A split of a `data` section, read as the model reads it: rows of any length, texts or sequences."""
    rows = row_format_of(EVALUATORS[model.kind].task)
    source = model.source_tokenizer if rows.paired else None
    if source is not None and source.kind == "frames":
        rows = SequenceRowFormat(rows)
    return load_split({**data, "max_length": None}, split, source, model.target_tokenizer, rows)


def evaluate(
    model: Any,
    data: dict[str, Any],
    split: str | None = None,
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    lengths: bool = False,
    plot: Path | None = None,
    output: bool = False,
    progress: bool = False,
    against: Any = None,
) -> EvaluationResult:
    """Evaluate a model (from `regard.models.folder.load`) on a split of a `data` section.

    Args:
        model: the model.
        data: the `data` section, as `data_section` returns it.
        split: default: `default_split`.
        beam: beam size of a translator; None: that of its recipe, or 5.
        length_penalty: exponent of the length in the scores of beam search; None: that of its recipe, or 1.
        lengths: also BLEU by sentence length.
        plot: write a plot here: BLEU by length, or the confusion matrix of a classifier.
        output: the predictions will be written; raise if this kind of model has none.
        progress: show a progress bar.
        against: another model, or its outputs: a list, or a file with one per line. `comparison` of the
            result then has the significance of the difference.
    """
    evaluator = EVALUATORS[model.kind]
    options = EvaluationOptions(
        beam, length_penalty, lengths, plot, output, progress, _target_language(data), against is not None
    )
    evaluator.check_options(model, options)
    split = split or default_split(data)
    held_out = {"validation": data.get("hold_out"), "test": data.get("folds")}
    if split in held_out and not (data.get("corpus") or data.get(split) or held_out[split]):
        raise DataError(f"this model was trained on files without a {split} set; name a file with --data")
    loaded = model_split(model, data, split)
    name = data.get("corpus") or ", ".join(
        map(str, _flat(data.get(split) or data.get("test") or data.get("train") or []))
    )
    hold(loaded.prepared, f"{split} set of {name}, for evaluation")
    start = time.perf_counter()
    result = EvaluationResult(name, split, len(loaded.targets), 0.0)
    evaluator.run(result, model, loaded, options)
    result.seconds = time.perf_counter() - start
    if against is not None:
        other, label = _other_outputs(against, model, data, split, options)
        if len(other) != len(result.predictions):
            raise DataError(
                f"{label} has {len(other)} outputs and the {split} set of {name} has "
                f"{len(result.predictions)} lines; give one output per line"
            )
        result.comparison = evaluator.compare(result, model, loaded, other, label)
    return result


def _other_outputs(
    against: Any, model: Any, data: dict[str, Any], split: str, options: EvaluationOptions
) -> tuple[Sequence[str], str]:
    """Outputs of the system to compare with, and its name."""
    if isinstance(against, (list, tuple)):
        return against, "other"
    if isinstance(against, (str, Path)):
        return aligned_lines(Path(against)), str(against)
    if getattr(against, "kind", None) != model.kind:
        what = getattr(against, "what", quoted(against))
        raise OptionError(f"--against must be {model.what} too, or a file of its outputs, and it is {what}")
    result = evaluate(
        against, data, split, beam=options.beam, length_penalty=options.length_penalty,
        progress=options.progress,
    )  # fmt: skip
    return result.predictions, str(against.card.get("name") or "other")


def _target_language(data: dict[str, Any]) -> str | None:
    """The target of a `data` section, else the second language of a corpus of two; None without either."""
    if data.get("target") or not data.get("corpus"):
        return data.get("target")
    languages = corpora.find(data["corpus"]).languages
    return languages[1] if len(languages) == 2 else None


def training_cost(
    card: dict[str, Any], result: EvaluationResult, rate: float | None = None
) -> TrainingCost | None:
    """Training cost from the model's card, for comparison with Schmidt-Thieme's table; None if unknown.

    A published model that another one was continued from (`first` in card.json) counts too.
    `rate`: sustained FLOP/s of a device; None: that of the card's device, if a table has it.
    """
    if not card.get("flops") or not card.get("seconds"):
        return None
    runs, task = [card], f"{result.data} {result.split}"
    while isinstance(runs[-1].get("first"), dict):
        runs.append(runs[-1]["first"])
    return TrainingCost(
        card.get("name", "this model"),
        task,
        sum(run.get("flops") or 0 for run in runs),
        sum(run.get("seconds") or 0 for run in runs) / 3600,
        card.get("processes", 1),
        rate=rate_of_device(str(card.get("device"))) if rate is None else rate,
        bleu=result.bleu,
    )


def _flat(entries: Any) -> list[Any]:
    return [name for entry in entries for name in (entry if isinstance(entry, list) else [entry])]
