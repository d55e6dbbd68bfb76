"""Several processes as one: who is who, words between them, the model over all of them.

Started by `torchrun`, every process runs the same program. Process 0 alone reads and writes the run's folder and tells the
others, so only it needs to see that disk. Small things (counts, texts, decisions) travel through the CPUs' memory as plain
bytes; nothing is pickled.
"""

from __future__ import annotations

import gc
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from regard.errors import DeviceError, RegardError

PATIENCE = timedelta(hours=2)  # for process 0 to prepare a large corpus while the others wait


@dataclass(frozen=True)
class World:
    """This process among all."""

    device: torch.device
    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that reads, writes and speaks."""
        return self.rank == 0

    def sum(self, values: Sequence[int]) -> list[int]:
        """Element by element over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(total)
        return total.tolist()

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def share(self, content: bytes | None) -> bytes:
        """Process 0's bytes, for all."""
        if self.size == 1:
            return content or b""
        size = torch.tensor([len(content or b"")])
        dist.broadcast(size, 0)
        box = _box(content or b"") if self.first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(box, 0)
        return box.numpy().tobytes()

    def gather(self, content: bytes) -> list[bytes]:
        """Everyone's bytes at process 0, by rank; an empty list elsewhere."""
        if self.size == 1:
            return [content]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(content)]))
        longest = max(int(size) for size in sizes)
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(content)] = _box(content)
        boxes = [torch.empty_like(mine) for _ in sizes] if self.first else None
        dist.gather(mine, boxes, 0)
        return [box[: int(size)].numpy().tobytes() for box, size in zip(boxes or [], sizes, strict=False)]

    def together(self, work: Callable[[], Any]) -> Any:
        """Process 0 does `work`; all get its result (as JSON), or raise the error that it raised."""
        answer = None
        if self.first:
            try:
                answer = json.dumps([None, work()]).encode()
            except RegardError as error:
                if self.size == 1:
                    raise
                answer = json.dumps([f"{error}", None]).encode()
        error, result = json.loads(self.share(answer))
        if error is not None:
            raise RegardError(error)
        return result

    def barrier(self) -> None:
        """Wait until all are here."""
        self.sum([0])


def _box(content: bytes) -> Tensor:
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def restarted() -> bool:
    """Whether torchrun started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def pick_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device a recipe asks for; a GPU that is not there is an error."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"the device is {wanted!r}, and must be auto, cpu or cuda")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not there):
        return torch.device("cpu")
    if not there:
        raise DeviceError(
            "the device is cuda, and torch sees no GPU here; choose cpu or install torch for CUDA"
        )
    if local_rank >= there:
        raise DeviceError(
            f"process {local_rank} of this machine has no GPU, there are {there}; start torchrun with --nproc-per-node {there}"
        )
    return torch.device("cuda", local_rank)


def meet(store: Any, rank: int, size: int) -> str:
    """A name for this gathering of processes that none before it had.

    torchrun keeps one store over its restarts, where a new process may find the addresses that dead ones left (pytorch#135712),
    and then waits for them. So process 0 makes up a name, and each other one believes it only when its own greeting is answered.
    """
    if rank == 0:
        name = secrets.token_hex(8)
        store.set("regard/name", name)
        for other in range(1, size):
            store.set(f"regard/{name}/answer/{other}", store.get(f"regard/{name}/greeting/{other}").decode())
        return name
    greeting = secrets.token_hex(8)
    while True:
        name = store.get("regard/name").decode()
        store.set(f"regard/{name}/greeting/{rank}", greeting)
        for _ in range(20):  # then look whether there is another name
            if (
                store.check([answer := f"regard/{name}/answer/{rank}"])
                and store.get(answer).decode() == greeting
            ):
                return name
            time.sleep(0.05)


@contextmanager
def world(wanted: Callable[[World], str]) -> Iterator[World]:
    """The processes of this run, connected while inside; alone unless torchrun started several. `wanted` says which device the
    recipe asks for, and may ask process 0.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    ours = launched() and not dist.is_initialized()
    if ours:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        place = dist.PrefixStore(meet(store, rank, size), store)  # pyright: ignore[reportPrivateImportUsage]
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=place, rank=rank, world_size=size, timeout=PATIENCE)
    rank, size = (dist.get_rank(), dist.get_world_size()) if launched() else (0, 1)
    try:
        device = pick_device(wanted(World(torch.device("cpu"), rank, size, local_rank)), local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        yield World(device, rank, size, local_rank)
    except RuntimeError as error:
        if (size > 1 and "gloo" in str(error)) or isinstance(error, dist.DistError):
            line = str(error).strip().splitlines()[0]
            raise RegardError(
                f"another process of this run was lost ({line}); start all again, the last checkpoint is kept"
            ) from None
        raise
    finally:
        if ours and dist.is_initialized():
            gc.collect()  # what DDP holds of the group must go before it: at the end of Python its threads would abort the process
            dist.destroy_process_group()


class LossOf(nn.Module):
    """The forward pass that DDP and FSDP wrap: a model's loss on a batch."""

    def __init__(self, model: nn.Module, agreement: float = 0.0) -> None:
        super().__init__()
        self.model, self.agreement = model, agreement

    def forward(self, batch: Any, smoothing: float, state: Any) -> tuple[Tensor, Tensor, Any]:
        loss = self.model.loss(batch, smoothing, state, self.agreement)  # type: ignore[operator]
        return loss.total, loss.nll, loss.state


def spread(model: nn.Module, world: World, strategy: str, agreement: float = 0.0) -> nn.Module:
    """The loss of `model` over all processes: gradients become the mean over them. FSDP also cuts the weights in parts."""
    module = LossOf(model, agreement)
    if world.size == 1:
        return module
    if strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for part in list(model.modules()):
            if isinstance(part, nn.ModuleList):
                for layer in part:
                    if not isinstance(layer, nn.RNNBase):  # a recurrence reads its weights as one block
                        fully_shard(layer)
        return cast(nn.Module, fully_shard(module))
    return nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)


@contextmanager
def last_of_step(module: nn.Module, last: bool) -> Iterator[None]:
    """Gradients are exchanged in the last backward pass of a step only; those before add up at home."""
    if isinstance(module, nn.parallel.DistributedDataParallel) and not last:
        with module.no_sync():
            yield
        return
    wait = getattr(module, "set_requires_gradient_sync", None)  # FSDP's
    if wait is not None:
        wait(last)
    yield


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be cut over the processes, in one piece; every process must ask."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


@torch.no_grad()
def fill(tensor: Tensor, value: Tensor | None, world: World) -> None:
    """Give a tensor, cut or not, process 0's value; the others bring None. Every process must ask."""
    if world.size > 1:
        box = (
            torch.empty(tensor.shape, dtype=tensor.dtype, device=world.device)
            if value is None
            else value.to(world.device)
        )
        dist.broadcast(box, 0)
        value = box
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        value = distribute_tensor(cast(Tensor, value), mesh, cast(DTensor, tensor).placements)
    tensor.copy_(cast(Tensor, value))
