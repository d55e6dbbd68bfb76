"""Everything a run needs to go on as if nothing had happened, into a checkpoint and back.

state.json            counts, best, schedule, recipe, place in the log: JSON
tensors.safetensors   model.*, ema.*, optimizer.*: whole, whatever parts the processes hold
rank-00000.safetensors  of each process: random generators, place in the data, state of a stream, sums not yet logged
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

from regard.errors import FolderError, RegardError
from regard.models.folder import read_json
from regard.training import rng_state
from regard.training.distributed import World, fill, whole
from regard.training.ema import Ema
from regard.training.position import TrainingPosition
from regard.training.step import Stepper
from regard.training.step_folders import step_of

FORMAT = 1
TENSORS, STATE = "tensors.safetensors", "state.json"


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def tensors(stepper: Stepper) -> dict[str, Tensor]:
    """The tensors of a run by name, as this process holds them."""
    found = {f"model.{name}": p.detach() for name, p in stepper.model.named_parameters()}
    lasting = stepper.model.state_dict()
    found |= {f"buffer.{name}": b for name, b in stepper.model.named_buffers() if name in lasting}
    if stepper.ema is not None:
        found |= {f"ema.{name}": x for name, x in stepper.ema.tensors().items()}
    for name, p in stepper.model.named_parameters():
        for key, x in stepper.optimizer.state.get(p, {}).items():
            found[f"optimizer.{name}.{key}"] = x
    return found


def weights(model: torch.nn.Module, ema: Ema | None, world: World) -> dict[str, Tensor]:
    """Copies of the weights to evaluate and keep, on the CPU of process 0 (empty elsewhere): the means where there are any."""
    found = dict(model.named_parameters()) | (ema.tensors() if ema is not None else {})
    return copies(found, world)


def copies(found: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Whole copies on the CPU of process 0, which training cannot change; empty elsewhere. Every process must ask."""
    kept = {}
    for name, x in found.items():
        x = whole(x)
        if world.first:
            kept[name] = x.to("cpu", copy=True).contiguous()
    return kept


def own_state(stepper: Stepper, feed: dict[str, Any]) -> bytes:
    """What belongs to this process alone."""
    values, drawn = rng_state.randomness(stepper.world.device)
    loose = {**drawn, **rng_state.stream_tensors(stepper.carried), "sums": stepper.sums}
    return rng_state.pack({"random": values, "feed": feed}, loose)


