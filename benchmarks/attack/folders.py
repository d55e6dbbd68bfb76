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
from tests.models.tampering import DEEP, as_folder, at, cut, text
from tests.search.small import embedder
from tests.training import tiny

from benchmarks.attack import commands
from benchmarks.attack.commands import Ended, Launcher
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
DRAWN = 30  # random changes of each kind of folder


class Subject(NamedTuple):
    """A kind of folder: an intact one, the command that uses it, changes by name, and how they are drawn."""

    name: str
    folder: Path
    command: Callable[[Path], list[str]]
    changes: dict[str, Callable[[Path], Any]]
    drawn: tuple[Callable[[random.Random, Path], str], ...]


def run(plan: Plan) -> list[Outcome]:
    with commands.launcher(plan.place) as launcher:
        subjects = [make(plan, launcher) for make in (model, tagger, index, recommender, training_run)]
        cases = [(subject, name) for subject in subjects for name in [*subject.changes, *range(DRAWN)]]
        numbers = plan.numbers(len(cases))[:: 10 if plan.quick else 1]
        with attacking("changed folders", "folders", len(numbers), "folders") as (outcome, progress):
            whole = {
                subject.name: use(launcher, subject, plan.place / "used" / "whole", None)[0]
                for subject in subjects
            }
            unharmed = 0
            for number in numbers:
                subject, name = cases[number]
                drawn = name if isinstance(name, str) else plan.draw(subject.name, name)
                target = plan.place / "used" / f"{subject.name}-{number}"
                ended, shown = use(launcher, subject, target, drawn)
                problem = judge(ended, whole[subject.name])
                outcome.count += 1
                unharmed += ended.code == 0
                progress.advance()
                if problem:
                    outcome.failed(number, f"{subject.name}, {shown}: {problem}", plan.seed)
            outcome.note = (
                f"{outcome.count - unharmed} refused with a sentence, {unharmed} not needed by the command"
            )
    return [outcome]


def use(
    launcher: Launcher, subject: Subject, target: Path, change: str | random.Random | None
) -> tuple[Ended, str]:
    """Copy a folder, change it, run its command: how that ended, and what was changed."""
    shutil.copytree(subject.folder, target)
    shown = change if isinstance(change, str) else ""
    if isinstance(change, str):
        subject.changes[change](target)
    elif change is not None:
        shown = change.choice(subject.drawn)(change, target)
    ended = launcher.run(subject.command(target))
    answer = ended.output.replace(str(target), "FOLDER")
    if ended.code == 0 and (target / "checkpoints").is_dir():  # a run says nothing: its answer is its model
        answer = file_sha256(target / "model" / "model.safetensors")
    shutil.rmtree(target)
    return ended._replace(output=answer), shown


def judge(ended: Ended, whole: Ended) -> str | None:
    """What is wrong with how a command ended on a changed folder."""
    if whole.code:
        return f"the folder that nobody changed gives {whole.code}: {whole.errors}"
    if "Traceback" in ended.errors:
        return f"a traceback: {ended.errors[-300:]}"
    if ended.code == 0:
        return (
            None
            if ended.output == whole.output
            else f"used in silence, with another answer: {ended.output[:200]}"
        )
    lines = ended.errors.strip().splitlines()
    last = lines[-1] if lines else ""
    if ended.code != 2 or not last.startswith("regard: ") or not 20 < len(last) < 800:
        return f"exit code {ended.code} and {ended.errors[-300:]!r}"
    return None if len(lines) == 1 else f"{len(lines)} lines instead of one: {ended.errors[:300]!r}"


# How changes are drawn. Each changes one file and says what it did.


def flipped(draw: random.Random, folder: Path) -> str:
    path = any_file(draw, folder)
    content = bytearray(path.read_bytes())
    if not content:
        return "nothing to flip"
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"bit of byte {place} of {path.relative_to(folder)} flipped"


def shortened(draw: random.Random, folder: Path) -> str:
    path = any_file(draw, folder)
    left = draw.randrange(max(1, path.stat().st_size))
    os.truncate(path, left)
    return f"{path.relative_to(folder)} cut to {left} bytes"


