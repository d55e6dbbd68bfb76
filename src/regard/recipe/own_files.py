"""A recipe for files of one's own, named by one word: `regard train classifier my.csv`.

The recipes are in `recipes/own-files`. Here the files, their columns and a length of training that fits their size are filled in;
what comes out is an ordinary recipe, and `key=value` overrides it. With model.pretrained or training.start it fine-tunes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.readers import JsonLines, Rows, Table
from regard.data.row_formats import row_format_of
from regard.data.table_readers import Csv
from regard.data.text_files import check_file
from regard.errors import DataError, RecipeError
from regard.recipe.bundled import folder
from regard.recipe.overrides import override
from regard.recipe.yaml_file import read

LOOKED_AT = 200_000  # rows whose characters are counted


@dataclass(frozen=True)
class Kind:
    """What one word stands for: the task, how long to train, what larger data get, and how the model is used."""

    task: str
    per_token: float  # characters of a token, about
    step: int  # tokens of a step
    epochs: int
    steps: tuple[int, int]  # fewest and most
    large: int  # characters from which on `larger` holds
    larger: tuple[str, ...]
    use: str


KINDS = {
    "classifier": Kind("classify", 4.0, 1600, 20, (150, 4000), 50_000_000, ("tokenizer.size=20000",), 'classify "a text" --model {run}'),
    "tagger": Kind("tag", 1.0, 4096, 20, (150, 4000), 50_000_000, ("model.encoder.width=256",), 'tag "a sentence" --model {run}'),
    "translator": Kind(
        "translate", 3.0, 2048, 12, (300, 20_000), 3_000_000,
        ("tokenizer.size=8000", "model.dim=256", "model.encoder.inner=1024", "model.decoder.inner=1024", "optimizer.lr=0.0015"),
        'translate "a sentence" --model {run}',
    ),
    "language-model": Kind(
        "language", 1.0, 768, 3, (300, 5000), 5_000_000,
        ("tokenizer={kind: bpe, size: 8000}", "model.dim=256", "model.decoder.inner=680"), 'generate "The beginning" --model {run}',
    ),
}  # fmt: skip


def recipe_for(word: str, files: Sequence[str], overrides: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """The recipe that a word means for these files, and in a line what was assumed."""
    kind = KINDS[word]
    if not files:
        raise RecipeError(
            f"no file is given; name a file of your own, as `regard train {word} {EXAMPLES[word]}`"
        )
    paths = [Path(name).expanduser() for name in files]
    for path in paths:
        check_file(path)
    if word == "translator" and len(paths) > 2:
        raise DataError(
            f"a translator takes one table or two line-aligned files, got {len(paths)}; write a recipe for more"
        )
    given = override(
        {}, [each for each in overrides if each.startswith(("data.source=", "data.target="))]
    ).get("data", {})
    named: list[Any] = (
        [list(map(str, paths))] if word == "translator" and len(paths) == 2 else list(map(str, paths))
    )
    rows = row_format_of(kind.task).read(named, given.get("source"), given.get("target"))
    raw, tuned = read(folder() / "own-files" / f"{word}.yaml"), _tuned(overrides)
    if tuned is not None:
        raw, kind = _fine_tuning(raw, kind)
    raw["name"] = re.sub(r"[^A-Za-z0-9._-]+", "-", paths[0].name.partition(".")[0]).lstrip("-._") or word
    raw["data"] = {**raw["data"], "train": named, **_columns(rows)}
    count, characters = _measured(rows)
    if not count:
        raise DataError(f"{paths[0]} has no rows, at most a header; give a file with text")
    steps = min(
        max(kind.steps[0], round(kind.epochs * characters / kind.per_token / kind.step)), kind.steps[1]
    )
    large = characters > kind.large
    changes = [
        f"training.steps={steps}",
        f"schedule.warmup={max(1, steps // 10)}",
        *(kind.larger if large else ()),
    ]
    changes += [
        f"training.{key}_every={-(-steps // 6)}" for key in ("validate", "save")
    ]  # the last one at the end
    raw = override(raw, changes)
    guessed = len(given) < 2 and bool(_columns(rows))
    size = "a larger model, as there is much text" if large else "a small model"
    what = f"fine-tuning {tuned}" if tuned else size
    return raw, _assumed(override(raw, overrides), kind, count, what) + "\n" + _how_to_change(guessed)


def _how_to_change(guessed: bool) -> str:
    columns = "; data.source=N data.target=M choose other columns" if guessed else ""
    return f"--dry-run shows the cost; KEY=VALUE changes any of it (`regard recipes --keys`){columns}"


def _tuned(overrides: Sequence[str]) -> str | None:
    """What is fine-tuned, where an override says so."""
    return next(
        (
            each.partition("=")[2]
            for each in overrides
            if each.startswith(("model.pretrained=", "training.start="))
        ),
        None,
    )


def _fine_tuning(raw: dict[str, Any], kind: Kind) -> tuple[dict[str, Any], Kind]:
    """The recipe and its length for a model that was trained before: its sizes, tokenizer and longest text are given."""
    data = {key: value for key, value in raw["data"].items() if key != "max_length"}
    kept = {key: value for key, value in raw.items() if key not in ("model", "tokenizer")}
    return {**kept, "data": data, **read(folder() / "own-files" / "fine-tuned.yaml")}, replace(
        kind, per_token=4.0, step=1024, epochs=4, larger=()
    )


def _assumed(raw: dict[str, Any], kind: Kind, count: int, what: str) -> str:
    """Size, length and split of the training, in a line."""
    training, share = raw["training"], raw["data"].get("hold_out")
    rows = f"{count:,}{' or more' if count == LOOKED_AT else ''} {'lines' if kind.task == 'language' else 'rows'}"
    parts = [what, f"{training['steps']} steps"]
    parts += [f"at most {training['minutes']} minutes"] if training.get("minutes") else []
    parts += [f"{share:.0%} of the rows held out for validation"] if isinstance(share, float) else []
    return f"{rows}: {', '.join(parts)}"


EXAMPLES = {
    "classifier": "my.csv", "tagger": "my.conll", "translator": "my.tsv", "language-model": "my.txt"
}  # fmt: skip


def _columns(rows: Rows) -> dict[str, str]:
    """The columns or fields that were found, so that the recipe names them."""
    found: Sequence[Any] = ()
    if isinstance(rows, Table | Csv):
        found = rows.columns
    elif isinstance(rows, JsonLines):
        found = rows.fields
    return dict(zip(("source", "target"), map(str, found), strict=False))


def _measured(rows: Rows) -> tuple[int, int]:
    """How many rows there are, and characters of their first column; at most LOOKED_AT rows are counted."""
    count = characters = 0
    for row in islice(rows, LOOKED_AT):
        count += 1
        characters += len(row[0])
    return count, characters
