"""Damaged folders of models, taggers, indexes, recommenders and runs, each used by its command.

Each command must end with one sentence and exit code 2, or, if the change does not concern the command, with
the answer of the undamaged folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import load_file, save_file
from tests.models import tampering
from tests.models.tampering import DEEP, replace_by_folder, replace_text, set_config, truncate
from tests.search.small import embedder
from tests.training import tiny

from benchmarks.attack import commands
from benchmarks.attack.commands import CommandResult, Launcher
from benchmarks.attack.outcome import Outcome, Plan, attacking
from regard.files.atomic import write_folder
from regard.files.checksums import CHECKSUMS, file_sha256
from regard.interactions.recommender import Recommender
from regard.models.folder import save
from regard.pipelines.embed import embed
from regard.recipe.loading import dump_recipe, load_recipe
from regard.search import build_index
from regard.search.documents import Document
from regard.search.index import IndexInfo
from regard.training.step_folders import step_folders

WRONG = ("x", "", [], {}, [[]], -1, 2**70, 1e308, True, None, "../..", "\0")
DRAWN = 30  # random changes per kind of folder


class Subject(NamedTuple):
    """A kind of folder: an intact one, the command that reads it, named changes, and random changes."""

    name: str
    folder: Path
    command: Callable[[Path], list[str]]
    changes: dict[str, Callable[[Path], Any]]
    drawn: tuple[Callable[[random.Random, Path], str], ...]


def run(plan: Plan) -> list[Outcome]:
    with commands.launcher(plan.folder) as launcher:
        subjects = [make(plan, launcher) for make in (model, tagger, index, recommender, training_run)]
        cases = [(subject, name) for subject in subjects for name in [*subject.changes, *range(DRAWN)]]
        numbers = plan.numbers(len(cases))[:: 10 if plan.quick else 1]
        with attacking("changed folders", "folders", len(numbers), "folders") as (outcome, progress):
            intact = {
                subject.name: run_on_copy(launcher, subject, plan.folder / "used" / "intact", None)[0]
                for subject in subjects
            }
            unaffected = 0
            for number in numbers:
                subject, name = cases[number]
                change = name if isinstance(name, str) else plan.draw(subject.name, name)
                target = plan.folder / "used" / f"{subject.name}-{number}"
                result, description = run_on_copy(launcher, subject, target, change)
                problem = find_problem(result, intact[subject.name])
                outcome.count += 1
                unaffected += result.code == 0
                progress.advance()
                if problem:
                    outcome.failed(number, f"{subject.name}, {description}: {problem}", plan.seed)
            refused = outcome.count - unaffected
            outcome.note = f"{refused} refused with a sentence, {unaffected} not needed by the command"
    return [outcome]


def run_on_copy(
    launcher: Launcher, subject: Subject, target: Path, change: str | random.Random | None
) -> tuple[CommandResult, str]:
    """Copy a folder, change the copy and run its command; return the result and what was changed."""
    shutil.copytree(subject.folder, target)
    description = change if isinstance(change, str) else ""
    if isinstance(change, str):
        subject.changes[change](target)
    elif change is not None:
        description = change.choice(subject.drawn)(change, target)
    result = launcher.run(subject.command(target))
    answer = result.output.replace(str(target), "FOLDER")
    if (
        result.code == 0 and (target / "checkpoints").is_dir()
    ):  # `resume --quiet` prints nothing: compare its model
        answer = file_sha256(target / "model" / "model.safetensors")
    shutil.rmtree(target)
    return result._replace(output=answer), description


def find_problem(result: CommandResult, intact: CommandResult) -> str | None:
    """What is wrong with the result of a command on a changed folder; None if nothing is."""
    if intact.code:
        return f"the intact folder gives {intact.code}: {intact.errors}"
    if "Traceback" in result.errors:
        return f"a traceback: {result.errors[-300:]}"
    if result.code == 0:
        return (
            None
            if result.output == intact.output
            else f"used without an error, with another answer: {result.output[:200]}"
        )
    lines = result.errors.strip().splitlines()
    last_line = lines[-1] if lines else ""
    if result.code != 2 or not last_line.startswith("regard: ") or not 20 < len(last_line) < 800:
        return f"exit code {result.code} and {result.errors[-300:]!r}"
    return None if len(lines) == 1 else f"{len(lines)} lines instead of one: {result.errors[:300]!r}"


# Random changes: each changes one file and returns a description.


def flipped(draw: random.Random, folder: Path) -> str:
    path = any_file(draw, folder)
    content = bytearray(path.read_bytes())
    if not content:
        return "nothing to flip"
    position = draw.randrange(len(content))
    content[position] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"bit of byte {position} of {path.relative_to(folder)} flipped"


def shortened(draw: random.Random, folder: Path) -> str:
    path = any_file(draw, folder)
    length = draw.randrange(max(1, path.stat().st_size))
    os.truncate(path, length)
    return f"{path.relative_to(folder)} cut to {length} bytes"


def removed(draw: random.Random, folder: Path) -> str:
    path = any_file(draw, folder)
    path.unlink()
    return f"{path.relative_to(folder)} removed"


def swapped(draw: random.Random, folder: Path) -> str:
    first, second = any_file(draw, folder), any_file(draw, folder)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    return f"{first.relative_to(folder)} and {second.relative_to(folder)} swapped"


def mistyped(*names: str) -> Callable[[random.Random, Path], str]:
    """Replace a value of a JSON file by one of another type or size, and update the checksums to match."""

    def change(draw: random.Random, folder: Path) -> str:
        name, seed, description = (
            draw.choice([name for name in names if any(folder.rglob(name))]),
            draw.random(),
            "",
        )
        for path in sorted(folder.rglob(name)):  # in all checkpoints: otherwise the one before would be used
            content = json.loads(path.read_text(encoding="utf-8"))
            description = replaced(random.Random(seed), content, "")
            path.write_text(json.dumps(content), encoding="utf-8")
            update_checksums(path.parent)
        return f"{name}: {description}"

    return change


def replaced(draw: random.Random, block: Any, where: str) -> str:
    keys = list(block) if isinstance(block, dict) else range(len(block))
    key = draw.choice(keys)
    if isinstance(block[key], dict | list) and block[key] and draw.random() < 0.8:
        return replaced(draw, block[key], f"{where}.{key}")
    value = draw.choice([value for value in WRONG if not is_valid_replacement(block[key], value)])
    block[key] = value
    return f"{where}.{key} is {value!r:.30}"


def is_valid_replacement(value: Any, replacement: Any) -> bool:
    """True if a replacement is still valid: any number for a float, a value of the same type otherwise."""
    if isinstance(value, float):
        return isinstance(replacement, int | float) and not isinstance(replacement, bool)
    return type(value) is type(replacement) and replacement != 2**70


def update_checksums(folder: Path) -> None:
    """Recompute checksums.json, so that the change is not noticed by its checksum."""
    if (folder / CHECKSUMS).is_file():
        sums = {
            name: file_sha256(folder / name)
            for name in json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        }
        (folder / CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")


def any_file(draw: random.Random, folder: Path) -> Path:
    """A random file of a folder, at any depth."""
    return draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))


def without_checksums(changes: dict) -> dict:
    """The same changes in a folder without checksums, which would reveal every change."""

    def bare(change: Callable, name: str) -> Callable:
        def edit(folder: Path) -> None:
            for path in folder.rglob(CHECKSUMS) if not name.startswith(CHECKSUMS) else ():
                path.unlink()
            change(folder)

        return edit

    return {name: bare(change, name) for name, change in changes.items()}


FILES = (flipped, shortened, removed, swapped)


def model(plan: Plan, launcher: Launcher) -> Subject:
    folder = plan.folder / "model"
    write_folder(folder, tampering.save)
    drawn = (*FILES, *[mistyped("config.json", "card.json", "tokenizer.json")] * 4)
    changes = without_checksums(tampering.TAMPERINGS)
    return Subject(
        "a translator",
        folder,
        lambda path: commands.on_text("translate", path, "a small dog"),
        changes,
        drawn,
    )


def tagger(plan: Plan, launcher: Launcher) -> Subject:
    folder = plan.folder / "tagger"
    write_folder(folder, tampering.save_tagger)
    drawn = (*FILES, *[mistyped("config.json", "source.json", "target.json")] * 4)
    changes = without_checksums(tampering.TAGGER_TAMPERINGS)
    return Subject(
        "a tagger", folder, lambda path: commands.on_text("tag", path, "Ada saw Ulm"), changes, drawn
    )


def index(plan: Plan, launcher: Launcher) -> Subject:
    folder, model_folder = plan.folder / "index", plan.folder / "embedder"
    model = embedder(dim=16)
    save(model_folder, model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    documents = [Document(f"d{i}", f"text number {i}") for i in range(30)]
    build_index.create(folder, IndexInfo(str(model_folder), model.fingerprint(), 16))
    build_index.add(
        folder,
        documents,
        embed([document.text for document in documents], model),
        min_graph_size=10,
        threads=1,
    )
    drawn = (*FILES, *[mistyped("index.json")] * 3)
    return Subject("an index", folder, commands.search, without_checksums(tampering.INDEX_TAMPERINGS), drawn)


def recommender(plan: Plan, launcher: Launcher) -> Subject:
    folder, rng = plan.folder / "recommender", np.random.default_rng(1)
    users, items = [f"u{n}" for n in range(8)], [f"i{n}" for n in range(6)]
    vectors = rng.normal(size=(8, 2)), rng.normal(size=(6, 2))
    Recommender(
        users, items, [], 3.0, rng.normal(size=8), rng.normal(size=6), *vectors, 1.0, 5.0, {5: [1]}
    ).save(folder)
    changes = {
        "an intercept of text": set_config("intercept", "3"),
        "factors 2**70": set_config("factors", 2**70),
        "names are deep": replace_text("names.json", DEEP),
        "names.json is a folder": replace_by_folder("names.json"),
        "weights of no bytes": truncate("model.safetensors", 0),
        "another kind": set_config("kind", "translator"),
    }
    drawn = (*FILES, *[mistyped("config.json", "names.json")] * 3)
    return Subject("a recommender", folder, commands.recommend, without_checksums(changes), drawn)


def training_run(plan: Plan, launcher: Launcher) -> Subject:
    """A run that was stopped: it has checkpoints, and no model yet."""
    folder, recipe = plan.folder / "run", plan.folder / "recipe.yaml"
    changes = {"training__steps": 16, "training__validate_every": 8, "training__average": 1}
    recipe.write_text(dump_recipe(load_recipe(tiny.recipe(plan.folder, **changes))), encoding="utf-8")
    launcher.run(commands.train(recipe, folder))
    shutil.rmtree(folder / "model")
    (folder / "report.json").unlink()
    return Subject("a run", folder, commands.resume, RUNS, (*FILES, *[mistyped("state.json")] * 6))


def every(name: str, change: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Make the same change in every checkpoint, and update the checksums."""

    def edit(folder: Path) -> None:
        for step in step_folders(folder / "checkpoints"):
            change(step / name)
            update_checksums(step)

    return edit


