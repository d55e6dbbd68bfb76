"""A loss or gradient that is not finite: which rows, kept in a file, and a clear end."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from regard.data.batches import Batch
from regard.errors import RegardError
from regard.files.atomic import write_file
from regard.training.datasets import Datasets
from regard.training.distributed import World
from regard.training.run_folder import RunFolder
from regard.training.step import NonFinite


def stop_at(trouble: NonFinite, run: RunFolder, material: Datasets, world: World) -> NoReturn:
    """Save the batches of the step in the run's folder and raise an error that names them. No weight was changed by it."""
    mine = {"step": trouble.step, "batches": [_describe(b, loss, material) for b, loss in _suspects(trouble)]}
    parts = [json.loads(part) for part in world.gather(json.dumps(mine).encode())]
    found = [part for part in parts if part["batches"]]
    step = min((part["step"] for part in found), default=trouble.step)
    batches = [batch for part in found if part["step"] == step for batch in part["batches"]]
    file = run.folder / f"not-finite-step-{step:08d}.json"
    rows = [row for batch in batches for row in batch["rows"]]
    message = world.share(
        _sentence(step, rows, trouble, str(file)).encode() if world.first else None
    ).decode()
    if world.first:
        content = {"step": step, "gradient_norm": str(trouble.norm), "batches": batches}
        write_file(file, json.dumps(content, indent=1, ensure_ascii=False).encode())
    raise RegardError(message)


def _suspects(trouble: NonFinite) -> list[tuple[Batch, float]]:
    """The batches whose loss was not finite; when only the gradient was not, all of the step."""
    pairs = list(zip(trouble.batches, trouble.losses, strict=True))
    return [(batch, loss) for batch, loss in pairs if loss - loss != 0] or pairs


def _sentence(step: int, rows: list[int], trouble: NonFinite, file: str) -> str:
    what = "loss" if any(loss - loss != 0 for loss in trouble.losses) else "gradient"
    shown = ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
    return (
        f"the {what} of step {step} is not finite (rows {shown} of the training set, saved in {file}); "
        "lower optimizer.lr, lengthen schedule.warmup, or look at these rows"
    )


def _describe(batch: Batch, loss: float, material: Datasets) -> dict[str, Any]:
    """The batch as JSON: row numbers, tokens and what they spell."""
    sides: dict[str, Any] = {}
    for side, tokens, lengths, ahead in (
        ("source", batch.source, batch.source_lengths, 0), ("target", batch.target, batch.target_lengths, 1),
    ):  # fmt: skip
        if tokens is None or lengths is None:
            continue
        tokenizer = material.source_tokenizer if side == "source" else material.target_tokenizer
        ids = [row[ahead : ahead + n] for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True)]
        sides[side] = [
            {"tokens": row, "text": tokenizer.decode(row) if tokenizer is not None else ""} for row in ids
        ]
    return {"rows": batch.rows.tolist(), "loss": str(loss), **sides}
