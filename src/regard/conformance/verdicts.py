"""Run a case on a backend; the verdict is pass, refused (an exception), wrong (no exception) or unspecified.

Unspecified: the result differs only because a query may see no key, or because a masked key holds NaN. regard
defines both (zeros, and no effect); most libraries define neither.

The bound: error ≤ 2 · (error of the plain definition in the same dtype + eps · max|truth|), for the output
and every gradient, where the truth is the plain definition in float64. There are two allowances. Gradients
may lose another eps per unit of the largest score, because a fused backward pass recomputes a weight as
exp(score − log Σ exp). And if perturbing every input by eps changes the truth by more than the error of the
plain definition, that change counts instead, because a tensor of a few numbers can be exact by chance.
"""

from __future__ import annotations

import importlib
import inspect
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attend import attend, weights
from regard.attention.call import wrap_bias
from regard.attention.grid import Grid
from regard.attention.mask import Mask
from regard.attention.position_masks import Causal
from regard.conformance.cases import Case, ClosureBias

Results = dict[str, Tensor]


class Refused(Exception):
    """Raised by a backend that cannot run a call. Any other exception counts as a refusal too."""


@dataclass
class Outcome:
    """The verdict on one case."""

    case: Case
    verdict: str  # pass, refused, wrong, unspecified
    detail: str = ""
    error: float = 0.0

    def reproduction(self, backend: str) -> str:
        """Three lines of Python that reproduce this case."""
        return (
            "from regard.conformance import case, check, load\n"
            f"outcome = check(case({self.case.name!r}, {self.case.seed}), load({backend!r}))\n"
            f"print(outcome.case, outcome.verdict, outcome.detail)  # {self.detail}"
        )


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


def check(case: Case, backend: Backend | Callable[..., Tensor], device: str = "cpu") -> Outcome:
    """Run one case on a backend or a function and compare the result with the truth."""
    backend = Backend.of(backend)  # type: ignore[arg-type]
    try:
        results = ACTIONS[case.action](case, backend, case.dtype, device)
    except Exception as error:
        is_refusal = isinstance(error, Refused) or type(error).__module__.startswith("regard")
        kind = "" if is_refusal else f"{type(error).__name__}: "
        return Outcome(case, "refused", f"{kind}{error}".splitlines()[0][:300])
    outcome = _compare(case, results, None if backend.objects else NAIVE)
    if outcome.verdict == "wrong" and not backend.objects and _passes_where_defined(case, backend, device):
        return replace(outcome, verdict="unspecified")
    return outcome


def _passes_where_defined(case: Case, backend: Backend, device: str) -> bool:
    """Whether the case has masked NaN or rows that see no key, and passes once both are replaced by zeros."""
    if not _has_undefined(case, backend):
        return False
    case = replace(case, leaves={n: x.nan_to_num(0.0, 0.0, 0.0) for n, x in case.leaves.items()})
    backend = replace(backend, function=partial(_zero_empty_rows, backend.function))
    try:
        results = ACTIONS[case.action](case, backend, case.dtype, device)
    except Exception:
        return False
    return _compare(case, results, NAIVE).verdict == "pass"


def _has_undefined(case: Case, backend: Backend) -> bool:
    _, tensors, options = case.make(torch.float64)
    arguments = backend.arguments(tensors["query"], tensors["key"], options)
    empty = _rows_without_keys(arguments.get("mask"), arguments.get("bias"))
    return bool(empty.any()) or not all(x.isfinite().all() for x in case.leaves.values())


def _rows_without_keys(mask: Tensor | None, bias: Tensor | None) -> Tensor:
    seen = torch.ones(1, 1, dtype=torch.bool) if mask is None else mask
    return ~(seen if bias is None else seen & (bias != -math.inf)).any(-1, keepdim=True)


