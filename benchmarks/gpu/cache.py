"""One query per row against a cache: the share of memory bandwidth that the kernels of decoding reach.

python -m benchmarks.gpu.cache           # on a GPU, about two minutes
python -m benchmarks.gpu.cache --tiny    # small shapes on a CPU in Triton's interpreter; times mean nothing

The first table has the CUDA engine's kernels alone, in bfloat16. `self`: a row writes its new key and value
and attends to its cache; with a beam, a table of ancestors (random here, so rows share less than in a real
search) says which row wrote each token. `cross`: rows attend to the keys and values of their source
sentence; `cross, lengths`: sentences have from half to all of the keys. The second table has `regard.attend`
with grouped heads beside torch's SDPA.

Bytes are counted once, however often they are read: the keys and values that the rows of a sentence see
(with a beam these are shared), masks or ancestors, queries, outputs, and new keys and values. Every launch
reads another copy of the data, and all copies together exceed the L2 cache several times. An asterisk marks
launches whose own data would fit into it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.additive import clocks
from benchmarks.gpu.band import milliseconds
from benchmarks.peers import machine
from regard import Padding, attend, explain
from regard.decoding.engine.cuda.step_operations import FusedOperations, TorchOperations

L2_BYTES = 50e6
COLD_BYTES = 4 * L2_BYTES  # that all copies of a case have at least
MIN_LAUNCHES, MAX_COPIES = 20, 64
SIZE = 2  # bytes of a bfloat16


@dataclass(frozen=True)
class Sizes:
    """The shapes of a run."""

    rows: tuple[int, ...] = (256, 1024, 4096)
    keys: tuple[int, ...] = (16, 32, 128, 512)
    beams: tuple[int, ...] = (1, 4)
    heads: int = 8
    head_dim: int = 64
    # batch, heads, heads of keys, keys, head dim
    attend: tuple[tuple[int, int, int, int, int], ...] = ((64, 32, 8, 2048, 128), (256, 32, 8, 512, 128))
    copy: int = 1 << 31  # bytes of the tensor that is copied to measure the bandwidth


TINY = Sizes(
    rows=(8,), keys=(16, 20), beams=(1, 4), heads=2, head_dim=16, attend=((2, 4, 2, 32, 16),), copy=1024
)
KINDS = ("self", "cross", "cross, lengths")


@dataclass(frozen=True)
class StepCase:
    """The attention of one decoder layer in one step; rows are sentences × beam."""

    kind: str
    rows: int
    keys: int  # that a query sees, with the new one
    beam: int
    heads: int
    head_dim: int

    @property
    def sentences(self) -> int:
        return self.rows // self.beam


class Step:
    """The tensors of one launch of a case."""

    def __init__(self, case: StepCase, device: str) -> None:
        self.case, dim = case, case.heads * case.head_dim
        new = lambda *shape: torch.randn(shape, device=device).to(torch.bfloat16)  # noqa: E731
        steps = torch.arange(case.keys, device=device)
        lengths = torch.full((case.sentences,), case.keys, device=device)
        if case.kind == "cross, lengths":
            lengths = torch.linspace(case.keys // 2, case.keys, case.sentences, device=device).long()
        self.visible = steps < lengths[:, None]  # (sentences, keys)
        slots = torch.arange(case.beam, device=device, dtype=torch.int16)
        past = torch.randint(0, case.beam, (case.sentences, case.beam, case.keys), device=device)
        self.buffers: Any = SimpleNamespace(
            size=SimpleNamespace(width=case.beam, source=case.keys),
            past=past.to(torch.int16),
            position=torch.tensor([case.keys - 1], device=device),
            steps=steps,
            slots=slots,
            source_mask=torch.where(self.visible, 0.0, -torch.inf)[:, None, None].contiguous(),
            note_writers=lambda: None,
        )
        self.buffers.past[:, :, -1] = slots  # a row writes the new token itself
        if case.kind == "self":
            self.q = new(case.rows, 3 * dim)
            self.cache = new(2, case.sentences, case.heads, case.keys, case.beam, case.head_dim)
        else:
            self.q = new(case.rows, dim)
            self.cache = new(2, case.sentences, case.heads, case.keys, case.head_dim)

    def run(self, operations: Any) -> Tensor:
        if self.case.kind == "self":
            mask = operations.start(self.buffers, self.case.keys)
            return operations.self_attention(self.q, self.cache, self.buffers, self.case.keys, mask)
        return operations.cross_attention(self.q, self.cache, self.buffers)

    def count_bytes(self) -> int:
        """Bytes that a launch must read and write, each once."""
        case, vector = self.case, self.case.heads * self.case.head_dim * SIZE
        if case.kind == "self":
            past = self.buffers.past[:, :, :-1].long()  # (sentences, beam, keys − 1)
            writers = [(past == slot).any(1).sum().item() for slot in range(case.beam)]
            ancestors = past.numel() * 2 if case.beam > 1 else 0
            # queries, new keys and values are read; new keys and values and outputs are written
            return int(2 * sum(writers) + 6 * case.rows) * vector + ancestors
        seen, mask = int(self.visible.sum()), self.buffers.source_mask.numel() * 4
        return (2 * seen + 2 * case.rows) * vector + mask


def replay_microseconds(launches: Sequence[Callable[[], object]], device: str) -> float:
    """GPU time of a launch: all launches recorded as one CUDA graph, and replayed."""
    for launch in launches:
        launch()
    if device == "cpu":
        return wall_microseconds(launches[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [launch() for launch in launches]
    microseconds = milliseconds(graph.replay) * 1e3 / len(launches)
    del results
    return microseconds


def wall_microseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e6


def microseconds(run: Callable[[], object], device: str) -> float:
    """Time of a call, by CUDA events on a GPU."""
    return wall_microseconds(run) if device == "cpu" else milliseconds(run) * 1e3


def copy_bandwidth(size: int, device: str) -> float:
    """GB/s of a copy of `size` bytes, bytes read plus bytes written."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / microseconds(lambda: target.copy_(source), device) / 1e3