def removed(draw: random.Random, folder: Path) -> str:
    path = any_file(draw, folder)
    path.unlink()
    return f"{path.relative_to(folder)} removed"


def swapped(draw: random.Random, folder: Path) -> str:
    one, other = any_file(draw, folder), any_file(draw, folder)
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    return f"{one.relative_to(folder)} and {other.relative_to(folder)} swapped"


def mistyped(*names: str) -> Callable[[random.Random, Path], str]:
    """Replace a value of a JSON file by one of another type or size, and update the checksums to match."""

    def change(draw: random.Random, folder: Path) -> str:
        name, seed, shown = (
            draw.choice([name for name in names if any(folder.rglob(name))]),
            draw.random(),
            "",
        )
        for path in sorted(folder.rglob(name)):  # of all checkpoints, or the one before would be taken
            found = json.loads(path.read_text(encoding="utf-8"))
            shown = replaced(random.Random(seed), found, "")
            path.write_text(json.dumps(found), encoding="utf-8")
            sign(path.parent)
        return f"{name}: {shown}"

    return change


def replaced(draw: random.Random, block: Any, where: str) -> str:
    keys = list(block) if isinstance(block, dict) else range(len(block))
    key = draw.choice(keys)
    if isinstance(block[key], dict | list) and block[key] and draw.random() < 0.8:
        return replaced(draw, block[key], f"{where}.{key}")
    value = draw.choice([value for value in WRONG if not alike(block[key], value)])
    block[key] = value
    return f"{where}.{key} is {value!r:.30}"


def alike(one: Any, other: Any) -> bool:
    """Whether one value may replace the other: any number for a float, a small one for an integer."""
    if isinstance(one, float):
        return isinstance(other, int | float) and not isinstance(other, bool)
    return type(one) is type(other) and other != 2**70


def sign(folder: Path) -> None:
    """Make checksums.json fit the files."""
    if (folder / CHECKSUMS).is_file():
        sums = {
            name: file_sha256(folder / name)
            for name in json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        }
        (folder / CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")


def any_file(draw: random.Random, folder: Path) -> Path:
    return draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))


def without_checksums(changes: dict) -> dict:
    """Changes that no checksum gives away."""

    def bare(change: Callable, name: str) -> Callable:
        def edit(folder: Path) -> None:
            for path in folder.rglob(CHECKSUMS) if not name.startswith(CHECKSUMS) else ():
                path.unlink()
            change(folder)

        return edit

    return {name: bare(change, name) for name, change in changes.items()}


FILES = (flipped, shortened, removed, swapped)


def model(plan: Plan, launcher: Launcher) -> Subject:
    folder = plan.place / "model"
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
    folder = plan.place / "tagger"
    write_folder(folder, tampering.save_tagger)
    drawn = (*FILES, *[mistyped("config.json", "source.json", "target.json")] * 4)
    changes = without_checksums(tampering.READERS)
    return Subject(
        "a tagger", folder, lambda path: commands.on_text("tag", path, "Ada saw Ulm"), changes, drawn
    )


def index(plan: Plan, launcher: Launcher) -> Subject:
    folder, place = plan.place / "index", plan.place / "embedder"
    made = embedder(dim=16)
    save(place, made, made.config, made.source_tokenizer, made.target_tokenizer, {})
    documents = [Document(f"d{i}", f"text number {i}") for i in range(30)]
    build_index.create(folder, IndexInfo(str(place), made.fingerprint(), 16))
    build_index.add(
        folder, documents, embed([each.text for each in documents], made), min_graph_size=10, threads=1
    )
    drawn = (*FILES, *[mistyped("index.json")] * 3)
    return Subject("an index", folder, commands.search, without_checksums(tampering.INDEXES), drawn)


