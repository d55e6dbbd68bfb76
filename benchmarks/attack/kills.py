"""Kill training, indexing, translating and classifying at random moments, resume, compare with full runs.

A case is one run: it is killed a few times, mostly by SIGKILL, sometimes by SIGTERM and SIGINT, and then runs
to its end. The moments are drawn from the seed; what they interrupt depends on the speed of the machine.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.decoding import model_folders
from tests.search.small import embedder
from tests.training import tiny

from benchmarks.attack import commands
from benchmarks.attack.commands import Launcher
from benchmarks.attack.outcome import Outcome, Plan, attacking
from regard.models.folder import save
from regard.recipe.loading import dump_recipe, load_recipe

KILLS = {"training": 20, "indexing": 14, "translating": 14, "classifying": 8}
QUICK = {"training": 1, "indexing": 1, "translating": 1, "classifying": 0}
KILLS_PER_RUN = 3  # then the run may finish
SIGNALS = (signal.SIGKILL,) * 7 + (signal.SIGTERM, signal.SIGTERM, signal.SIGINT)
EXPECTED_CODES = {
    signal.SIGTERM: (143, -signal.SIGTERM),
    signal.SIGINT: (130, -signal.SIGINT),
    signal.SIGKILL: (-signal.SIGKILL,),
}


class Job(NamedTuple):
    """Resumable work: the command for a target, and a check of the finished target."""

    name: str
    command: Callable[[Path], list[str]]
    differs: Callable[[Path, Path], str | None]


def run(plan: Plan) -> list[Outcome]:
    outcomes = []
    with commands.launcher(plan.folder) as launcher:
        for name, kills in (QUICK if plan.quick else KILLS).items():
            if kills:
                outcomes.append(attack(plan, launcher, JOBS[name](plan), kills))
    return outcomes


def attack(plan: Plan, launcher: Launcher, job: Job, kills: int) -> Outcome:
    """Run a job again and again until it was killed `kills` times, each run compared with the reference."""
    reference, seconds = plan.folder / f"{job.name}-reference", 0.0
    with attacking(f"kills of {job.name}", "kills", kills, "kills") as (outcome, progress):
        start = time.monotonic()
        result = launcher.run(job.command(reference))
        seconds = time.monotonic() - start
        if result.code:
            outcome.failed(0, f"the run without kills ended with {result.code}: {result.errors}", plan.seed)
            return outcome
        number, runs = plan.only or 0, 0

        def count_kill() -> None:
            outcome.count += 1
            progress.advance()

        while outcome.count < kills:
            target, before = plan.folder / f"{job.name}-{number}", outcome.count
            draw = plan.draw(job.name, number)
            wanted = min(KILLS_PER_RUN, kills - outcome.count)
            problem = run_with_kills(launcher, job, target, draw, seconds, wanted, count_kill)
            problem = problem or job.differs(target, reference)
            if problem:
                outcome.failed(number, problem, plan.seed)
            remove(target)
            number, runs = number + 1, runs + 1
            if plan.only is not None or (outcome.count == before and runs > 5 * kills):
                break
        outcome.note = f"{runs} runs of {seconds:.1f} s, each as if it had never been killed"
    return outcome


def run_with_kills(
    launcher: Launcher,
    job: Job,
    target: Path,
    draw: random.Random,
    seconds: float,
    kills: int,
    count_kill: Callable[[], None],
) -> str | None:
    """Start, kill and restart a run, then let it finish; return what went wrong, if anything."""
    for _ in range(kills):
        number, delay = draw.choice(SIGNALS), draw.uniform(0, 0.7 * seconds)
        child = launcher.start(job.command(target))
        if child.wait(delay) is None:
            child.send(number)
            code = child.wait()
            if code == 0:
                continue  # it finished just before the signal
            count_kill()
            if code not in EXPECTED_CODES[number] or "Traceback" in commands.errors(child):
                name = signal.Signals(number).name
                return f"ended with {code} after {name} at {delay:.2f} s: {commands.errors(child)}"
        elif child.code != 0:
            return f"was resumed and ended with {child.code}: {commands.errors(child)}"
    result = launcher.run(job.command(target))
    return f"was resumed and ended with {result.code}: {result.errors}" if result.code else None


def remove(target: Path) -> None:
    """Delete a file or folder."""
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def training(plan: Plan) -> Job:
    recipe = plan.folder / "recipe.yaml"
    recipe.write_text(
        dump_recipe(load_recipe(tiny.recipe(plan.folder, training__steps=20 if plan.quick else 120))),
        encoding="utf-8",
    )

    def command(run: Path) -> list[str]:
        return commands.resume(run) if (run / "recipe.yaml").is_file() else commands.train(recipe, run)

    def differs(run: Path, reference: Path) -> str | None:
        steps = [entry["step"] for entry in tiny.log(run)]
        if len(steps) != len(set(steps)):
            return f"the log has lines twice: {steps}"
        different = tiny.differences(run, reference)
        return f"another run than without kills: {', '.join(different)} differ" if different else None

    return Job("training", command, differs)


def indexing(plan: Plan) -> Job:
    texts, model = plan.folder / "documents.txt", plan.folder / "embedder"
    embedding_model = embedder(encoder={"kind": "embedding"})
    save(
        model,
        embedding_model,
        embedding_model.config,
        embedding_model.source_tokenizer,
        embedding_model.target_tokenizer,
        {},
    )
    write_lines(texts, 4_000 if plan.quick else 36_000, 6, plan.draw("documents", 0))
    return Job("indexing", lambda folder: commands.index(texts, folder, model), different_files)


def translating(plan: Plan) -> Job:
    model, texts = model_folders.translator(plan.folder / "translator"), plan.folder / "sentences.txt"
    write_lines(texts, 4_200 if plan.quick else 12_500, 3, plan.draw("sentences", 0))
    return Job("translating", lambda path: commands.on_file("translate", model, texts, path), different_bytes)


def classifying(plan: Plan) -> Job:
    model, texts = model_folders.classifier(plan.folder / "classifier"), plan.folder / "texts.txt"
    write_lines(texts, 40_000, 6, plan.draw("texts", 0))
    return Job("classifying", lambda path: commands.on_file("classify", model, texts, path), different_bytes)


JOBS = {"training": training, "indexing": indexing, "translating": translating, "classifying": classifying}


def write_lines(path: Path, count: int, words: int, draw: random.Random) -> None:
    """Write lines of 1 to `words` random words."""
    vocabulary = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 8))) for _ in range(500)
    ]
    lines = (" ".join(draw.choices(vocabulary, k=draw.randint(1, words))) for _ in range(count))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def different_bytes(path: Path, reference: Path) -> str | None:
    leftovers = [file.name for file in path.parent.glob(f"*{path.name}*") if file != path]
    if path.read_bytes() != reference.read_bytes():
        return f"{path.name} is not byte for byte the file of the run without kills"
    return f"left behind: {', '.join(leftovers)}" if leftovers else None


def different_files(folder: Path, reference: Path) -> str | None:
    """Which files of two folders differ; None if none do."""
    names = [
        sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        for root in (folder, reference)
    ]
    if names[0] != names[1]:
        return f"other files than without kills: {sorted(set(names[0]) ^ set(names[1]))}"
    different = [name for name in names[0] if (folder / name).read_bytes() != (reference / name).read_bytes()]
    return f"not the bytes of the run without kills: {', '.join(different)}" if different else None
