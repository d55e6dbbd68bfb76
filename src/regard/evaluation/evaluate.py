"""How good a trained model is on a text.

The text is a part of the corpus the model was trained on, of another known corpus, or files; the model's card knows the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data import corpora
from regard.data.datasets import load_split
from regard.data.prepared_cache import hold
from regard.errors import DataError
from regard.evaluation.metrics import EVALUATORS, Evaluation, EvaluationOptions, evaluation_batches
from regard.evaluation.training_cost import TrainingCost

__all__ = ["Evaluation", "data_section", "default_split", "evaluate", "evaluation_batches", "training_cost"]


def data_section(card: dict[str, Any], data: Sequence[str] = ()) -> dict[str, Any]:
    """The `data` section of a recipe for what a user names: nothing (the model's own corpus), a known name, or files."""
    own = dict((card.get("recipe") or {}).get("data") or {})
    if not data:
        if not own:
            raise DataError("this model's card does not say what it was trained on; name a text with --data")
        return own
    kept = {key: own[key] for key in ("source", "target", "scheme", "repair") if own.get(key)}
    if len(data) == 1 and data[0] in corpora.names():
        same = own.get("corpus") == data[0]
        return {
            **kept,
            "corpus": data[0],
            **({k: own[k] for k in ("version", "fold", "folds") if own.get(k)} if same else {}),
        }
    return {**kept, "test": list(data)}


def default_split(data: dict[str, Any]) -> str:
    """The customary test set, else the validation set."""
    if data.get("test") or data.get("folds"):
        return "test"
    if not data.get("corpus"):
        return "validation" if data.get("validation") or data.get("hold_out") else "test"
    known = corpora.find(data["corpus"])
    return "test" if "test" in known.roles or known.folds else "validation"


def evaluate(
    model: Any,
    data: dict[str, Any],
    split: str | None = None,
    *,
    beam: int | None = None,
    lengths: bool = False,
    picture: Path | None = None,
    output: bool = False,
    progress: bool = False,
) -> Evaluation:
    """Score a model (as `regard.models.folder.load` gives it) on a part of a `data` section."""
    judge, wishes = EVALUATORS[model.kind], EvaluationOptions(beam, lengths, picture, output, progress)
    judge.refuse(model, wishes)
    split = split or default_split(data)
    source = None if judge.task == "language" else model.source_tokenizer
    found = load_split({**data, "max_length": None}, split, source, model.target_tokenizer, judge.task)
    name = data.get("corpus") or ", ".join(
        map(str, _flat(data.get(split) or data.get("test") or data.get("train") or []))
    )
    hold(found.prepared, f"{split} set of {name}, regard evaluate")
    start = time.perf_counter()
    result = Evaluation(name, split, len(found.targets), 0.0)
    judge.run(result, model, found, wishes)
    result.seconds = time.perf_counter() - start
    return result


def training_cost(card: dict[str, Any], result: Evaluation) -> TrainingCost | None:
    """What training the model took, for the row beside the lecture's table; None when the card does not say."""
    if not card.get("flops") or not card.get("seconds"):
        return None
    task = f"{result.data} {result.split}"
    return TrainingCost(
        card.get("name", "this model"),
        task,
        card["flops"],
        card["seconds"] / 3600,
        card.get("processes", 1),
        bleu=result.bleu,
    )


def _flat(entries: Any) -> list[Any]:
    return [name for entry in entries for name in (entry if isinstance(entry, list) else [entry])]
