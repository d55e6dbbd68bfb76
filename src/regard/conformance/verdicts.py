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

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention.attend import attend, weights
from regard.conformance.actions import (
    ACTIONS,
    REFERENCE,
    Backend,
    Refused,
    Results,
    as_options,
    call_backend,
    run_case,
    run_twice,
)
from regard.conformance.cases import Case


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
    run = run_twice if case.action == "differentiate twice" else run_case
    truth = run(clean, REFERENCE, torch.float64, "cpu")
    plain = run(clean, _plain_definition(lenient, case), dtype, "cpu")
    perturbed = run(_perturbed(clean, eps), REFERENCE, torch.float64, "cpu")
    terms = _largest_output(_absolute_values(clean)) if run is run_case else 0.0
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
    out = call_backend(REFERENCE, tensors, options)
    return out.abs().max().item() if out.numel() else 0.0


def _largest_scores(case: Case, eps: float) -> tuple[float, float]:
    """The largest score that is not a mask such as −1e9, and the rounding error of the largest of all."""
    _, tensors, options = case.make(torch.float64)
    with torch.no_grad():
        scores = weights(tensors["query"], tensors["key"], stage="biased", **as_options(options))
    scores = scores.nan_to_num(0.0, 0.0, 0.0).abs()
    unmasked = scores[scores < 1e8]
    largest, largest_of_all = (x.max().item() if x.numel() else 0.0 for x in (unmasked, scores))
    return largest, eps * largest_of_all if 1e8 <= largest_of_all < 1e-3 / eps else 0.0


NAIVE = Backend.of(_naive)
