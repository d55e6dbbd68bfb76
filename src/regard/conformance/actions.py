"""Attention functions under test (`Backend`), and the ways to run a case on one (`ACTIONS`)."""

from __future__ import annotations

import importlib
import inspect
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.call import wrap_bias
from regard.attention.grid import Grid
from regard.attention.mask import Mask
from regard.attention.position_masks import Causal
from regard.conformance.cases import Case
from regard.conformance.draw_options import ClosureBias

Results = dict[str, Tensor]


class Refused(Exception):
    """Raised by a backend that cannot run a call. Any other exception counts as a refusal too."""


@dataclass(frozen=True)
class Backend:
    """An attention function (query, key, value, mask=, bias=, …) and the names of the options it takes.

    With `objects`, the function gets regard's masks, biases, energies and normalisers. Without, it gets a
    boolean mask and a bias tensor, or `causal=True` if it has that argument. A call with an option not in
    `takes` is refused.
    """

    function: Callable[..., Tensor]
    takes: frozenset[str]
    objects: bool = False

    @classmethod
    def of(cls, function: Callable[..., Tensor]) -> Backend:
        if isinstance(function, Backend):
            return function
        names = list(inspect.signature(function).parameters)
        return cls(function, frozenset(names[3:]))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        arguments = self.arguments(query, key, options)
        unknown = set(arguments) - self.takes
        if unknown:
            raise Refused(f"it has no option {', '.join(sorted(unknown))}")
        return self.function(query, key, value, **arguments)

    def arguments(self, query: Tensor, key: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        """The options in the form that the function takes."""
        objects = {name: x for name, x in as_options(options).items() if x is not None}
        return objects if self.objects else self._tensors(query, key, objects)

    def _tensors(self, query: Tensor, key: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        """Masks and biases as tensors."""
        Tq, Tk, arguments = query.shape[-2], key.shape[-2], dict(options)
        leading = query.shape[:-3] if query.ndim >= key.ndim else key.shape[:-3]
        mask, bias = arguments.get("mask"), arguments.get("bias")
        if type(mask) is Causal and mask.offset is None and Tq == Tk and "causal" in self.takes:
            arguments = {n: x for n, x in arguments.items() if n != "mask"} | {"causal": True}
        elif isinstance(mask, Mask):
            arguments["mask"] = mask.dense(Tq, Tk, query.device)
        if bias is not None and not isinstance(bias, Tensor) and "bias" in self.takes:
            grid = Grid(Tq, Tk, heads=query.shape[-3], leading=leading, device=query.device)
            values = wrap_bias(bias).values(grid, query)  # type: ignore[union-attr]
            arguments["bias"] = values.expand(*values.shape[:-2], Tq, Tk)
        return arguments


def as_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a case as `attend` takes them."""
    return {name: x.option() if isinstance(x, ClosureBias) else x for name, x in options.items()}


def load(name: str) -> Backend:
    """Import the backend called package.module:function."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"a backend is named package.module:function, got {name!r}")
    try:
        imported = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot import {name!r}: {error}") from None
    try:
        return Backend.of(imported)
    except (TypeError, ValueError):  # not callable, or built in
        raise ValueError(
            f"cannot read the arguments of {name!r}: wrap it in a function (query, key, value, mask=None)"
        ) from None


OPTIONS = frozenset(("energy", "mask", "bias", "normalize", "gate", "softcap", "dropout"))
REFERENCE = Backend(partial(attend, kernel="reference"), OPTIONS, objects=True)


def _gradient(out: Tensor, seed: int) -> Tensor:
    noise = torch.Generator().manual_seed(seed + 1)
    return torch.randn(out.shape, generator=noise, dtype=torch.float64).to(out.device, out.dtype)


def call_backend(backend: Backend, tensors: Results, options: dict[str, Any]) -> Tensor:
    return backend(tensors["query"], tensors["key"], tensors["value"], options)


def run_case(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    """The output and all gradients."""
    leaves, tensors, options = case.make(dtype, device)
    return _with_gradients(case, leaves, options, call_backend(backend, tensors, options))


def _with_gradients(case: Case, leaves: Results, options: dict[str, Any], out: Tensor) -> Results:
    """The output and the gradients of all inputs and parameters."""
    results = {"out": out.detach()}
    if not out.requires_grad:
        return results
    inputs = leaves | case.option_parameters(options)
    grads = torch.autograd.grad(out, list(inputs.values()), _gradient(out, case.seed), allow_unused=True)
    return results | {
        n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(inputs.items(), grads, strict=True)
    }


def run_twice(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    """The gradient of a gradient penalty."""
    leaves, tensors, options = case.make(dtype, device)
    out = call_backend(backend, tensors, options)
    inputs = list((leaves | case.option_parameters(options)).items())
    first = torch.autograd.grad(out.sum(), [x for _, x in inputs], create_graph=True, allow_unused=True)
    penalty = sum(g.square().sum() for g in first if g is not None)
    if not isinstance(penalty, Tensor) or not penalty.requires_grad:
        return {"out": out.detach()} | {n: torch.zeros_like(x) for n, x in inputs}
    second = torch.autograd.grad(penalty, [x for _, x in inputs], allow_unused=True)
    return {"out": out.detach()} | {
        n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(inputs, second, strict=True)
    }


def _changed(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    """Overwrite every tensor in the options between forward and backward."""
    leaves, tensors, options = case.make(dtype, device)
    out = call_backend(backend, tensors, options)
    for option in options.values():
        for x in [option] if isinstance(option, Tensor) else vars(option).values():
            if isinstance(x, Tensor):
                x.copy_(~x if x.dtype == torch.bool else x + 1 if x.is_floating_point() else x // 2)
    return _with_gradients(case, leaves, options, out)


def _autocast(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    with torch.autocast(device, torch.bfloat16):
        return run_case(case, backend, dtype, device)


def _default_dtype(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    with _default_dtype_set(torch.float32 if dtype == torch.float64 else torch.float64):
        return run_case(case, backend, dtype, device)


@contextmanager
def _default_dtype_set(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _device_context(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    leaves, tensors, options = case.make(dtype, device)
    with torch.device("meta"):
        out = call_backend(backend, tensors, options)
    return _with_gradients(case, leaves, options, out)


def _inference(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    """Inference mode, where many functions take another path; equal query and key become one tensor."""
    _, tensors, options = case.make(dtype, device)
    query, key, value = (x.detach() for x in tensors.values())
    with torch.inference_mode():
        if torch.equal(case.leaves["query"], case.leaves["key"]):
            key = value = query
        return {"out": backend(query, key, value, options)}


def _vmap(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    leaves, tensors, options = case.make(dtype, device)
    out = torch.func.vmap(lambda q, k, v: backend(q, k, v, options))(*tensors.values())
    return _with_gradients(case, leaves, options, out)


def _func_grad(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    leaves, _, options = case.make(dtype, device)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out = backend(q, k, v, options)
        return (out * _gradient(out, case.seed)).sum(), out

    grads, out = torch.func.grad(loss, argnums=(0, 1, 2), has_aux=True)(
        *(x.detach() for x in leaves.values())
    )
    return {"out": out} | dict(zip(leaves, grads, strict=True))


def _compiled(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    leaves, tensors, options = case.make(dtype, device)
    torch._dynamo.reset()
    function = torch.compile(lambda q, k, v: backend(q, k, v, options), fullgraph=True, backend="aot_eager")
    return _with_gradients(case, leaves, options, function(*tensors.values()))


class _Module(nn.Module):
    def __init__(self, backend: Backend, options: dict[str, Any]) -> None:
        super().__init__()
        self.backend, self.options = backend, options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.backend(query, key, value, self.options)


def _exported(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    leaves, tensors, options = case.make(dtype, device)
    # Other values: the trace must not bake them in.
    examples = tuple(torch.randn_like(x) for x in tensors.values())
    program = torch.export.export(_Module(backend, options), examples).module()
    return _with_gradients(case, leaves, options, program(*tensors.values()))


def _threads(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    """Run in four threads at once; returns of each result the one farthest from a single-threaded run."""
    collected: list[Results | Exception] = []

    def run() -> None:
        try:
            collected.append(run_case(case, backend, dtype, device))
        except Exception as error:
            collected.append(error)

    alone = run_case(case, backend, dtype, device)
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in collected:
        if isinstance(result, Exception):
            raise result
    results = [x for x in collected if not isinstance(x, Exception)]
    return {
        name: max((x[name] for x in results), key=lambda x: _distance(x, true))
        for name, true in alone.items()
    }


def _distance(x: Tensor, y: Tensor) -> float:
    if not x.numel() or torch.equal(x, y):
        return 0.0
    if x.shape != y.shape:
        return math.inf
    return (x.double() - y.double()).abs().max().nan_to_num(math.inf).item()


ACTIONS: dict[str, Callable[[Case, Backend, torch.dtype, str], Results]] = {
    "run": run_case, "differentiate twice": run_twice, "change": _changed, "autocast": _autocast,
    "default dtype": _default_dtype, "device context": _device_context, "inference": _inference,
    "vmap": _vmap, "func.grad": _func_grad, "compile": _compiled, "export": _exported, "threads": _threads,
}  # fmt: skip
