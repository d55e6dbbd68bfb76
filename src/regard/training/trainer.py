"""Train by a recipe, and resume a run that was stopped, killed or ended too soon.

    result = train("recipes/small.yaml", overrides=["training.steps=200"])
    result = resume(result.folder, overrides=["training.steps=400"])
    model = result.load()

A run that was killed at any moment and resumed has the same weights, bit by bit, as one that was not (on a
CPU, with the same number of processes). Under `torchrun` both functions train on several processes.
"""

from __future__ import annotations

import ctypes
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
from regard.tasks import get_task
from regard.training import checkpoint, tensorboard
from regard.training.display import Display
from regard.training.distributed import World, connect_processes, restarted
from regard.training.finish import finish, finish_interrupted
from regard.training.loop import TrainingLoop
from regard.training.pretrained import Pretrained
from regard.training.rng_state import preserve_rng_state
from regard.training.run_folder import Result, RunFolder, check_unchanged
from regard.training.step_folders import newest_complete
from regard.training.training_data import TrainingData


def train(
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe,
    *,
    folder: str | PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    overwrite: bool = False,
    quiet: bool = False,
) -> Result:
    """Train a model by a recipe in a new run folder.

    >>> result = regard.train("small", overrides=["training.steps=200"])  # doctest: +SKIP
    >>> regard.translate("Where is my book?", "runs/small")  # doctest: +SKIP

    If torchrun restarts the process after a failure, the run resumes from its last checkpoint.

    Args:
        recipe: a file, the name of a recipe (`regard recipes` lists them), a mapping, or a Recipe.
        folder: the run folder; by default runs/NAME.
        overrides: `key=value` strings, such as "training.steps=200".
        overwrite: replace the run in that folder.
        quiet: print nothing.
    """
    overrides = tuple(string_list("overrides", overrides))
    overwrite, quiet = flag("overwrite", overwrite), flag("quiet", quiet)
    run_path = as_path("folder", folder) if folder is not None else None
    loaded = load_recipe(recipe, overrides)
    run = RunFolder(run_path or Path("runs") / loaded.name)
    with connect_processes(lambda world: loaded.training.device) as world:
        if restarted() and world.run_on_main(run.exists):
            return _resume(run, (), world, quiet)
        lock = RunLock(run.folder)

        def check_folder() -> None:
            run.check_free(overwrite)
            if run.exists():  # it is replaced, unless another process works on it
                lock.acquire()

        def create_folder() -> None:
            run.make()
            lock.acquire()
            run.create(loaded, overwrite)

        try:
            world.run_on_main(check_folder)
            command = _command_line(recipe, overrides, run.folder)
            return Session(run, loaded, world, quiet, command=command).run(create_folder)
        finally:
            lock.release()


def resume(folder: str | PathLike[str], *, overrides: Iterable[str] = (), quiet: bool = False) -> Result:
    """Resume a run from its last complete checkpoint.

    >>> regard.resume("runs/small", overrides=["training.steps=1000"])  # doctest: +SKIP

    Args:
        folder: the run folder.
        overrides: `key=value` strings; they may change how long and where it runs, not what it learns.
        quiet: print nothing.
    """
    run, quiet = RunFolder(as_path("folder", folder)), flag("quiet", quiet)
    overrides = tuple(string_list("overrides", overrides))

    def device_name(world: World) -> str:
        return world.run_on_main(lambda: run.read_recipe(overrides).training.device)

    with connect_processes(device_name) as world:
        return _resume(run, overrides, world, quiet)


def _resume(run: RunFolder, overrides: tuple[str, ...], world: World, quiet: bool) -> Result:
    lock = RunLock(run.folder)
    try:
        world.run_on_main(lock.acquire)
        return _resume_locked(run, overrides, world, quiet)
    finally:
        lock.release()


