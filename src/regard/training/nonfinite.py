"""End a run whose loss or gradient is not finite, and save the rows that caused it."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from regard.data.batch import Batch
from regard.errors import RegardError
from regard.files.atomic import write_file
from regard.training.distributed import World
from regard.training.run_folder import RunFolder
from regard.training.step import NonFinite
from regard.training.training_data import TrainingData


def raise_non_finite(non_finite: NonFinite, run: RunFolder, data: TrainingData, world: World) -> NoReturn:
    """Save the batches of the step in the run folder and raise an error; the step changed no weights."""
    batches = [_as_json(batch, loss, data) for batch, loss in _suspects(non_finite)]
    local_report = json.dumps({"step": non_finite.step, "batches": batches}).encode()
    reports = [report for report in map(json.loads, world.gather(local_report)) if report["batches"]]
    step = min((report["step"] for report in reports), default=non_finite.step)
    batches = [batch for report in reports if report["step"] == step for batch in report["batches"]]
    file = run.folder / f"not-finite-step-{step:08d}.json"
    rows = [row for batch in batches for row in batch["rows"]]
    message = _message(step, rows, non_finite, str(file)).encode() if world.is_main else None
    message = world.broadcast(message).decode()
    if world.is_main:
        content = {"step": step, "gradient_norm": str(non_finite.norm), "batches": batches}
        write_file(file, json.dumps(content, indent=1, ensure_ascii=False).encode())
    raise RegardError(message)


def _suspects(non_finite: NonFinite) -> list[tuple[Batch, float]]:
    """The batches with a non-finite loss; all batches of the step if only the gradient was not finite."""
    pairs = list(zip(non_finite.batches, non_finite.losses, strict=True))
    return [(batch, loss) for batch, loss in pairs if loss - loss != 0] or pairs


def _message(step: int, rows: list[int], non_finite: NonFinite, file: str) -> str:
    quantity = "loss" if any(loss - loss != 0 for loss in non_finite.losses) else "gradient"
    shown = ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
    return (
        f"the {quantity} of step {step} is not finite (rows {shown} of the training set, saved in {file}); "
        "lower optimizer.lr, lengthen schedule.warmup, or look at these rows"
    )


def _as_json(batch: Batch, loss: float, data: TrainingData) -> dict[str, Any]:
    """Row numbers, tokens and text of a batch."""
    sides: dict[str, Any] = {}
    for side, tokens, lengths, start in (
        ("source", batch.source, batch.source_lengths, 0),
        ("target", batch.target, batch.target_lengths, 1),  # without BOS
    ):
        if tokens is None or lengths is None:
            continue
        tokenizer = data.source_tokenizer if side == "source" else data.target_tokenizer
        rows = [row[start : start + n] for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True)]
        sides[side] = [
            {"tokens": row, "text": tokenizer.decode(row) if tokenizer is not None else ""} for row in rows
        ]
    return {"rows": batch.rows.tolist(), "loss": str(loss), **sides}