def relative_error(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def measure_step(case: StepCase, device: str) -> tuple[float, int, int, float]:
    """Microseconds, bytes, copies of the data, and the error beside the torch operations."""
    first = Step(case, device)
    size = first.count_bytes()
    copies = 1 if device == "cpu" else min(MAX_COPIES, max(1, -(-int(COLD_BYTES) // size)))
    steps = [first, *(Step(case, device) for _ in range(copies - 1))]
    fused, plain = FusedOperations(), TorchOperations(torch.device(device), torch.float32)
    error = relative_error(first.run(fused), first.run(plain))
    repeats = 1 if device == "cpu" else -(-MIN_LAUNCHES // copies)
    launches = [lambda step=step: step.run(fused) for _ in range(repeats) for step in steps]
    return replay_microseconds(launches, device), size, copies, error


def print_steps(sizes: Sizes, device: str, bandwidth: float, only: str) -> None:
    print(f"\nThe engine's kernels, {sizes.heads} heads of {sizes.head_dim}, bfloat16")
    print("| attention | rows | keys | beam | µs | MB | copies | GB/s | % of copy | error |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    shapes = [(kind, rows, keys, beam) for kind in KINDS if only in kind for beam in sizes.beams
              for keys in sizes.keys for rows in sizes.rows]  # fmt: skip
    for kind, rows, keys, beam in shapes:
        start = f"| {kind} | {rows} | {keys} | {beam} |"
        try:
            case = StepCase(kind, rows, keys, beam, sizes.heads, sizes.head_dim)
            time_of_launch, size, copies, error = measure_step(case, device)
        except Exception as problem:
            print(f"{start} {type(problem).__name__}: {str(problem)[:120]} |", flush=True)
            if device == "cpu":
                raise
            continue
        rate, fits = size / time_of_launch / 1e3, "*" if size < L2_BYTES else ""
        print(f"{start} {time_of_launch:.1f} | {size / 1e6:.1f}{fits} | {copies} | {rate:.0f} "
              f"| {100 * rate / bandwidth:.0f} | {error:.0e} |", flush=True)  # fmt: skip


def attend_systems(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, device: str
) -> dict[str, Callable[[], Tensor]]:
    """Names and calls: the kernel that regard plans, our Triton kernels by name, and SDPA."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mask = None if lengths is None else Padding(lengths, finite=True)
    systems = {f"regard ({explain(q, k, v, mask=mask).kernel})": lambda: attend(q, k, v, mask=mask)}
    for kernel in ("triton-cache", "triton") if device != "cpu" else ():
        systems[f"regard, {kernel}"] = lambda kernel=kernel: attend(q, k, v, mask=mask, kernel=kernel)
    allowed = None
    if lengths is not None:
        allowed = (torch.arange(k.shape[2], device=device) < lengths[:, None])[:, None, None]

    def sdpa(backend: SDPBackend | None) -> Tensor:
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, allowed, enable_gqa=True)

    if lengths is None and device != "cpu":
        systems["SDPA, flash"] = lambda: sdpa(SDPBackend.FLASH_ATTENTION)
        systems["SDPA, cuDNN"] = lambda: sdpa(SDPBackend.CUDNN_ATTENTION)
    else:
        systems["SDPA, its choice"] = lambda: sdpa(None)
    return systems


def print_attend(sizes: Sizes, device: str, bandwidth: float) -> None:
    print("\nregard.attend, one query, grouped heads, bfloat16")
    print("| batch × heads (of keys), D | keys | system | µs | MB | GB/s | % of copy | error |")
    print("|---|---|---|---|---|---|---|---|")
    for B, H, Hk, T, D in sizes.attend:
        torch.manual_seed(0)
        q, k, v = (torch.randn(s, device=device).to(torch.bfloat16)
                   for s in ((B, H, 1, D), (B, Hk, T, D), (B, Hk, T, D)))  # fmt: skip
        half_to_all = torch.linspace(T // 2, T, B, device=device).long()
        for name, lengths in (("", None), (", lengths", half_to_all)):
            seen = B * T if lengths is None else int(lengths.sum())
            size = (2 * seen * Hk + 2 * B * H) * D * SIZE
            mask = None if lengths is None else Padding(lengths[:2], finite=True)
            true = attend(q[:2].double(), k[:2].double(), v[:2].double(), mask=mask, kernel="reference")
            for system, run in attend_systems(q, k, v, lengths, device).items():
                start = f"| {B} × {H} ({Hk}), {D} | {T}{name} | {system} |"
                try:
                    error, time_of_call = relative_error(run()[:2], true), microseconds(run, device)
                except Exception as problem:
                    print(f"{start} {type(problem).__name__}: {str(problem)[:120]} |", flush=True)
                    if device == "cpu":
                        raise
                    continue
                rate = size / time_of_call / 1e3
                print(f"{start} {time_of_call:.1f} | {size / 1e6:.1f} | {rate:.0f} "
                      f"| {100 * rate / bandwidth:.0f} | {error:.0e} |", flush=True)  # fmt: skip


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tiny", action="store_true", help="small shapes on a CPU, to test the program")
    parser.add_argument(
        "--only", default="", metavar="KIND", help="only kernels of the engine whose kind has this, or attend"
    )
    options = parser.parse_args(arguments)
    device, sizes = ("cpu", TINY) if options.tiny else ("cuda", Sizes())
    if options.tiny:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when the kernels are imported
    import triton

    torch.manual_seed(0)
    print(machine.stamp(None if options.tiny else torch.cuda.get_device_name()), "Triton", triton.__version__)
    if not options.tiny:
        print(clocks())
    bandwidth = copy_bandwidth(sizes.copy, device)
    print(f"copy of {sizes.copy / 2**30:g} GiB: {bandwidth:.0f} GB/s, read plus written", flush=True)
    if options.only != "attend":
        print_steps(sizes, device, bandwidth, options.only)
    if options.only in ("", "attend"):
        print_attend(sizes, device, bandwidth)
    if not options.tiny:
        print(clocks())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