def _zero_empty_rows(
    function: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Tensor:
    """Unmask rows that see no key, and set their output to zero."""
    mask, bias = options.get("mask"), options.get("bias")
    empty = _rows_without_keys(mask, bias).to(query.device)
    if mask is not None:
        options["mask"] = mask | empty
    if bias is not None:
        options["bias"] = bias.masked_fill(empty, 0.0)
    return function(query, key, value, **options).masked_fill(empty, 0.0)


def _naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """The definition as most write it: a bias is added in the call's dtype, where −1e9 absorbs the score."""
    if bias is not None:
        added = torch.where(mask, bias, -math.inf) if mask is not None else bias
        scores = query @ key.mT / math.sqrt(max(1, query.shape[-1])) + added.to(query.dtype)
        empty = (scores == -math.inf).all(-1, keepdim=True)
        return torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0) @ value
    return attend(query, key, value, mask=mask, softcap=softcap or None, kernel="reference")


def _compare(case: Case, results: Results, lenient: Backend | None) -> Outcome:
    """Apply the bound of the module's docstring to the output and every gradient."""
    clean = replace(case, leaves={n: x.nan_to_num(0.0, 0.0, 0.0) for n, x in case.leaves.items()})
    dtype = torch.bfloat16 if case.action == "autocast" else case.dtype
    if case.action == "autocast":
        clean = replace(clean, leaves={n: x.to(dtype).double() for n, x in clean.leaves.items()})
    eps = torch.finfo(dtype).eps
    run = _run_twice if case.action == "differentiate twice" else _run
    truth = run(clean, REFERENCE, torch.float64, "cpu")
    plain = run(clean, _plain_definition(lenient, case), dtype, "cpu")
    perturbed = run(_perturbed(clean, eps), REFERENCE, torch.float64, "cpu")
    terms = _largest_output(_absolute_values(clean)) if run is _run else 0.0
    largest = max([terms, *(x.abs().max().item() for x in truth.values() if x.numel())])
    score, rounding, worst = *_largest_scores(clean, eps), (0.0, "")
    for name, true in truth.items():
        if name not in results or not true.numel():
            continue
        got = results[name].detach().double().cpu()
        if got.shape != true.shape:
            return Outcome(
                case, "wrong", f"{name} has shape {tuple(got.shape)}, not {tuple(true.shape)}", math.inf
            )
        if not got.isfinite().all() and true.isfinite().all():
            return Outcome(case, "wrong", f"{name} is not finite", math.inf)
        error, base, condition = (
            (x.double() - true).abs().max().item() for x in (got, plain[name], perturbed[name])
        )
        factor = (1 if name == "out" else 1 + score) * _allowance(case, name, true, dtype)
        bound = 2 * (max(base, condition) + eps * largest * factor)
        bound += 0 if name == "out" else 2 * rounding * largest
        if error > max(worst[0], bound):
            short_dtype = str(dtype).removeprefix("torch.")
            detail = f"{name} is off by {error:.3g}, the plain definition in {short_dtype} by {base:.2g}"
            worst = (error, detail)
    return Outcome(case, "wrong", worst[1], worst[0]) if worst[1] else Outcome(case, "pass")


def _plain_definition(lenient: Backend | None, case: Case) -> Backend:
    """The backend whose error counts as that of the plain definition."""
    plain = "bias" in case.options and not set(case.options) - {"mask", "bias"}
    same_heads = case.leaves["query"].shape[-3] == case.leaves["key"].shape[-3]
    return lenient if lenient is not None and plain and same_heads else REFERENCE


def _allowance(case: Case, name: str, true: Tensor, dtype: torch.dtype) -> float:
    """How many eps · max|truth| are added to the error of the plain definition.

    Two if that error is a representative sample; more for a tensor of a few numbers or a few keys, and more
    again for a parameter that sums over all pairs. Most in float64, where the plain definition is the truth
    itself and another order of summation rounds differently.
    """
    if dtype == torch.float64:
        return 500
    q, k = case.leaves["query"], case.leaves["key"]
    many = true.numel() >= 256 and q.shape[-1] >= 4 and k.shape[-2] >= 8
    return 2 if many else 8 if name in case.leaves or name == "out" else 32