def _resume_locked(run: RunFolder, overrides: tuple[str, ...], world: World, quiet: bool) -> Result:
    display = Display(quiet or not world.is_main)
    recipe = run.load_recipe(world.run_on_main(lambda: run.read_recipe(overrides).model_dump()))

    def newest() -> str | None:
        folder = newest_complete(run.checkpoints, display.print)
        return None if folder is None else folder.name

    name = world.run_on_main(newest)
    if name is None:
        display.print("there is no checkpoint yet, so the run starts from the beginning")
        return Session(run, recipe, world, quiet).run()
    folder = run.checkpoints / name
    state = world.run_on_main(lambda: checkpoint.read_state(folder))
    try:
        trained = run.load_recipe(state["recipe"])
    except RegardError as error:
        raise checkpoint.damaged(folder, f"recipe in {checkpoint.STATE}: {error}") from None
    check_unchanged(trained, recipe, run.folder)
    display.print(f"resuming after step {state['trainer_state']['step']:,}")
    # Rounding depends on the number of threads, so it stays the same unless the recipe sets it.
    return Session(run, recipe, world, quiet, resumed=folder, threads=state["threads"]).run()


@dataclass
class Session:
    """One call of `train` or `resume`."""

    run_folder: RunFolder
    recipe: Recipe
    world: World
    quiet: bool
    resumed: Path | None = None  # the checkpoint
    threads: int | None = None
    command: str = ""

    def run(self, create_folder: Callable[[], None] | None = None) -> Result:
        """Train to the end or until interrupted; checks come before `create_folder` (new runs)."""
        run, recipe, world = self.run_folder, self.recipe, self.world
        check_machine(recipe, world)
        unit = get_task(recipe.task).loss_unit.removeprefix("target ")
        with (
            torch_settings(recipe, world, self.threads),
            Display(self.quiet or not world.is_main, unit) as display,
        ):
            pretrained = Pretrained.load(recipe, None if create_folder else run.start)
            data = TrainingData.load(recipe, world, display, pretrained)
            loop = TrainingLoop(run, recipe, world, data, display, self.command, pretrained)
            world.run_on_main(create_folder or (lambda: write_file(run.recipe, dump_recipe(recipe).encode())))
            if pretrained is not None and create_folder is not None:
                world.run_on_main(lambda: pretrained.save(run.start))
            try:
                loop.open(self.resumed)
                reason = loop.run()
                return finish_interrupted(loop) if reason == "interrupted" else finish(loop, reason)
            finally:
                loop.close()


def check_machine(recipe: Recipe, world: World) -> None:
    """Raise an error if the recipe needs what this machine or this number of processes does not offer."""
    training = recipe.training
    if training.tensorboard and world.is_main:
        tensorboard.check_installed()
    if training.precision == "float16" and training.strategy == "fsdp" and world.size > 1:
        raise RecipeError(
            "training.precision float16 does not work with strategy fsdp; choose bfloat16, which needs no "
            "loss scaling"
        )


@contextmanager
def torch_settings(recipe: Recipe, world: World, threads: int | None) -> Iterator[None]:
    """Set threads and precision for training; restore them and the random generators afterwards."""
    before = torch.get_num_threads()
    matmul_precision = torch.get_float32_matmul_precision()
    cudnn_tf32 = torch.backends.cudnn.allow_tf32
    torch.set_num_threads(recipe.training.threads or threads or before)
    if world.device.type == "cpu":
        keep_freed_memory()
    if world.device.type == "cuda":  # TF32: factors with 10 bits of mantissa, sums in float32
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    try:
        with preserve_rng_state(world.device):
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(matmul_precision)
        torch.backends.cudnn.allow_tf32 = cudnn_tf32


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step; by default it returns large blocks to the system."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def _command_line(recipe: object, overrides: tuple[str, ...], folder: Path) -> str:
    """The shell command that starts the same run; a mapping is saved in the run folder with its overrides."""
    if isinstance(recipe, str | PathLike):
        return shlex.join(["regard", "train", fspath(recipe), *overrides])
    return shlex.join(["regard", "train", str(folder / "recipe.yaml")])
