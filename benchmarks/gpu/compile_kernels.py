"""Compile our Triton kernels for an H200 on a machine without a GPU: registers, spills, shared memory.

python -m benchmarks.gpu.compile_kernels                 # all kernels, some minutes on one core
python -m benchmarks.gpu.compile_kernels additive cache  # some groups

Our launchers run with tensors of the CPU and compile each kernel that they launch, with their own constants
and block sizes; nothing is computed. So compiler errors, too much shared memory and spilled registers are
found before a GPU is there. Figures are those of the installed Triton; versions differ.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

HOPPER = 90  # compute capability 9.0
MAX_SHARED = 227 * 1024  # bytes that a program may have there
RESERVED_SHARED = 1024  # bytes that each program takes beside its own
REGISTERS, WARPS = 65536, 64  # of a multiprocessor
HEADS, DIM = 2, 128
HALF = torch.bfloat16


class NoGpuDriver:
    """What Triton asks of a driver, for a Hopper GPU that is not there: kernels compile and do not run."""

    utils = SimpleNamespace(
        load_binary=lambda name, kernel, shared, device: (None, None, 0, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": MAX_SHARED},
    )

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", HOPPER, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments: None


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel, and what it takes of a multiprocessor."""

    name: str
    case: str
    warps: int
    registers: int  # of a thread
    spilled: int  # bytes of local memory of a thread
    shared: int  # bytes of a program

    @property
    def programs(self) -> int:
        """How many programs fit on a multiprocessor."""
        registers = -(-self.registers // 8) * 8 * 32 * self.warps
        return min(REGISTERS // registers, MAX_SHARED // (self.shared + RESERVED_SHARED), WARPS // self.warps)


class Compiler:
    """Inside `with`, launches compile kernels for Hopper and are recorded in `kernels`."""

    def __init__(self) -> None:
        self.kernels: list[Compiled] = []
        self.case = ""  # of the next launches
        self.previous: tuple[Any, Any]

    def __enter__(self) -> Compiler:
        knobs, driver = _triton_runtime()
        if knobs.interpret:
            raise SystemExit("TRITON_INTERPRET is set, so nothing is compiled; unset it")
        self.previous = driver._active, knobs.kernel_load_end_hook
        driver.set_active(NoGpuDriver())
        knobs.kernel_load_end_hook = self._record
        return self

    def __exit__(self, *error: object) -> None:
        knobs, driver = _triton_runtime()
        driver._active, knobs.kernel_load_end_hook = self.previous

    def _record(self, module: object, function: object, name: str, files: dict[str, str], key: str) -> None:
        path = {Path(file).suffix: Path(files[file]) for file in files}
        metadata = json.loads(path[".json"].read_text(encoding="utf-8"))
        figures = metadata["num_warps"], *resources(path[".cubin"]), metadata["shared"]
        self.kernels.append(Compiled(name, self.case, *figures))


def _triton_runtime() -> tuple[Any, Any]:
    """Triton's settings and its driver."""
    from triton import knobs
    from triton.runtime import driver

    return knobs.runtime, driver


def resources(cubin: Path) -> tuple[int, int]:
    """Registers and bytes of local memory of a thread, by the cuobjdump of Triton's package."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    text = subprocess.run(
        [program, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return used["REG"], used["STACK"] + used["LOCAL"]


def inputs(
    Tq: int, Tk: int, dim: int = DIM, key_heads: int = HEADS, dtype: torch.dtype = HALF
) -> list[Tensor]:
    """Queries, keys and values (batch 2)."""
    shapes = (HEADS, Tq, dim), (key_heads, Tk, dim), (key_heads, Tk, dim)
    return [torch.zeros(2, *shape, dtype=dtype) for shape in shapes]


# Each group is a function that names a case and launches its kernels.


def additive(compiler: Compiler) -> None:
    """Energies, softmax × values and all gradients; float32, 256 features, without and with a mask."""
    from regard.attention.kernels.additive_gpu import Passes, VisibleKeys

    cases = {
        "no mask": VisibleKeys(),
        "ranges": VisibleKeys(torch.zeros(2, 128, dtype=torch.int32), torch.ones(2, 128, dtype=torch.int32)),
        "dense mask": VisibleKeys(allowed=torch.ones(2, 1, 128, 128, dtype=torch.uint8)),
        "one query": VisibleKeys(torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1, dtype=torch.int32)),
    }
    for case, visible in cases.items():
        compiler.case = f"additive, {case}"
        a, b, v = (torch.zeros(2, 1, T, 256) for T in (1 if case == "one query" else 128, 128, 128))
        passes = Passes(a, b, torch.zeros(1, 256), v, visible)
        passes.asm = True  # the reciprocal instruction, as on a GPU
        out, logs, saved = passes.forward(save=True)
        passes.backward(out, out, logs, saved)


def band(compiler: Compiler) -> None:
    """Windows, ALiBi and lengths; bfloat16, 4096 queries."""
    from regard.attention.kernels.triton_launch import (
        Band,
        Slopes,
        banded,
        banded_backward,
        banded_column_sums,
    )

    T, alibi, lengths = 4096, Slopes(torch.ones(HEADS)), torch.tensor([100, 4096])
    cases = {
        "window 256": (Band(-128, 128), Slopes(), False),
        "ALiBi, causal": (Band(-T, 0), alibi, False),
        "lengths": (Band(-T, T, lengths), Slopes(), False),
        "sigmoid": (Band(-T, T), Slopes(), True),
    }
    for (case, (mask, slopes, sigmoid)), dim in product(cases.items(), (64, 128)):
        compiler.case = f"band, {case}, D={dim}"
        q, k, v = inputs(T, T, dim)
        out, logs = banded(q, k, v, 0.1, mask, slopes, sigmoid=sigmoid)
        banded_backward(q, k, v, out, logs, out, 0.1, mask, slopes)
        if not sigmoid:
            banded_column_sums(q, k, 0.1, mask, slopes)


def short(compiler: Compiler) -> None:
    """Sequences of at most 64 tokens; bfloat16, 64 components."""
    from regard.attention.kernels.short import attend_short, attend_short_backward
    from regard.attention.kernels.triton_launch import Band

    for T in (16, 32, 64):
        compiler.case = f"short, T={T}"
        q, k, v = inputs(T, T, 64)
        lengths = Band(-T, 0, torch.tensor([3, T]))
        attend_short_backward(q, k, v, attend_short(q, k, v, 0.1, lengths), 0.1, lengths)


def cache(compiler: Compiler) -> None:
    """Few queries against a cache; bfloat16, grouped key heads."""
    from regard.attention.kernels.decode import attend_cache
    from regard.attention.kernels.triton_launch import Band

    for dim, keys, lengths in product((64, 128), (256, 8192), (None, torch.tensor([100, 256]))):
        parts, padded = ", split" * (keys > 256), ", lengths" * (lengths is not None)
        compiler.case = f"cache, D={dim}{parts}{padded}"
        q, k, v = inputs(1, keys, dim, key_heads=1)
        attend_cache(q, k, v, 0.1, Band(-1, keys, lengths))


def residual(compiler: Compiler) -> None:
    """Residual sum, dropout and layer normalisation; bfloat16 with float32 weights, 512 features."""
    from regard.layers.fused_residual import add_and_norm

    norm = torch.nn.LayerNorm(512)
    for keep_sum in (False, True):
        compiler.case = "residual, pre-norm" if keep_sum else "residual, post-norm"
        x, f = (torch.zeros(1024, 512, dtype=HALF, requires_grad=True) for _ in range(2))
        out, skip = add_and_norm(x, f, norm, 0.1, keep_sum=keep_sum)
        (out.sum() + skip.sum()).backward()


def loss(compiler: Compiler) -> None:
    """Cross-entropy of a chunk of logits, and its gradient; 12,000 tokens."""
    from regard.models import fused_loss

    compiler.case = "loss"
    x, weight = (torch.zeros(n, 64, requires_grad=True) for n in (128, 12000))
    fused_loss.fused_cross_entropy(x, weight, None, torch.ones(128, dtype=torch.long), 0.1)


def entmax(compiler: Compiler) -> None:
    """Sparsemax and entmax-1.5 of rows of scores; float32."""
    from regard.attention import entmax_gpu

    for alpha, keys in product((2.0, 1.5), (512, 2048, 8192)):
        compiler.case = f"entmax, α={alpha}, T={keys}"
        weights = entmax_gpu.weights(torch.zeros(16, keys), alpha)
        entmax_gpu.gradient(weights, weights, alpha)


def decoding(compiler: Compiler) -> None:
    """The CUDA engine's steps: attention to a cache, best tokens, the update of a beam; bfloat16, D=64."""
    from regard.decoding.engine.cuda import device_beam
    from regard.decoding.engine.cuda.buffers import Buffers, Size
    from regard.decoding.engine.cuda.step_operations import FusedOperations

    shape = SimpleNamespace(heads=8, head_dim=64)
    engine: Any = SimpleNamespace(
        layer_shape=shape, dtype=HALF, score_dtype=HALF, device=torch.device("cpu"),
        decoder=SimpleNamespace(layers=[None], positions=lambda length: None),
    )  # fmt: skip
    for width in (1, 4):
        compiler.case = f"decoding, beam {width}"
        buffers, operations = Buffers(engine, Size(16, width, 32, 32)), FusedOperations()
        rows = 16 * width
        operations.self_attention(torch.zeros(rows, 3 * 512, dtype=HALF), buffers.cache[0], buffers, 32, None)
        operations.cross_attention(torch.zeros(rows, 512, dtype=HALF), buffers.cross[0], buffers)
        log_p, best = operations.best(torch.zeros(rows, 32768), 1 if width == 1 else width + 1)
        device_beam.extend_fused(buffers, log_p, best, 3)


GROUPS = (additive, band, short, cache, entmax, residual, loss, decoding)


def compile_groups(groups: Sequence[Callable[[Compiler], None]]) -> list[Compiled]:
    """The kernels of these groups, in the order of their launches."""
    with Compiler() as compiler:
        for group in groups:
            start = time.monotonic()
            group(compiler)
            print(f"{group.__name__}: {time.monotonic() - start:.0f} s", flush=True)
    return compiler.kernels


def table(kernels: list[Compiled]) -> str:
    columns = "case", "kernel", "warps", "registers", "spilled bytes", "shared KiB", "programs per SM"
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for k in kernels:
        spilled = f"**{k.spilled}**" if k.spilled else "0"
        figures = k.warps, k.registers, spilled, f"{k.shared / 1024:.0f}", k.programs
        lines.append(f"| {k.case} | `{k.name}` | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    import triton

    names = {group.__name__: group for group in GROUPS}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.compile_kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", choices=[*names, []], metavar="GROUP", help=", ".join(names))
    options = parser.parse_args(argv)
    kernels = compile_groups([names[name] for name in options.groups or names])
    print(f"\nTriton {triton.__version__}, sm_{HOPPER}\n\n{table(kernels)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