def _perturbed(case: Case, eps: float) -> Case:
    noise = torch.Generator().manual_seed(case.seed)
    leaves = {
        n: x * (1 + eps * torch.randn(x.shape, generator=noise, dtype=x.dtype))
        for n, x in case.leaves.items()
    }
    return replace(case, leaves=leaves)


def _absolute_values(case: Case) -> Case:
    """The same call with |value|: its output shows the size of the terms that are summed."""
    return replace(case, leaves=case.leaves | {"value": case.leaves["value"].abs()})


def _largest_output(case: Case) -> float:
    _, tensors, options = case.make(torch.float64)
    out = _call(REFERENCE, tensors, options)
    return out.abs().max().item() if out.numel() else 0.0


def _largest_scores(case: Case, eps: float) -> tuple[float, float]:
    """The largest score that is no mask such as −1e9, and the rounding error of the largest of all."""
    _, tensors, options = case.make(torch.float64)
    with torch.no_grad():
        scores = weights(tensors["query"], tensors["key"], stage="biased", **as_options(options))
    scores = scores.nan_to_num(0.0, 0.0, 0.0).abs()
    unmasked = scores[scores < 1e8]
    largest, largest_of_all = (x.max().item() if x.numel() else 0.0 for x in (unmasked, scores))
    return largest, eps * largest_of_all if 1e8 <= largest_of_all < 1e-3 / eps else 0.0


NAIVE = Backend.of(_naive)

# Actions: the ways to run a call


def _gradient(out: Tensor, seed: int) -> Tensor:
    noise = torch.Generator().manual_seed(seed + 1)
    return torch.randn(out.shape, generator=noise, dtype=torch.float64).to(out.device, out.dtype)


def _call(backend: Backend, tensors: Results, options: dict[str, Any]) -> Tensor:
    return backend(tensors["query"], tensors["key"], tensors["value"], options)


def _run(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    leaves, tensors, options = case.make(dtype, device)
    return _collected(case, leaves, options, _call(backend, tensors, options))


def _collected(case: Case, leaves: Results, options: dict[str, Any], out: Tensor) -> Results:
    """The output and the gradients of all inputs and parameters."""
    results = {"out": out.detach()}
    if not out.requires_grad:
        return results
    inputs = leaves | case.option_parameters(options)
    grads = torch.autograd.grad(out, list(inputs.values()), _gradient(out, case.seed), allow_unused=True)
    return results | {
        n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(inputs.items(), grads, strict=True)
    }


def _run_twice(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    """The gradient of a gradient penalty."""
    leaves, tensors, options = case.make(dtype, device)
    out = _call(backend, tensors, options)
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
    out = _call(backend, tensors, options)
    for option in options.values():
        for x in [option] if isinstance(option, Tensor) else vars(option).values():
            if isinstance(x, Tensor):
                x.copy_(~x if x.dtype == torch.bool else x + 1 if x.is_floating_point() else x // 2)
    return _collected(case, leaves, options, out)


def _autocast(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    with torch.autocast(device, torch.bfloat16):
        return _run(case, backend, dtype, device)


def _default_dtype(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    with _default_dtype_set(torch.float32 if dtype == torch.float64 else torch.float64):
        return _run(case, backend, dtype, device)


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
        out = _call(backend, tensors, options)
    return _collected(case, leaves, options, out)


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
    return _collected(case, leaves, options, out)


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
    return _collected(case, leaves, options, function(*tensors.values()))


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
    return _collected(case, leaves, options, program(*tensors.values()))


def _threads(case: Case, backend: Backend, dtype: torch.dtype, device: str) -> Results:
    """Run in four threads at once; returns of each result the one farthest from a single-threaded run."""
    collected: list[Results | Exception] = []

    def run() -> None:
        try:
            collected.append(_run(case, backend, dtype, device))
        except Exception as error:
            collected.append(error)

    alone = _run(case, backend, dtype, device)
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
    "run": _run, "differentiate twice": _run_twice, "change": _changed, "autocast": _autocast,
    "default dtype": _default_dtype, "device context": _device_context, "inference": _inference,
    "vmap": _vmap, "func.grad": _func_grad, "compile": _compiled, "export": _exported, "threads": _threads,
}  # fmt: skip
