"""Which kernel runs a call, and why. Nothing falls back silently: a kernel asked for by name runs or says why it cannot."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from types import ModuleType

from torch import Tensor

from regard.attention.call import Call
from regard.attention.kernels import additive, compiled, flex, reference, sdpa, tiled
from regard.attention.machine import Machine
from regard.attention.position import ALiBi
from regard.errors import KernelError

# Fastest first, where more than one can run.
KERNELS: dict[str, ModuleType] = {"compiled": compiled, "flex": flex, "sdpa": sdpa, "additive": additive, "tiled": tiled}
NAMES = (*KERNELS, "reference")


@dataclass
class Plan:
    """The kernel that runs, why it, why none that is faster, and the memory it needs beside inputs and output."""

    kernel: str
    why: str
    not_used: dict[str, str] = field(default_factory=dict)
    memory: int = 0

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.why}", f"memory beside inputs and output: about {_bytes(self.memory)}"]
        return "\n".join(lines + [f"not {name}: {reason}" for name, reason in self.not_used.items()])


def make_plan(call: Call, kernel: str | None = None, machine: Machine | None = None) -> Plan:
    """Say which kernel a call gets, and everything worth knowing about that choice."""
    machine = Machine.of(call.query.device) if machine is None else machine
    if kernel is not None:
        return Plan(_asked(call, kernel, machine), "asked for by name", {}, _memory(kernel, call))
    not_used: dict[str, str] = {}
    name = _choose(call, machine, not_used)
    return Plan(name, _why(name, call, machine), not_used, _memory(name, call))


def run(call: Call, kernel: str | None = None) -> Tensor:
    """Run a call by the kernel asked for, or by the fastest."""
    machine = Machine.of(call.query.device)
    name = _choose(call, machine, {}) if kernel is None else _asked(call, kernel, machine)
    out = reference.run(call) if name == "reference" else KERNELS[name].run(call, machine)
    out = out if out.dtype == call.dtype else out.to(call.dtype)  # autocast may compute a softmax in float32
    return out.squeeze(-3) if call.flat else out


def _choose(call: Call, machine: Machine, not_used: dict[str, str]) -> str:
    for name, module in KERNELS.items():
        reason = _too_small(name, call, machine) or module.why_not(call, machine) or _why_not_worth(name, call, machine)
        if reason is None:
            return name
        not_used[name] = reason
    return "reference"


def _asked(call: Call, kernel: str, machine: Machine) -> str:
    if kernel not in NAMES:
        near = difflib.get_close_matches(str(kernel), NAMES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
        raise KernelError(f"no kernel is called {kernel!r}; {hint}")
    reason = None if kernel == "reference" else KERNELS[kernel].why_not(call, machine)
    if reason is not None:
        raise KernelError(f"kernel={kernel!r} cannot run this call: {reason}; leave kernel out to let regard choose")
    return kernel


def _pairs(call: Call) -> int:
    return call.sequences * call.heads * call.Tq * call.Tk


def _share(call: Call) -> float:
    """The share of all pairs that tiles would compute."""
    if call.mask is None or not call.Tq * call.Tk:
        return 1.0
    cover = tiled.cover(call, tiled.ROWS, apart=True)
    work = sum((t.batch.stop - t.batch.start) * (t.queries.stop - t.queries.start) * (t.keys.stop - t.keys.start) for t in cover)
    return work / (call.sequences * call.Tq * call.Tk)


def _too_small(name: str, call: Call, machine: Machine) -> str | None:
    """What is known from the sizes alone; asked first, because small calls must be quick to plan."""
    least = {("compiled", "cpu"): 1 << 14, ("flex", "cuda"): 1 << 22}.get((name, machine.kind), 0)
    pairs = _pairs(call)
    if name == "flex" and machine.kind == "cuda" and min(call.Tq, call.Tk) < sdpa.LONG:
        return f"under {sdpa.LONG} positions there are few blocks to skip, and each new shape of a batch would be compiled anew"
    return f"{pairs} pairs are too few to gain from it" if pairs < least else None


def _why_not_worth(name: str, call: Call, machine: Machine) -> str | None:
    """Why a kernel that could run is not the fastest way."""
    if machine.kind == "cpu":
        return _why_not_worth_cpu(name, call, machine)
    plain = call.bias is None and (call.mask is None or sdpa.is_torch_causal(call))
    if name == "flex" and plain and sdpa.why_not(call, machine) is None:
        return "SDPA has fused kernels for plain and causal attention, which are faster"
    if name == "tiled" and _pairs(call) * getattr(call.energy, "hidden", 1) < 1 << 28:
        return "the whole matrix is small enough to keep"
    return None


def _why_not_worth_cpu(name: str, call: Call, machine: Machine) -> str | None:
    pairs = _pairs(call)
    if name == "flex":
        return "on a CPU it is slower than the tiles"
    if name == "sdpa" and call.dtype in sdpa.HALF and call.learns and pairs < 1 << 18:
        return f"its backward pass in {str(call.dtype).removeprefix('torch.')} is slow on a CPU"
    if name == "compiled" and pairs < 1 << 18 and sdpa.why_not(call, machine) is None:
        return f"for {pairs} pairs SDPA is as fast"
    if name == "sdpa" and call.mask is not None and pairs >= 1 << 18 and tiled.why_not_fused(call, machine) is None:
        short = call.Tq <= 1024 if sdpa.is_torch_causal(call) and call.bias is None else True
        if short and call.Tq >= 2 * tiled.ROWS and _share(call) < 0.75:
            return "the mask leaves out much of the matrix, and tiles skip it"
    if name == "tiled" and call.dot is not None and pairs < 1 << 18:
        return f"{pairs} pairs are too few to gain"
    if name == "tiled" and pairs * getattr(call.energy, "hidden", 1) < 1 << 16:
        return f"{pairs} pairs are too few to gain"
    return None


def _why(name: str, call: Call, machine: Machine) -> str:
    what = type(call.energy).__name__
    if name == "reference":
        return "the plain definition is best or all that can run here"
    if name == "compiled":
        return f"{what} with softmax, compiled C++ for this CPU, keys outside the mask skipped"
    if name == "sdpa":
        backend = sdpa.backends(call, machine)
        return f"{what} with softmax is torch's fused attention" + (f", backend {backend[0]}" if backend else "")
    if name == "tiled":
        fused_ = tiled.why_not_fused(call, machine) is None
        return "fused tiles of queries, keys outside the mask skipped" if fused_ else "tiles of queries, memory linear in T"
    if name == "additive":
        return "Additive energies in reciprocal form, no Tq×Tk×D tensor"
    return "Flex compiles this mask and bias into one kernel"


def _memory(name: str, call: Call) -> int:
    """Bytes beside inputs and output, for the forward pass and what it keeps for the backward."""
    size, rows = call.query.element_size(), call.sequences * call.heads * call.Tq
    hidden = getattr(call.energy, "hidden", 1)
    if name == "reference":
        copies = 2 + (call.mask is not None) + (call.bias is not None) + (call.softcap is not None)
        return int(_pairs(call) * size * (copies if hidden == 1 else hidden * 2))
    masks = _mask_bytes(call) if name == "sdpa" else _bias_bytes(call) if name == "compiled" else 0
    tile = tiled.tile_size(call.query.device) * size * 4 if name in ("tiled", "additive") else 0
    return masks + min(tile, _pairs(call) * size * 4 * hidden) + rows * 4


def _mask_bytes(call: Call) -> int:
    if call.bias is None and (call.mask is None or sdpa.is_torch_causal(call)):
        return 0
    return call.Tq * call.Tk * (call.query.element_size() * call.heads if call.bias is not None else 1)


def _bias_bytes(call: Call) -> int:
    """The compiled kernel reads runs and slopes as they are; every other mask or bias is written out for it."""
    runs = call.mask is None or call.mask.runs(call.Tq, call.Tk, call.query.device) is not None
    if runs and (call.bias is None or isinstance(call.bias, ALiBi)):
        return 0
    return call.Tq * call.Tk * call.query.element_size() * (1 if call.bias is None else call.heads)


def _bytes(n: int) -> str:
    if n < 1024:
        return f"{n} B"
    power = min(4, int(math.log(n, 1024)))
    return f"{n / 1024**power:.1f} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}"