def recommender(plan: Plan, launcher: Launcher) -> Subject:
    folder, rng = plan.place / "recommender", np.random.default_rng(1)
    users, items = [f"u{n}" for n in range(8)], [f"i{n}" for n in range(6)]
    vectors = rng.normal(size=(8, 2)), rng.normal(size=(6, 2))
    Recommender(
        users, items, [], 3.0, rng.normal(size=8), rng.normal(size=6), *vectors, 1.0, 5.0, {5: [1]}
    ).save(folder)
    changes = {
        "an intercept of text": at("intercept", "3"),
        "factors 2**70": at("factors", 2**70),
        "names are deep": text("names.json", DEEP),
        "names.json is a folder": as_folder("names.json"),
        "weights of no bytes": cut("model.safetensors", 0),
        "another kind": at("kind", "translator"),
    }
    drawn = (*FILES, *[mistyped("config.json", "names.json")] * 3)
    return Subject("a recommender", folder, commands.recommend, without_checksums(changes), drawn)


def training_run(plan: Plan, launcher: Launcher) -> Subject:
    """A run that was stopped: it has checkpoints, and no model yet."""
    folder, recipe = plan.place / "run", plan.place / "recipe.yaml"
    changes = {"training__steps": 16, "training__validate_every": 8, "training__average": 1}
    recipe.write_text(dump_recipe(load_recipe(tiny.recipe(plan.place, **changes))), encoding="utf-8")
    launcher.run(commands.train(recipe, folder))
    shutil.rmtree(folder / "model")
    (folder / "report.json").unlink()
    return Subject("a run", folder, commands.resume, RUNS, (*FILES, *[mistyped("state.json")] * 6))


def every(name: str, change: Callable[[Path], Any]) -> Callable[[Path], None]:
    """The same change in every checkpoint, with checksums that fit."""

    def edit(folder: Path) -> None:
        for step in step_folders(folder / "checkpoints"):
            change(step / name)
            sign(step)

    return edit


def weights(change: Callable[[dict], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return every("tensors.safetensors", edit)


def written(content: str | bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


def first(tensors: dict) -> str:
    return min(name for name in tensors if tensors[name].is_floating_point() and tensors[name].ndim > 1)


RUNS: dict[str, Callable[[Path], Any]] = {
    "recipe.yaml is empty": text("recipe.yaml", ""),
    "recipe.yaml is a list": text("recipe.yaml", "[1, 2]"),
    "recipe.yaml is deep": text("recipe.yaml", DEEP),
    "recipe.yaml is no UTF-8": lambda path: (path / "recipe.yaml").write_bytes(b"\xff\xfe\x00"),
    "recipe.yaml has a tag": text("recipe.yaml", "name: !!python/object/apply:os.getcwd []"),
    "recipe.yaml is long": text("recipe.yaml", "# " + "x" * (1 << 20)),
    "recipe.yaml is a folder": as_folder("recipe.yaml"),
    "recipe.yaml is another": text("recipe.yaml", "name: other\nmodel: {dim: 32}\n"),
    "states are lists": every("state.json", written("[]")),
    "states are empty": every("state.json", written("{}")),
    "states are deep": every("state.json", written(DEEP)),
    "states are no JSON": every("state.json", written("{nonsense")),
    "states are no UTF-8": every("state.json", written(b"\xff\xfe{}")),
    "weights are NaN": weights(lambda tensors: tensors[first(tensors)].fill_(float("nan"))),
    "a tensor is missing": weights(lambda tensors: tensors.pop(first(tensors))),
    "a tensor is renamed": weights(lambda tensors: tensors.update(other=tensors.pop(first(tensors)))),
    "a tensor is shorter": weights(
        lambda tensors: tensors.update({first(tensors): tensors[first(tensors)][:1].clone()})
    ),
    "a tensor is of integers": weights(
        lambda tensors: tensors.update({first(tensors): tensors[first(tensors)].int()})
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
    "log.jsonl is deep": text("log.jsonl", DEEP + "\n"),
    "log.jsonl holds numbers": text("log.jsonl", "1\n2\n"),
    "log.jsonl is a folder": as_folder("log.jsonl"),
}
