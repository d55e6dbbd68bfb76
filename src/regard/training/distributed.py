"""Distributed training under `torchrun`: processes, messages between them, DDP and FSDP.

Only process 0 reads and writes the run folder and broadcasts what the others need, so only it needs access to
that disk. Small messages (counts, texts, decisions) are plain bytes over gloo; nothing is pickled.
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

from regard.attention.devices import pick_device
from regard.errors import RegardError

TIMEOUT = timedelta(hours=2)  # process 0 may prepare a large corpus while the others wait


@dataclass(frozen=True)
class World:
    """This process and the number of all processes."""

    device: torch.device
    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """True for process 0, which reads, writes and prints."""
        return self.rank == 0

    def sum(self, values: Sequence[int]) -> list[int]:
        """Return the element-wise sum over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(total)
        return total.tolist()

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, content: bytes | None) -> bytes:
        """Return process 0's bytes on every process."""
        if self.size == 1:
            return content or b""
        size = torch.tensor([len(content or b"")])
        dist.broadcast(size, 0)
        buffer = _as_tensor(content or b"") if self.is_main else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(buffer, 0)
        return buffer.numpy().tobytes()

    def gather(self, content: bytes) -> list[bytes]:
        """Return the bytes of all processes by rank on process 0; an empty list elsewhere."""
        if self.size == 1:
            return [content]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(content)]))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = _as_tensor(content)
        buffers = [torch.empty_like(padded) for _ in sizes] if self.is_main else None
        dist.gather(padded, buffers, 0)
        pairs = zip(buffers or [], sizes, strict=False)
        return [buffer[: int(size)].numpy().tobytes() for buffer, size in pairs]

    def run_on_main(self, function: Callable[[], Any]) -> Any:
        """Call `function` on process 0; return its result, which must be JSON-serialisable,
        or raise its error, on every process."""
        message = None
        if self.is_main:
            try:
                message = json.dumps([None, function()]).encode()
            except RegardError as error:
                if self.size == 1:
                    raise
                message = json.dumps([f"{error}", None]).encode()
        error, result = json.loads(self.broadcast(message))
        if error is not None:
            raise RegardError(error)
        return result

    def barrier(self) -> None:
        """Wait for all processes."""
        self.sum([0])


def _as_tensor(content: bytes) -> Tensor:
    if not content:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def under_torchrun() -> bool:
    """True if torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def restarted() -> bool:
    """True if torchrun restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def agree_on_group_name(store: Any, rank: int, size: int) -> str:
    """Return a name for this group of processes that no earlier group had.

    torchrun keeps one store over its restarts, in which a new process may find the addresses of dead ones
    (pytorch#135712) and wait for them. Process 0 draws a random name. Every other process writes a random
    greeting under it and accepts the name once process 0 has echoed that greeting.
    """
    if rank == 0:
        name = secrets.token_hex(8)
        store.set("regard/name", name)
        for other in range(1, size):
            greeting = store.get(f"regard/{name}/greeting/{other}").decode()
            store.set(f"regard/{name}/answer/{other}", greeting)
        return name
    greeting = secrets.token_hex(8)
    while True:
        name = store.get("regard/name").decode()
        answer = f"regard/{name}/answer/{rank}"
        store.set(f"regard/{name}/greeting/{rank}", greeting)
        for _ in range(20):  # then check whether process 0 has set another name
            if store.check([answer]) and store.get(answer).decode() == greeting:
                return name
            time.sleep(0.05)


@contextmanager
def connect_processes(device_name: Callable[[World], str]) -> Iterator[World]:
    """Connect the processes that torchrun started; without torchrun there is one.

    `device_name` returns training.device of the recipe. A resumed run's recipe is read by process 0 only, so
    the function gets a World to send the device to the others.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    starts_group = under_torchrun() and not dist.is_initialized()
    if starts_group:
        store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        prefix = agree_on_group_name(store, rank, size)
        store = dist.PrefixStore(prefix, store)  # pyright: ignore[reportPrivateImportUsage]
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    rank, size = (dist.get_rank(), dist.get_world_size()) if under_torchrun() else (0, 1)
    try:
        device = pick_device(device_name(World(torch.device("cpu"), rank, size, local_rank)), local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        yield World(device, rank, size, local_rank)
    except RuntimeError as error:
        if (size > 1 and "gloo" in str(error)) or isinstance(error, dist.DistError):
            line = str(error).strip().splitlines()[0]
            raise RegardError(
                f"another process of this run was lost ({line}); start all again to resume from the last "
                "checkpoint"
            ) from None
        raise
    finally:
        if starts_group and dist.is_initialized():
            # Free what DDP holds of the group first: at interpreter exit its threads would abort the process.
            gc.collect()
            dist.destroy_process_group()


class LossModule(nn.Module):
    """A module whose forward computes the loss, so that DDP and FSDP can wrap it.

    `agreement` is the weight of R-Drop, training.agreement of the recipe.
    """

    def __init__(self, model: nn.Module, agreement: float = 0.0) -> None:
        super().__init__()
        self.model, self.agreement = model, agreement

    def forward(self, batch: Any, smoothing: float, state: Any) -> tuple[Tensor, Tensor, Any]:
        loss = self.model.loss(batch, smoothing, state, self.agreement)  # type: ignore[operator]
        return loss.total, loss.nll, loss.state


def distribute(model: nn.Module, world: World, strategy: str, agreement: float = 0.0) -> nn.Module:
    """Wrap the loss of `model` in DDP or FSDP; gradients are averaged over the processes."""
    module = LossModule(model, agreement)
    if world.size == 1:
        return module
    if strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for module_list in list(model.modules()):
            if isinstance(module_list, nn.ModuleList):
                for layer in module_list:
                    if not isinstance(layer, nn.RNNBase):  # cuDNN reads its weights as one block
                        fully_shard(layer)
        return cast(nn.Module, fully_shard(module))
    return nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)


@contextmanager
def gradient_sync(module: nn.Module, enabled: bool) -> Iterator[None]:
    """Average the gradients over processes in this backward pass if `enabled`.

    A step of several batches enables it for the last one only, when the gradients are complete.
    """
    if isinstance(module, nn.parallel.DistributedDataParallel) and not enabled:
        with module.no_sync():
            yield
        return
    set_sync = getattr(module, "set_requires_gradient_sync", None)  # FSDP
    if set_sync is not None:
        set_sync(enabled)
    yield


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a possibly sharded tensor; every process must call it."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


@torch.no_grad()
def copy_from_main(tensor: Tensor, value: Tensor | None, world: World) -> None:
    """Copy process 0's `value` into a tensor that may be sharded; the others pass None. Collective."""
    if world.size > 1:
        if value is None:
            value = torch.empty(tensor.shape, dtype=tensor.dtype, device=world.device)
        value = value.to(world.device)
        dist.broadcast(value, 0)
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        value = distribute_tensor(cast(Tensor, value), mesh, cast(DTensor, tensor).placements)
    tensor.copy_(cast(Tensor, value))
