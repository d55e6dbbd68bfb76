"""Additive attention on a GPU: regard's Triton kernel, with --peers torch eager and compiled and our tiles.

python -m benchmarks.gpu.additive --sweep    # errors, times, memory, each pass, several block sizes
python -m benchmarks.gpu.additive --peers    # beside other systems; torch.compile takes a minute
python -m benchmarks.gpu.additive --tiny     # without a GPU, in Triton's interpreter; times mean nothing

Queries and keys are projected beforehand: every system computes softmax(Σ w tanh(a + b)) v in float32. One
row adds the two projections, one a mask of lengths. Predictions are in NOTES.md; results are also written
as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.band import kernel_time, milliseconds
from benchmarks.peers import machine
from regard import Additive, Padding, attend
from regard.attention.energy import AdditiveForm, Energy
from regard.attention.kernels import additive_gpu
from regard.attention.kernels.additive_gpu import Passes, VisibleKeys

System = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
RESULTS = Path(__file__).with_name("results")
SHAPE = (64, 512, 512, 256)  # batch, queries, keys, features and components of the values
TINY = (2, 40, 70, 24)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHECKED = 2  # sequences compared with float64
SCALES = (1.0, 3.0, 10.0, 60.0)  # standard deviations of a and b whose errors are shown: all levels of tiles
# One value of additive_gpu.Blocks at a time; the others keep their defaults.
SWEEP: dict[str, list[tuple[int, ...]]] = {
    "prepare": [(64, 8), (64, 4), (128, 8), (256, 8), (256, 16)],
    "energy": [(64, 64, 4, 2, 72), (64, 64, 4, 2, 64), (64, 64, 4, 2, 80), (64, 64, 4, 2, 96),
               (64, 32, 2, 2, 80), (64, 32, 4, 2, 64)],
    "combine": [(32, 32, 64, 4, 3), (32, 32, 64, 4, 2), (32, 32, 128, 4, 2), (32, 32, 128, 8, 2),
                (32, 32, 128, 8, 3), (32, 32, 256, 8, 2), (64, 32, 64, 4, 3), (64, 64, 64, 4, 2)],
    "scores": [(64, 4, 2), (32, 4, 2)],
    "values": [(64, 4, 3), (32, 4, 3), (64, 8, 3)],
    "features": [(32, 64, 4, 2, 128), (32, 64, 4, 2, 96), (32, 64, 4, 2, 168), (16, 64, 2, 2, 128),
                 (32, 64, 4, 1, 128), (64, 64, 8, 2, 128)],
}  # fmt: skip


class Projected(Energy):
    """Σ w tanh(query + key) for projected queries and keys."""

    form = "additive"

    def __init__(self, w: Tensor) -> None:
        self.w = w

    def as_additive(self, query: Tensor, key: Tensor) -> AdditiveForm:
        return AdditiveForm(query, key, self.w)

    def pair_features(self, dim: int) -> int:
        return dim

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.w,)


def eager_sum(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((torch.tanh(a[:, :, None] + b[:, None]) * w).sum(-1), -1) @ v


def eager_product(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(a[:, :, None] + b[:, None]) @ w, -1) @ v


def ours(kernel: str) -> System:
    def run(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return attend(a[:, None], b[:, None], v[:, None], energy=Projected(w), kernel=kernel)[:, 0]

    return run


def with_projections(dim: int) -> System:
    energy = Additive(dim).to(DEVICE)

    def run(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return attend(a[:, None], b[:, None], v[:, None], energy=energy, kernel="triton-additive")[:, 0]

    return run


def with_lengths(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Sequences have from half to all of the keys, as in a batch of a decoder."""
    lengths = torch.linspace(b.shape[1] // 2, b.shape[1], len(b), device=b.device).long()
    inputs, mask = (a[:, None], b[:, None], v[:, None]), Padding(lengths)
    return attend(*inputs, energy=Projected(w), mask=mask, kernel="triton-additive")[:, 0]


def systems(dim: int, *, peers: bool) -> dict[str, System]:
    own = {
        "regard triton-additive": ours("triton-additive"),
        "regard triton-additive with lengths": with_lengths,
        "regard triton-additive with projections": with_projections(dim),
    }
    if not peers:
        return own
    return {
        **own,
        "regard tiled": ours("tiled"),
        "eager": eager_sum,
        "torch.compile, sum": torch.compile(eager_sum),
        "torch.compile, product": torch.compile(eager_product),
    }


def make(shape: tuple[int, ...], scale: float) -> list[Tensor]:
    """a, b, w and v; the standard deviation of a and b is `scale`."""
    B, Tq, Tk, D = shape
    a, b, v = (torch.randn(B, T, D, device=DEVICE) for T in (Tq, Tk, Tk))
    w = torch.randn(D, device=DEVICE) / math.sqrt(D)
    return [x.requires_grad_() for x in (a * scale, b * scale, w, v)]


def errors(system: System, scale: float, shape: tuple[int, ...]) -> dict[str, float]:
    """‖x − true‖/‖true‖ and the same by the largest element, for the output and each gradient."""
    inputs = [x.detach().requires_grad_() for x in make((CHECKED, *shape[1:]), scale)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    out, true = system(*inputs), eager_sum(*exact)
    grad = torch.randn_like(out)
    results = (out, *torch.autograd.grad(out, inputs, grad))
    truth = (true, *torch.autograd.grad(true, exact, grad.double()))
    by_name = {}
    for name, x, y in zip(("output", "a", "b", "w", "v"), results, truth, strict=True):
        difference = x.double() - y
        by_name[name] = (difference.norm() / y.norm()).item()
        by_name[f"{name}, largest"] = (difference.abs().max() / y.abs().max()).item()
    return by_name


def peak_gib(call: Callable[[], object]) -> float:
    """Peak GPU memory of a call, inputs included; NaN without a GPU."""
    if DEVICE == "cpu":
        call()
        return math.nan
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() / 2**30


def measure(name: str, system: System, shape: tuple[int, ...], scale: float) -> dict[str, Any]:
    """Times in ms (median), peak memory in GiB including the inputs, and errors; or the reason for none."""
    try:
        inputs = make(shape, scale)
        used = inputs if "projections" not in name else [inputs[0], inputs[1], inputs[3]]
        grad = torch.randn(shape[0], shape[1], shape[3], device=DEVICE)

        def both() -> object:
            return torch.autograd.grad(system(*inputs), used, grad)

        with torch.no_grad():
            forward = milliseconds(lambda: system(*inputs))
            kernel_only = kernel_time(lambda: system(*inputs)) if "triton" in name else math.nan
            memory = peak_gib(lambda: system(*inputs))
        training = milliseconds(both)
        peak = peak_gib(both)
        error_by_name = {} if " with " in name else errors(system, scale, shape)
    except Exception as error:
        return {"system": name, "failed": f"{type(error).__name__}: {str(error)[:300]}"}
    return {
        "system": name, "forward": forward, "forward without host time": kernel_only,
        "with backward": training, "memory, forward": memory, "memory, with backward": peak,
        "error": error_by_name,
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['system']} | – | – | – | – | {row['failed'][:120]} |"
    gradients = [x for n, x in row["error"].items() if n != "output" and "largest" not in n]
    error = f"{row['error']['output']:.1e} / {max(gradients):.1e}" if row["error"] else "–"
    return (
        f"| {row['system']} | {row['forward']:.3f} ({row['forward without host time']:.3f}) "
        f"| {row['with backward']:.3f} | {row['memory, forward']:.2f} | {row['memory, with backward']:.2f} "
        f"| {error} |"
    )


def parts(shape: tuple[int, ...], field: str = "") -> dict[str, float]:
    """Milliseconds of each pass with the present `BLOCKS`, or of those whose name starts with `field`."""
    a, b, w, v = (x.detach() for x in make(shape, 1.0))
    passes = Passes(a[:, None], b[:, None], w[None], v[:, None], VisibleKeys())
    out, logs, saved = passes.forward(save=True)
    grad, rows = torch.randn_like(out), passes.TQP if saved else next(passes._chunks())[1]
    products = (out * grad).sum(-1).view(passes.N, passes.Tq)
    queries, keys = passes._exponentials()
    energies = passes._energies(queries, keys, 0, rows)
    scores = passes._score_gradients(energies, 0, rows, grad, logs, products)
    da, db, dv = (torch.empty_like(x[:, 0]) for x in (passes.a, passes.b, passes.v))
    steps: dict[str, Callable[[], object]] = {
        "prepare": passes._exponentials,
        "energy": lambda: passes._energies(queries, keys, 0, rows),
        "combine": lambda: passes._combine(energies, 0, rows, out, logs),
        "scores": lambda: passes._score_gradients(energies, 0, rows, grad, logs, products),
        "values": lambda: passes._value_gradients(energies, 0, rows, grad, logs, scores[1], dv),
        "features of queries": lambda: passes._query_gradients(queries, keys, scores, 0, rows, da),
        "features of keys": lambda: passes._key_gradients(queries, keys, scores, 0, rows, db),
        "products": lambda: (out * grad).sum(-1),
    }  # fmt: skip
    chunks = {"prepare": 1.0, "products": 1.0}
    return {
        name: milliseconds(step, 0.05) * chunks.get(name, passes.TQP / rows)
        for name, step in steps.items()
        if name.startswith(field)
    }


def sweep(shape: tuple[int, ...], seconds: float) -> list[dict[str, Any]]:
    """Each pass with several blocks, without the launches for rare levels; stops after `seconds`."""
    rows, default, launches, start = [], additive_gpu.BLOCKS, additive_gpu.LAUNCHES, time.perf_counter()
    additive_gpu.LAUNCHES = (False,)
    for field, option in ((field, option) for field, options in SWEEP.items() for option in options):
        if time.perf_counter() - start > seconds:
            print("sweep stopped: its time is up")
            break
        additive_gpu.BLOCKS = replace(default, **{field: option})
        try:
            times = parts(shape, field)
            shown = ", ".join(f"{n} {t:.3f} ms" for n, t in times.items())
        except Exception as error:
            times = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
            shown = times["failed"][:90]
        print(f"{field} {option}: {shown}", flush=True)
        rows.append({"field": field, "blocks": option, **times})
    additive_gpu.BLOCKS, additive_gpu.LAUNCHES = default, launches
    return rows


def best_blocks(rows: list[dict[str, Any]]) -> additive_gpu.Blocks:
    """The fastest blocks of a sweep for each pass; a pass for queries and keys by the sum of both."""
    best: dict[str, tuple[float, tuple[int, ...]]] = {}
    for row in rows:
        times = [value for name, value in row.items() if name not in ("field", "blocks")]
        if "failed" not in row:
            best[row["field"]] = min(best.get(row["field"], (math.inf, ())), (sum(times), row["blocks"]))
    return replace(additive_gpu.BLOCKS, **{field: blocks for field, (_, blocks) in best.items()})


def clocks() -> str:
    fields = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return "nvidia-smi did not answer"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--sweep-seconds", type=float, default=25.0, help="no further blocks after this time")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--shape", default=",".join(map(str, SHAPE)), help="batch,queries,keys,features")
    parser.add_argument("--scale", type=float, default=1.0, help="standard deviation of a and b")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--tiny", action="store_true", help="a small shape; in the interpreter on a CPU")
    args = parser.parse_args(arguments)
    shape = TINY if args.tiny else tuple(int(n) for n in args.shape.split(","))
    if args.tiny and DEVICE == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when the kernels are imported
    torch.manual_seed(0)
    stamp = machine.stamp(torch.cuda.get_device_name() if DEVICE == "cuda" else None)
    print(stamp, "Triton", version("triton"))
    error_by_scale = {scale: errors(ours("triton-additive"), scale, shape) for scale in SCALES}
    for scale, by_name in error_by_scale.items():
        shown = ", ".join(f"{n} {x:.1e}" for n, x in by_name.items() if "largest" not in n)
        print(f"error against float64, deviation {scale:g}: {shown}", flush=True)
    print("| system | forward, ms (without host time) | with backward, ms | GiB | GiB with backward "
          "| error of output / gradients |\n|---|---|---|---|---|---|")  # fmt: skip
    table = []
    for name, system in systems(shape[3], peers=args.peers).items():
        table.append(measure(name, system, shape, args.scale))
        print(line(table[-1]), flush=True)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    swept = sweep(shape, args.sweep_seconds) if args.sweep else []
    if swept:
        additive_gpu.BLOCKS = best_blocks(swept)
        print(f"with the best blocks of the sweep, {additive_gpu.BLOCKS}:")
        name, system = next(iter(systems(shape[3], peers=False).items()))
        table.append(measure(f"{name}, best blocks", system, shape, args.scale))
        print(line(table[-1]), flush=True)
    pass_times = parts(shape)
    print("passes, ms: " + ", ".join(f"{n} {t:.3f}" for n, t in pass_times.items()), flush=True)
    after = clocks()
    print(after)
    result = {
        "stamp": stamp, "triton": version("triton"), "clocks": after,
        "shape": shape, "scale": args.scale, "blocks": asdict(additive_gpu.BLOCKS), "table": table,
        "errors": error_by_scale, "passes": pass_times,
        "sweep": swept,
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"additive-{datetime.now(UTC):%Y-%m-%d-%H%M}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(path)
    return int(any("failed" in row for row in table))


if __name__ == "__main__":
    raise SystemExit(main())
