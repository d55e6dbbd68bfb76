"""Checkpoints: everything a run needs to resume bit-exactly.

    state.json              counters, schedule, recipe, position in the log
    tensors.safetensors     model.*, buffer.*, ema.*, optimizer.*: full tensors, also under FSDP
    rank-00000.safetensors  per process: random generators, position in the data, stream state, loss sums

`files/atomic.py` writes the folder: it appears complete or not at all, with checksums.

Why not torch.distributed.checkpoint: it writes shards per process and a pickled index, and completes them
without an atomic rename. One safetensors file resumes on any number of processes, with ddp or fsdp, can be
averaged and read by other tools, and holds no pickle. The price is that process 0 needs memory for one full
copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import DistError

from regard.errors import FolderError, RecipeError, RegardError
from regard.files.atomic import write_folder
from regard.files.background import Background
from regard.models.folder import read_json
from regard.training import rng_state
from regard.training.distributed import World, copy_from_main, full_tensor
from regard.training.ema import Ema
from regard.training.run_folder import RunFolder
from regard.training.step import Stepper
from regard.training.step_folders import RESUME, folder_name, remove_except, step_folders, step_of
from regard.training.trainer_state import TrainerState

FORMAT = 1
TENSORS, STATE = "tensors.safetensors", "state.json"
KEPT = 2  # checkpoints of a run; the older one is a spare in case the newest is damaged


class Checkpoints:
    """The checkpoints of a run: writes them in the background and removes old ones."""

    def __init__(self, run: RunFolder, background: Background) -> None:
        self.run, self.background = run, background
        self.last_step = 0  # of the newest checkpoint
        self._best_of: dict[str, list[str]] = {}  # best folders that each checkpoint refers to

    def save(self, stepper: Stepper, position: dict[str, Any], values: dict[str, Any]) -> None:
        """Copy the state now and write it in the background. Every process must call it.

        Args:
            stepper: model, optimizer and other tensors.
            position: place in the data, from StepIterator.state().
            values: the rest of state.json, with `trainer_state`.
        """
        state = values["trainer_state"]
        write = collect_state(stepper, position, values)
        self.last_step = state["step"]
        if not stepper.world.is_main:
            return
        target = self.run.checkpoints / folder_name(state["step"])
        self._best_of[target.name] = _best_folders(state)
        clean = self._cleanup()

        def job() -> None:
            write_folder(target, write, RESUME)
            clean()

        self.background.start(job)

    def open(self, resumed: Path | None) -> None:
        """Register the checkpoints up to the one that is resumed and remove all others."""
        older = [f for f in step_folders(self.run.checkpoints) if resumed and f.name <= resumed.name]
        self._best_of = {folder.name: _read_best_folders(folder) for folder in older}
        self._cleanup()()

    def _cleanup(self) -> Callable[[], None]:
        """Return a function that removes all but the newest checkpoints and the best models they refer to."""
        keep = sorted(self._best_of)[-KEPT:]
        self._best_of = {name: self._best_of[name] for name in keep}
        best = {name for names in self._best_of.values() for name in names}

        def clean() -> None:
            remove_except(self.run.checkpoints, keep)
            remove_except(self.run.best, best)

        return clean


def _best_folders(trainer_state: dict[str, Any]) -> list[str]:
    return [folder_name(validation["step"]) for validation in trainer_state["best"]]


def _read_best_folders(folder: Path) -> list[str]:
    """The best folders that a checkpoint refers to; none if it cannot be read."""
    try:
        return _best_folders(read_json(folder / STATE)["trainer_state"])
    except (ValueError, KeyError, TypeError):  # RegardError is a ValueError
        return []


# Writing


def collect_state(
    stepper: Stepper, position: dict[str, Any], values: dict[str, Any]
) -> Callable[[Path], None]:
    """Copy the state now; return a function that writes it into a folder at any later time, on process 0."""
    world = stepper.world
    tensors = copy_to_main(named_tensors(stepper), world)
    ranks = world.gather(process_state(stepper, position))
    scaler = None if stepper.scaler is None else stepper.scaler.state_dict()
    top = {"format": FORMAT, **values, "scaler": scaler, "processes": world.size}

    def write(folder: Path) -> None:
        save_file(tensors, folder / TENSORS)
        for rank, content in enumerate(ranks):
            (folder / rank_file(rank)).write_bytes(content)
        (folder / STATE).write_text(json.dumps(top, indent=1) + "\n", encoding="utf-8")

    return write


def named_tensors(stepper: Stepper) -> dict[str, Tensor]:
    """Return the tensors of a run by name, as this process holds them; sharded ones stay sharded."""
    model = stepper.model
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    persistent = model.state_dict()
    tensors |= {f"buffer.{name}": b for name, b in model.named_buffers() if name in persistent}
    if stepper.ema is not None:
        tensors |= {f"ema.{name}": x for name, x in stepper.ema.tensors().items()}
    for name, p in model.named_parameters():
        for key, value in stepper.optimizer.state.get(p, {}).items():
            if not isinstance(value, Tensor):
                raise RecipeError(
                    f"optimizer {stepper.recipe.optimizer.kind} keeps {key!r} as {type(value).__name__}, and "
                    "checkpoints hold tensors; choose an optimizer whose state is tensors"
                )
            tensors[f"optimizer.{name}.{key}"] = value
    return tensors


def evaluation_weights(model: torch.nn.Module, ema: Ema | None, world: World) -> dict[str, Tensor]:
    """Return copies of the weights to evaluate on process 0: the moving averages if there are any."""
    return copy_to_main(dict(model.named_parameters()) | (ema.tensors() if ema is not None else {}), world)


def copy_to_main(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Return full copies on the CPU of process 0, empty elsewhere. Every process must call it."""
    copies = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor)
        if world.is_main:
            copies[name] = full.to("cpu", copy=True).contiguous()
    return copies


