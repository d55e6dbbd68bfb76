"""Train by a recipe, and go on with a run that was stopped, killed or ended too soon.

    result = train("recipes/small.yaml", overrides=["training.steps=200"])
    result = resume(result.folder, overrides=["training.steps=400"])
    model = result.load()

A run killed at any moment and resumed gives the weights, bit by bit, of one that was not (on a CPU, with the same number of
processes). Under `torchrun` both do the same over several processes.
"""

from __future__ import annotations

import ctypes
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch

from regard.arguments import flag, string_list
from regard.errors import RecipeError, RegardError
from regard.files.atomic import write_file
from regard.files.lock import RunLock
from regard.models.folder import as_path
from regard.recipe.loading import Recipe, dump_recipe, load_recipe
from regard.recipe.start import Start
from regard.tasks import task_of
from regard.training import checkpoint, plot, rng_state, tensorboard
from regard.training.datasets import Datasets
from regard.training.display import Display
from regard.training.distributed import World, restarted, world
from regard.training.finish import finish
from regard.training.loop import TrainingLoop
from regard.training.run_folder import Result, RunFolder, check_unchanged
from regard.training.step_folders import newest_complete


def train(
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe,
    *,
    folder: str | PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    overwrite: bool = False,
    quiet: bool = False,
) -> Result:
    """Train by a recipe (a file, a carried name or a mapping) in a new run folder, runs/NAME unless `folder` says otherwise.

    Started again by torchrun after a failure, it goes on from the last checkpoint instead.
    """
    overrides = tuple(string_list("overrides", overrides))
    overwrite, quiet = flag("overwrite", overwrite), flag("quiet", quiet)
    given = as_path("folder", folder) if folder is not None else None
    settled = load_recipe(recipe, overrides)
    run = RunFolder(given or Path("runs") / settled.name)
    command = _command(recipe, overrides, run.folder)
    with world(lambda here: settled.training.device) as here:
        if restarted() and here.together(run.exists):
            return _resume(run, (), here, quiet)
        lock = RunLock(run.folder)

        def look() -> None:
            run.check_free(overwrite)
            if run.exists():  # it is replaced, unless another process works on it
                lock.acquire()

        def begin() -> None:
            run.make()
            lock.acquire()
            run.begin(settled, overwrite)

        try:
            here.together(look)
            return _go(run, settled, here, quiet, command=command, begin=begin)
        finally:
            lock.release()


def resume(folder: str | PathLike[str], *, overrides: Iterable[str] = (), quiet: bool = False) -> Result:
    """Go on with a run from its last whole checkpoint. `overrides` may change how long and where it runs, not what it learns."""
    run, quiet = RunFolder(as_path("folder", folder)), flag("quiet", quiet)
    overrides = tuple(string_list("overrides", overrides))
    with world(lambda here: here.together(lambda: run.read_recipe(overrides).training.device)) as here:
        return _resume(run, overrides, here, quiet)


def _resume(run: RunFolder, overrides: tuple[str, ...], here: World, quiet: bool) -> Result:
    lock = RunLock(run.folder)
    try:
        here.together(lock.acquire)
        return _resume_locked(run, overrides, here, quiet)
    finally:
        lock.release()


def _resume_locked(run: RunFolder, overrides: tuple[str, ...], here: World, quiet: bool) -> Result:
    show = Display(quiet or not here.first)
    recipe = run.load(here.together(lambda: run.read_recipe(overrides).model_dump()))
    name = here.together(lambda: _name(newest_complete(run.checkpoints, show.say)))
    if name is None:
        show.say("there is no checkpoint yet, so the run begins again")
        return _go(run, recipe, here, quiet)
    folder = run.checkpoints / name
    before = here.together(lambda: checkpoint.read_state(folder))
    try:
        trained = run.load(before["recipe"])
    except RegardError as error:
        raise checkpoint.damaged(folder, f"recipe in {checkpoint.STATE}: {error}") from None
    check_unchanged(trained, recipe, run.folder)
    show.say(f"going on after step {before['progress']['step']:,}")
    # The rounding of sums depends on the number of threads, so it stays what it was unless the recipe says otherwise.
    return _go(run, recipe, here, quiet, folder=folder, threads=before["threads"])


def _unit(recipe: Recipe) -> str:
    """What a step learns from: tokens, rows, tags."""
    return task_of(recipe.task).predicts.removeprefix("target ")


def _name(folder: Path | None) -> str | None:
    return None if folder is None else folder.name


def _go(
    run: RunFolder,
    recipe: Recipe,
    here: World,
    quiet: bool,
    *,
    folder: Path | None = None,
    threads: int | None = None,
    command: str = "",
    begin: Callable[[], None] | None = None,
) -> Result:
    """Everything that can be wrong is looked at before the folder is made; then train to the end, or until interrupted."""
    check(recipe, here)
    with surroundings(recipe, here, threads), Display(quiet or not here.first, _unit(recipe)) as show:
        start = Start.of(recipe, None if begin else run.start)
        material = Datasets.load(recipe, here, show.say, start)
        session = TrainingLoop(run, recipe, here, material, show, command, start)
        here.together(begin or (lambda: write_file(run.recipe, dump_recipe(recipe).encode())))
        if start is not None and begin is not None:
            here.together(lambda: start.save(run.start))
        try:
            session.open(folder)
            reason = session.loop()
            progress = session.progress
            if reason == "interrupted":
                if here.first:
                    plot.draw(run.log, run.curves, recipe.name, session.task)
                return Result(
                    run.folder,
                    False,
                    reason,
                    progress.step,
                    {},
                    progress.seconds,
                    progress.flops,
                    signal=session.signal,
                )
            return finish(session, reason)
        finally:
            session.close()


def check(recipe: Recipe, here: World) -> None:
    """What a recipe asks of this machine and this way of starting."""
    if recipe.training.tensorboard and here.first:
        tensorboard.check()
    if recipe.training.precision == "float16" and recipe.training.strategy == "fsdp" and here.size > 1:
        raise RecipeError(
            "training.precision float16 does not go with strategy fsdp; take bfloat16, which needs no loss scale"
        )


@contextmanager
def surroundings(recipe: Recipe, here: World, threads: int | None) -> Iterator[None]:
    """Threads and precision as the recipe wants them, random generators of our own; all as it was for the caller afterwards."""
    before = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_num_threads(recipe.training.threads or threads or before)
    if here.device.type == "cpu":
        keep_memory()
    if here.device.type == "cuda":  # TF32: ten bits of the products' factors, sums in full
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    try:
        with rng_state.undisturbed(here.device):
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


def keep_memory() -> None:
    """Let the C library keep the memory of one step for the next; it would hand large blocks back and have them cleared anew."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
        if mallopt is not None:
            mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def _command(recipe: object, overrides: tuple[str, ...], folder: Path) -> str:
    """How a person would start the same run from a shell; a recipe that was no file is in the run's folder, overrides included."""
    if isinstance(recipe, str | PathLike):
        return shlex.join(["regard", "train", fspath(recipe), *overrides])
    return shlex.join(["regard", "train", str(folder / "recipe.yaml")])
