"""Choose the kernel for a call. A kernel requested by name runs or raises: there is no silent fallback.

Planning reads shapes, dtypes and options, never values, so plans are cached by signature.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.arguments import instance, one_of, quoted
from regard.attention import kernel_inputs
from regard.attention.call import Call
from regard.attention.kernels.additive import AdditiveTiles
from regard.attention.kernels.additive_gpu import TritonAdditive
from regard.attention.kernels.cpp import Cpp
from regard.attention.kernels.decode import TritonCache
from regard.attention.kernels.flex import Flex
from regard.attention.kernels.kernel import Kernel
from regard.attention.kernels.reference import Reference
from regard.attention.kernels.sdpa import Sdpa
from regard.attention.kernels.short import TritonShort
from regard.attention.kernels.tiled import Tiled
from regard.attention.kernels.triton import Triton
from regard.attention.machine import Machine
from regard.errors import KernelError, OptionError

# Fastest first. The last one can run every call.
KERNELS: dict[str, Kernel] = {
    k.name: k
    for k in (
        *(Cpp(), TritonShort(), TritonCache(), Triton(), TritonAdditive(), Flex(), Sdpa()),
        *(AdditiveTiles(), Tiled(), Reference()),
    )
}
PREPARED: dict[Hashable, Any] = {}  # `attend`'s cached plans, by signature


def add_kernel(kernel: Kernel) -> None:
    """Register a kernel; `attend` tries it before all others."""
    instance("kernel", kernel, Kernel, "an instance of a subclass of Kernel")
    if kernel.name in KERNELS:
        raise OptionError(f"there is a kernel {kernel.name!r} already; choose another name or remove it")
    others = dict(KERNELS)
    KERNELS.clear()
    KERNELS.update({kernel.name: kernel, **others})
    PREPARED.clear()


def remove_kernel(name: str) -> None:
    """Unregister a kernel that `add_kernel` registered."""
    if name == "reference":
        raise OptionError("the reference kernel cannot be removed: it runs what no other kernel can")
    del KERNELS[one_of("kernel", name, KERNELS)]
    PREPARED.clear()


@dataclass
class Plan:
    """The kernel that runs, why, why not a faster one, and its memory in bytes beside inputs and output."""

    kernel: str
    why: str
    not_used: dict[str, str] = field(default_factory=dict)
    memory: int = 0

    def __str__(self) -> str:
        lines = [
            f"{self.kernel}: {self.why}",
            f"memory beside inputs and output: about {_format_bytes(self.memory)}",
        ]
        return "\n".join(lines + [f"not {name}: {reason}" for name, reason in self.not_used.items()])


def make_plan(call: Call, kernel: str | None = None, machine: Machine | None = None) -> Plan:
    """The plan for a call: the requested kernel, or the fastest that can run it."""
    machine = Machine.of(call.query, call.key, call.value) if machine is None else machine
    not_used: dict[str, str] = {}
    chosen = (
        choose_kernel(call, machine, not_used) if kernel is None else requested_kernel(call, kernel, machine)
    )
    why = chosen.describe(call, machine) if kernel is None else "requested by name"
    return Plan(chosen.name, why, not_used, chosen.memory(call, machine))


def choose_kernel(call: Call, machine: Machine, not_used: dict[str, str] | None = None) -> Kernel:
    """The fastest kernel that can run the call. Fills `not_used` with the reasons against faster ones."""
    for kernel in KERNELS.values():
        reason = kernel.refuses(call, machine)
        if reason is None and not machine.tracer:  # sizes of a traced call may be symbolic
            reason = kernel.not_worth(call, machine)
        if reason is None:
            return kernel
        if not_used is not None:
            not_used[kernel.name] = reason
    return KERNELS["reference"]


def requested_kernel(call: Call, name: str, machine: Machine) -> Kernel:
    """The kernel of this name. Raise if there is none or it cannot run the call."""
    if not isinstance(name, str) or name not in KERNELS:
        close = difflib.get_close_matches(str(name), KERNELS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(KERNELS)}"
        raise KernelError(f"no kernel is called {quoted(name)}; {hint}")
    reason = KERNELS[name].refuses(call, machine)
    if reason is not None:
        raise KernelError(
            f"kernel={name!r} cannot run this call: {reason}; leave kernel out to let regard choose"
        )
    return KERNELS[name]


def run(call: Call, kernel: Kernel, machine: Machine, clear: bool) -> Tensor:
    """Run a call by one kernel.

    `clear`: first zero the keys that no query sees and the queries that see no key.
    """
    out = kernel.run(kernel_inputs.clear_unseen(call) if clear else call, machine)
    out = out if out.dtype is call.dtype else out.to(call.dtype)
    return out.squeeze(-3) if call.squeeze_heads else out


def _format_bytes(n: int) -> str:
    if n < 1024:
        return f"{n} B"
    power = min(4, int(math.log(n, 1024)))
    return f"{n / 1024**power:.1f} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}"