def process_state(stepper: Stepper, position: dict[str, Any]) -> bytes:
    """Return the state of this process alone."""
    generators, tensors = rng_state.get_rng_state(stepper.world.device)
    tensors = {**tensors, **rng_state.stream_tensors(stepper.stream_state), "loss_sums": stepper.loss_sums}
    return rng_state.pack({"generators": generators, "position": position}, tensors)


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


# Reading


def read_state(folder: Path) -> dict[str, Any]:
    """Return state.json of a checkpoint, with the shapes and dtypes of its tensors as `tensors`."""
    state = read_json(folder / STATE)
    if state.get("format") != FORMAT:
        raise FolderError(
            f"{folder} has format {state.get('format')!r} and this regard reads format {FORMAT}; "
            "resume with the version that wrote it"
        )
    _check_types(folder, state)
    with readable(folder), safe_open(str(folder / TENSORS), "pt") as stored:
        slices = {name: stored.get_slice(name) for name in sorted(stored.keys())}
        state["tensors"] = {name: [list(s.get_shape()), s.get_dtype()] for name, s in slices.items()}
    return state


def restore(folder: Path, state: dict[str, Any], stepper: Stepper, seed: int) -> dict[str, Any]:
    """Restore a checkpoint and return the position in the data. Process 0 reads and broadcasts."""
    world = stepper.world
    create_optimizer_state(stepper, state["tensors"])
    tensors = named_tensors(stepper)
    if unmatched := sorted(set(state["tensors"]) ^ set(tensors)):
        raise FolderError(
            f"{folder} does not match this model: {unmatched[0]!r} is on one side only; "
            "it belongs to another recipe"
        )
    with ExitStack() as stack:
        stored = stack.enter_context(safe_open(str(folder / TENSORS), "pt")) if world.is_main else None
        for name in sorted(tensors):
            copy_from_main(tensors[name], None if stored is None else stored.get_tensor(name), world)
    if stepper.scaler is not None and state["scaler"] is not None:
        stepper.scaler.load_state_dict(state["scaler"])
    return _restore_processes(folder, state, stepper, seed)


def _restore_processes(folder: Path, state: dict[str, Any], stepper: Stepper, seed: int) -> dict[str, Any]:
    """Restore the state of each process; return the position in the data, which is the same for all."""
    world, position = stepper.world, {}
    for rank in range(state["processes"]):
        content = world.broadcast((folder / rank_file(rank)).read_bytes() if world.is_main else None)
        values, tensors = rng_state.unpack(content)
        position = values["position"]
        if rank == world.rank:
            rng_state.set_rng_state(values["generators"], tensors, world.device)
            stepper.stream_state = rng_state.stream_state(tensors, world.device)
            stepper.loss_sums.copy_(tensors["loss_sums"])
        elif rank >= world.size and world.is_main:  # of a process that does not exist any more
            stepper.loss_sums += tensors["loss_sums"].to(world.device)
    if world.rank >= state["processes"]:  # a process that did not exist before: a reproducible new seed
        rng_state.seed_all(seed + 1_000_003 * world.rank + 7_919 * state["trainer_state"]["step"])
    return position