def collect(stepper: Stepper, feed: dict[str, Any], values: dict[str, Any]) -> Callable[[Path], None]:
    """Copy everything now; the function that is returned writes it into a folder, at any later time, on process 0."""
    world = stepper.world
    kept = copies(tensors(stepper), world)
    ranks = world.gather(own_state(stepper, feed))
    scaler = None if stepper.scaler is None else stepper.scaler.state_dict()
    top = {"format": FORMAT, **values, "scaler": scaler, "processes": world.size}

    def write(place: Path) -> None:
        save_file(kept, place / TENSORS)
        for rank, content in enumerate(ranks):
            (place / rank_file(rank)).write_bytes(content)
        (place / STATE).write_text(json.dumps(top, indent=1) + "\n", encoding="utf-8")

    return write


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON of a checkpoint, with the names of its tensors."""
    found = read_json(folder / STATE)
    if found.get("format") != FORMAT:
        raise FolderError(
            f"{folder} has format {found.get('format')!r} and this regard reads format {FORMAT}; resume with the one that wrote it"
        )
    _check_types(folder, found)
    with readable(folder), safe_open(str(folder / TENSORS), "pt") as stored:
        found["names"] = sorted(stored.keys())
    return found


def _check_types(folder: Path, found: dict[str, Any]) -> None:
    """A FolderError that names the first value of state.json which cannot be right, as after an edit by hand."""
    progress = found.get("progress")
    values = {
        **found,
        **(
            {f"progress.{key}": value for key, value in progress.items()}
            if isinstance(progress, dict)
            else {}
        ),
    }
    kinds: dict[str, Any] = {"recipe": dict, "progress": dict, "schedule": dict, "command": str, "log": int}
    kinds |= {
        "together": int,
        "threads": int,
        "processes": int,
        **({"data": dict} if "data" in found else {}),
    }
    kinds |= {
        f"progress.{f.name}": {"float": (int, float), "int": int}.get(str(f.type), list)
        for f in fields(TrainingPosition)
    }
    for key, kind in kinds.items():
        value = values.get(key)
        least = 1 if key in ("together", "threads", "processes") else 0
        if (
            not isinstance(value, kind)
            or isinstance(value, bool)
            or (isinstance(value, int | float) and not value >= least)
        ):
            raise damaged(folder, f"{key} in {STATE} is {value!r}")
    if step_of(folder) not in (None, values["progress.step"]):
        raise damaged(folder, f"{STATE} is that of step {values['progress.step']}")
    odd = [key for key in values if key.startswith("progress.") and key not in kinds]
    if odd:
        raise damaged(folder, f"{STATE} has an unknown {odd[0]}")
    for entry in values["progress.best"]:
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("step"), int)
            or not isinstance(entry.get("loss"), int | float)
        ):
            raise damaged(folder, f"progress.best in {STATE} holds {entry!r}")


def damaged(folder: Path, why: str) -> FolderError:
    """The sentence for a checkpoint that cannot be read."""
    return FolderError(
        f"{folder} is damaged ({why}); copy it again, or remove it to resume from the checkpoint before it"
    )


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Whatever goes wrong while a checkpoint is read is one sentence."""
    try:
        yield
    except (RegardError, DistError, torch.OutOfMemoryError):
        raise
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        if "gloo" in str(error):  # another process was lost
            raise
        line = (str(error).splitlines() or [""])[0]
        raise damaged(folder, f"{type(error).__name__}: {line}") from None


def restore(folder: Path, found: dict[str, Any], stepper: Stepper, seed: int) -> dict[str, Any]:
    """Put a checkpoint back. Process 0 reads, all receive; gives the place in the data."""
    world = stepper.world
    names = set(found["names"])
    _prepare_optimizer(stepper, names)
    mine = tensors(stepper)
    if odd := sorted(names ^ set(mine)):
        raise FolderError(
            f"{folder} does not fit this model: {odd[0]!r} is only on one side; it belongs to another recipe"
        )
    with ExitStack() as stack:
        stored = stack.enter_context(safe_open(str(folder / TENSORS), "pt")) if world.first else None
        for name in sorted(mine):
            fill(mine[name], None if stored is None else stored.get_tensor(name), world)
    if stepper.scaler is not None and found["scaler"] is not None:
        stepper.scaler.load_state_dict(found["scaler"])
    place: dict[str, Any] = {}
    for rank in range(found["processes"]):
        content = world.share((folder / rank_file(rank)).read_bytes() if world.first else None)
        values, loose = rng_state.unpack(content)
        place = values["feed"]  # the same for all
        if rank == world.rank:
            rng_state.set_randomness(values["random"], loose, world.device)
            stepper.carried = rng_state.stream_state(loose, world.device)
            stepper.sums.copy_(loose["sums"])
        elif rank >= world.size and world.first:  # of a process that is no more
            stepper.sums += loose["sums"].to(world.device)
    if (
        world.rank >= found["processes"]
    ):  # a process that was not there: fresh numbers, the same whenever this is done again
        rng_state.seed(seed + 1_000_003 * world.rank + 7_919 * found["progress"]["step"])
    return place


def _prepare_optimizer(stepper: Stepper, names: set[str]) -> None:
    """Adam makes its means at its first step; make the ones that are to be filled, on the same devices."""
    for name, p in stepper.model.named_parameters():
        if f"optimizer.{name}.step" in names:
            means = {
                key: torch.zeros_like(p, memory_format=torch.preserve_format)
                for key in ("exp_avg", "exp_avg_sq")
            }
            step = torch.zeros((), dtype=torch.float32, device=p.device)
            stepper.optimizer.state[p] = {"step": step, **means}