def weights(change: Callable[[dict], Any]) -> Callable[[Path], None]:
    """Change the tensors of every checkpoint."""

    def edit(path: Path) -> None:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return every("tensors.safetensors", edit)


def written(content: str | bytes) -> Callable[[Path], Any]:
    """Overwrite a file."""
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


def first_matrix(tensors: dict) -> str:
    """The name of the first floating-point matrix."""
    return min(name for name in tensors if tensors[name].is_floating_point() and tensors[name].ndim > 1)


RUNS: dict[str, Callable[[Path], Any]] = {
    "recipe.yaml is empty": replace_text("recipe.yaml", ""),
    "recipe.yaml is a list": replace_text("recipe.yaml", "[1, 2]"),
    "recipe.yaml is deep": replace_text("recipe.yaml", DEEP),
    "recipe.yaml is no UTF-8": lambda path: (path / "recipe.yaml").write_bytes(b"\xff\xfe\x00"),
    "recipe.yaml has a tag": replace_text("recipe.yaml", "name: !!python/object/apply:os.getcwd []"),
    "recipe.yaml is long": replace_text("recipe.yaml", "# " + "x" * (1 << 20)),
    "recipe.yaml is a folder": replace_by_folder("recipe.yaml"),
    "recipe.yaml is another": replace_text("recipe.yaml", "name: other\nmodel: {dim: 32}\n"),
    "states are lists": every("state.json", written("[]")),
    "states are empty": every("state.json", written("{}")),
    "states are deep": every("state.json", written(DEEP)),
    "states are no JSON": every("state.json", written("{nonsense")),
    "states are no UTF-8": every("state.json", written(b"\xff\xfe{}")),
    "weights are NaN": weights(lambda tensors: tensors[first_matrix(tensors)].fill_(float("nan"))),
    "a tensor is missing": weights(lambda tensors: tensors.pop(first_matrix(tensors))),
    "a tensor is renamed": weights(lambda tensors: tensors.update(other=tensors.pop(first_matrix(tensors)))),
    "a tensor is shorter": weights(
        lambda tensors: tensors.update({first_matrix(tensors): tensors[first_matrix(tensors)][:1].clone()})
    ),
    "a tensor is of integers": weights(
        lambda tensors: tensors.update({first_matrix(tensors): tensors[first_matrix(tensors)].int()})
    ),
    "tensors of no bytes": every("tensors.safetensors", written(b"")),
    "tensors of nonsense": every("tensors.safetensors", written(b"nonsense" * 100)),
    "a header of 2**60 bytes": every("tensors.safetensors", written((2**60).to_bytes(8, "little") + b"{}")),
    "checksums are lists": lambda path: [
        (step / CHECKSUMS).write_text("[1]") for step in step_folders(path / "checkpoints")
    ],
    "checksums are deep": lambda path: [
        (step / CHECKSUMS).write_text(DEEP) for step in step_folders(path / "checkpoints")
    ],
    "checksums name a file elsewhere": lambda path: [
        (step / CHECKSUMS).write_text(json.dumps({"../../../secret": "0" * 64}))
        for step in step_folders(path / "checkpoints")
    ],
    "checkpoints is a file": lambda path: (
        shutil.rmtree(path / "checkpoints"),
        (path / "checkpoints").write_text("x"),
    ),
    "log.jsonl is nonsense": lambda path: (path / "log.jsonl").write_bytes(b"\xff\x00" * 500),
    "log.jsonl is deep": replace_text("log.jsonl", DEEP + "\n"),
    "log.jsonl holds numbers": replace_text("log.jsonl", "1\n2\n"),
    "log.jsonl is a folder": replace_by_folder("log.jsonl"),
}