def create_optimizer_state(stepper: Stepper, stored: dict[str, list[Any]]) -> None:
    """Create the optimizer's state tensors of a checkpoint, which optimizers create at their first step."""
    state_of: dict[str, dict[str, list[Any]]] = {}  # parameter → {"exp_avg": [shape, dtype], …}
    for name, shape_and_dtype in stored.items():
        if name.startswith("optimizer."):
            parameter, _, key = name.removeprefix("optimizer.").rpartition(".")
            state_of.setdefault(parameter, {})[key] = shape_and_dtype
    groups = {id(p): group for group in stepper.optimizer.param_groups for p in group["params"]}
    for name, p in stepper.model.named_parameters():
        if id(p) in groups:
            group, entries = groups[id(p)], state_of.get(name, {})
            on_device = group.get("fused") or group.get("capturable")
            stepper.optimizer.state[p] = {
                key: _empty_state(p, shape, DTYPES[dtype], on_device)
                for key, (shape, dtype) in entries.items()
            }


def _empty_state(p: Tensor, shape: list[int], dtype: torch.dtype, on_device: Any) -> Tensor:
    if list(p.shape) == shape:  # sharded as the parameter is
        return torch.zeros_like(p, memory_format=torch.preserve_format)
    # A step count; torch keeps it on the CPU unless the update is one kernel.
    return torch.zeros(shape, dtype=dtype, device=p.device if shape or on_device else "cpu")


DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
}


TYPES: dict[str, Any] = {
    "recipe": dict,
    "trainer_state": dict,
    "schedule": dict,
    "command": str,
    "log_position": int,
    "batches_per_step": int,
    "threads": int,
    "processes": int,
}
POSITIVE = ("batches_per_step", "threads", "processes")


def _check_types(folder: Path, state: dict[str, Any]) -> None:
    """Raise a FolderError for the first invalid value of state.json, as after an edit by hand."""
    types = TYPES | ({"data_checksums": dict} if "data_checksums" in state else {})
    for key, kind in types.items():
        _check_value(folder, key, state.get(key), kind)
    counters = state["trainer_state"]
    known = {f.name: {"float": (int, float), "int": int}.get(str(f.type), list) for f in fields(TrainerState)}
    for key, kind in known.items():
        _check_value(folder, f"trainer_state.{key}", counters.get(key), kind)
    if step_of(folder) not in (None, counters["step"]):
        raise damaged(folder, f"{STATE} is that of step {counters['step']}")
    if unknown := [key for key in counters if key not in known]:
        raise damaged(folder, f"{STATE} has an unknown trainer_state.{unknown[0]}")
    for entry in counters["best"]:
        step, loss = (entry.get("step"), entry.get("loss")) if isinstance(entry, dict) else (None, None)
        if not isinstance(step, int) or not isinstance(loss, int | float):
            raise damaged(folder, f"trainer_state.best in {STATE} holds {entry!r}")


def _check_value(folder: Path, key: str, value: Any, kind: Any) -> None:
    least = 1 if key in POSITIVE else 0
    negative = isinstance(value, int | float) and not value >= least
    if not isinstance(value, kind) or isinstance(value, bool) or negative:
        raise damaged(folder, f"{key} in {STATE} is {value!r}")


def damaged(folder: Path, why: str) -> FolderError:
    """Return the error of a checkpoint that cannot be read."""
    return FolderError(
        f"{folder} is damaged ({why}); copy it again, or remove it to resume from the checkpoint before it"
    )


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turn any error while a checkpoint is read into one sentence."""
    try:
        yield
    except (RegardError, DistError, torch.OutOfMemoryError):
        raise
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        if "gloo" in str(error):  # another process was lost
            raise
        line = (str(error).splitlines() or [""])[0]
        raise damaged(folder, f"{type(error).__name__}: {line}") from None
