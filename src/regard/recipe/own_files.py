"""Recipes for a user's own files, by the kind of model: `regard train classifier my.csv`.

The templates are in `recipes/own-files`. `recipe_for` fills in the files, their columns and a training length
for their size; the result is an ordinary recipe. With model.pretrained or training.start it fine-tunes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.csv_reader import Csv
from regard.data.readers import JsonLines, Rows, Table
from regard.data.text_files import check_file
from regard.errors import DataError, RecipeError
from regard.recipe.loading import included_folder, override, read_yaml, run_name
from regard.tasks import get_task

MAX_COUNTED_ROWS = 200_000


@dataclass(frozen=True)
class ModelKind:
    """Settings of `regard train KIND FILE`."""

    task: str
    example: str  # a file name for messages
    characters_per_token: float  # approximately
    tokens_per_step: int
    epochs: int
    steps: tuple[int, int]  # minimum and maximum
    large: int  # characters from which on `large_overrides` apply
    large_overrides: tuple[str, ...]


KINDS = {
    "classifier": ModelKind(
        "classify", "my.csv", 4.0, 1600, 20, (150, 4000), 50_000_000,
        ("tokenizer.size=20000",),
    ),
    "tagger": ModelKind(
        "tag", "my.conll", 1.0, 4096, 20, (150, 4000), 50_000_000,
        ("model.encoder.width=256",),
    ),
    "translator": ModelKind(
        "translate", "my.tsv", 3.0, 2048, 12, (300, 20_000), 3_000_000,
        (
            "tokenizer.size=8000", "model.dim=256", "model.encoder.inner=1024", "model.decoder.inner=1024",
            "optimizer.lr=0.0015",
        ),
    ),
    "language-model": ModelKind(
        "language", "my.txt", 1.0, 768, 3, (300, 5000), 5_000_000,
        ("tokenizer={kind: bpe, size: 8000}", "model.dim=256", "model.decoder.inner=680"),
    ),
}  # fmt: skip


def recipe_for(
    model_kind: str, files: Sequence[str], overrides: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Return a recipe for a model of kind `model_kind` on the files, and two lines about what was assumed."""
    kind = KINDS[model_kind]
    paths = _check_files(model_kind, files)
    two_files = model_kind == "translator" and len(paths) == 2
    entries: list[Any] = [list(map(str, paths))] if two_files else list(map(str, paths))
    column_keys = ("data.source=", "data.target=")
    columns = override({}, [o for o in overrides if o.startswith(column_keys)]).get("data", {})
    rows = get_task(kind.task).row_format.read(entries, columns.get("source"), columns.get("target"))
    raw = read_yaml(included_folder() / "own-files" / f"{model_kind}.yaml")
    pretrained = _pretrained(overrides)
    if pretrained is not None:
        raw, kind = _fine_tuning(raw, kind)
    raw["name"] = run_name(paths[0].name.partition(".")[0], model_kind)
    raw["data"] = {**raw["data"], "train": entries, **_columns(rows)}
    count, characters = _count(rows)
    if not count:
        raise DataError(f"{paths[0]} has no rows, at most a header; give a file with text")
    large = characters > kind.large
    raw = override(raw, [*_length(kind, characters), *(kind.large_overrides if large else ())])
    size = "a larger model, because there is much text" if large else "a small model"
    model = f"fine-tuning {pretrained}" if pretrained else size
    guessed = len(columns) < 2 and bool(_columns(rows))
    return raw, _assumptions(override(raw, overrides), kind, count, model) + "\n" + _how_to_change(guessed)


def _check_files(model_kind: str, files: Sequence[str]) -> list[Path]:
    if not files:
        example = f"regard train {model_kind} {KINDS[model_kind].example}"
        raise RecipeError(f"no file is given; name a file of your own, as `{example}`")
    paths = [Path(file).expanduser() for file in files]
    for path in paths:
        check_file(path)
    if model_kind == "translator" and len(paths) > 2:
        raise DataError(
            f"a translator takes one table or two line-aligned files, got {len(paths)}; "
            "write a recipe for more"
        )
    return paths


def _length(kind: ModelKind, characters: int) -> list[str]:
    """Overrides for steps, warmup and validations, by the size of the data."""
    least, most = kind.steps
    tokens = kind.epochs * characters / kind.characters_per_token
    steps = min(max(least, round(tokens / kind.tokens_per_step)), most)
    every = -(-steps // 6)  # rounded up, so that the last validation is at the end
    return [
        f"training.steps={steps}",
        f"schedule.warmup={max(1, steps // 10)}",
        f"training.validate_every={every}",
        f"training.save_every={every}",
    ]


def _pretrained(overrides: Sequence[str]) -> str | None:
    """The model that the overrides fine-tune, if any."""
    keys = ("model.pretrained=", "training.start=")
    return next((o.partition("=")[2] for o in overrides if o.startswith(keys)), None)


def _fine_tuning(raw: dict[str, Any], kind: ModelKind) -> tuple[dict[str, Any], ModelKind]:
    """The recipe and its length for fine-tuning; the pretrained model determines sizes and tokenizer."""
    data = {key: value for key, value in raw["data"].items() if key != "max_length"}
    other_blocks = {key: value for key, value in raw.items() if key not in ("model", "tokenizer")}
    template = read_yaml(included_folder() / "own-files" / "fine-tuned.yaml")
    shorter = replace(kind, characters_per_token=4.0, tokens_per_step=1024, epochs=4, large_overrides=())
    return {**other_blocks, "data": data, **template}, shorter


def _assumptions(raw: dict[str, Any], kind: ModelKind, count: int, model: str) -> str:
    """Size, length and split of the training, in a line."""
    training, share = raw["training"], raw["data"].get("hold_out")
    paired = get_task(kind.task).row_format.paired
    more = " or more" if count == MAX_COUNTED_ROWS else ""
    parts = [model, f"{training['steps']} steps"]
    minutes = training.get("minutes")
    parts += [f"at most {minutes} minute{'' if minutes == 1 else 's'}"] if minutes else []
    parts += [f"{share:.0%} of the rows held out for validation"] if isinstance(share, float) else []
    return f"{count:,}{more} {'rows' if paired else 'lines'}: {', '.join(parts)}"


def _how_to_change(guessed: bool) -> str:
    columns = "; data.source=N data.target=M choose other columns" if guessed else ""
    return f"--dry-run shows the cost; KEY=VALUE changes any of it (`regard recipes --keys`){columns}"


def _columns(rows: Rows) -> dict[str, str]:
    """The columns or fields that were detected, so that the recipe names them."""
    columns: Sequence[Any] = ()
    if isinstance(rows, Table | Csv):
        columns = rows.columns
    elif isinstance(rows, JsonLines):
        columns = rows.fields
    return dict(zip(("source", "target"), map(str, columns), strict=False))


def _count(rows: Rows) -> tuple[int, int]:
    """The number of rows (at most MAX_COUNTED_ROWS), and of characters in their first column."""
    count = characters = 0
    for row in islice(rows, MAX_COUNTED_ROWS):
        count += 1
        characters += len(row[0])
    return count, characters
