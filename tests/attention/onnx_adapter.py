"""ONNX's Attention (opsets 23 to 25) and FlexAttention in terms of `regard.attend`.

ONNX adds a float mask after the soft cap, regard adds a bias before it. If both are given, the cap is part of
the energy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

import numpy as np
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor
from torch.nn.functional import pad

import regard
from regard.attention import Dense, Dot, Energy, Mask, Normalizer
from tests.attention.onnx_cases import Case

# by ONNX's type numbers
DTYPES = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}


@dataclass
class Adapted:
    """The arguments of `attend`, the stage of ONNX's qk_matmul_output, and whether the inputs had 3 axes."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict = field(default_factory=dict)
    shown: tuple[str, dict] = ("energy", {})
    folded: bool = False

    def run(self, kernel: str | None = None) -> dict[str, Tensor]:
        """All outputs, by ONNX's names."""
        y = regard.attend(self.query, self.key, self.value, kernel=kernel, **self.options)
        stage, options = self.shown
        return {
            "Y": y.transpose(1, 2).flatten(2) if self.folded else y,
            "present_key": self.key,
            "present_value": self.value,
            "qk_matmul_output": regard.weights(self.query, self.key, stage=stage, **self.options | options),
        }


def adapt(case: Case) -> Adapted:
    return {"Attention": _attention, "FlexAttention": _flex_attention}[case.op](case)


def tensor(x: np.ndarray) -> Tensor:
    """A torch tensor; bfloat16, a numpy extension type, is converted by way of float32, which is exact."""
    return (
        torch.from_numpy(x.astype(np.float32)).bfloat16()
        if x.dtype.name == "bfloat16"
        else torch.from_numpy(x.copy())
    )


def _attention(case: Case) -> Adapted:
    inputs, given = {name: tensor(x) for name, x in case.inputs.items()}, case.attributes
    folded = inputs["Q"].ndim == 3
    query = _heads(inputs["Q"], given.get("q_num_heads"))
    key, value = (_heads(inputs[name], given.get("kv_num_heads")) for name in ("K", "V"))
    offset: int | Tensor = 0
    if "past_key" in inputs:
        offset = inputs["past_key"].shape[-2]
        key, value = torch.cat([inputs["past_key"], key], -2), torch.cat([inputs["past_value"], value], -2)
    if "nonpad_kv_seqlen" in inputs:
        offset = inputs["nonpad_kv_seqlen"] - query.shape[-2]
    dot = _dot(given)
    mask, bias = _mask_and_bias(given, inputs, offset, key.shape[-2])
    cap = given.get("softcap") or None
    inside = cap is not None and bias is not None
    options = {
        "energy": _capped(dot, cap) if inside else dot,
        "softcap": None if inside else cap,
        "mask": mask,
        "bias": bias,
        "normalize": _softmax(DTYPES.get(given.get("softmax_precision"), query.dtype), query.dtype),
    }
    capped = "energy" if options["softcap"] is None else "biased"
    shown = [("energy", {"energy": dot}), (capped, {}), ("masked", {}), ("normalised", {})][
        given.get("qk_matmul_output_mode", 0)
    ]
    return Adapted(query, key, value, options, shown, folded)


def _heads(x: Tensor, heads: int | None) -> Tensor:
    """(batch, T, heads·dim) as (batch, heads, T, dim); four axes as they are."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2) if x.ndim == 3 else x


def _dot(given: dict) -> Energy:
    return Dot(given["scale"]) if "scale" in given else regard.ScaledDot()


def _capped(energy: Energy, cap: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda query, key: cap * torch.tanh(energy(query, key) / cap)


def _mask_and_bias(
    given: dict, inputs: dict, offset: int | Tensor, Tk: int
) -> tuple[Mask | None, Tensor | None]:
    masks, bias = [], None
    if "attn_mask" in inputs:
        x = inputs["attn_mask"]
        missing = Tk - x.shape[-1]  # keys that the mask does not reach are not seen
        if x.dtype == torch.bool:
            masks.append(Dense(pad(x, (0, missing), value=False)))
        else:
            bias = pad(x, (0, missing), value=-torch.inf)
    if given.get("is_causal"):
        masks.append(regard.Causal(offset))
    left, right = (
        None if given.get(side, -1) < 0 else given[side] for side in ("left_window_size", "right_window_size")
    )
    if left is not None or right is not None:
        masks.append(regard.Window(left, right, offset))
    if "nonpad_kv_seqlen" in inputs:
        masks.append(regard.Padding(inputs["nonpad_kv_seqlen"]))
    return (reduce(and_, masks) if masks else None), bias


def _softmax(precision: torch.dtype, dtype: torch.dtype) -> Normalizer | Callable[[Tensor], Tensor]:
    """Softmax in its own precision; the weights come back in that of the call."""
    if precision == dtype:
        return regard.Softmax()
    return lambda scores: torch.softmax(scores.to(precision), -1).to(dtype)


def _flex_attention(case: Case) -> Adapted:
    query, key, value = (tensor(case.inputs[name]) for name in ("Q", "K", "V"))
    given, dtype = case.attributes, query.dtype
    default = torch.float64 if dtype == torch.float64 else torch.float32
    precision = DTYPES[given["softmax_precision"]] if "softmax_precision" in given else default
    dot, softmax = _dot(given), _softmax(precision, dtype)
    options: dict = {"energy": dot, "normalize": softmax}
    if "score_mod" in given:
        score_mod = _graph(given["score_mod"], case.opsets, precision)
        options["energy"] = lambda query, key: score_mod(dot(query, key)).to(dtype)
    if "prob_mod" in given:
        prob_mod = _graph(given["prob_mod"], case.opsets, precision)
        options["normalize"] = lambda scores: prob_mod(torch.softmax(scores.to(precision), -1)).to(dtype)
    return Adapted(query, key, value, options)


def _graph(graph: object, opsets: dict[str, int], precision: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A subgraph with one input and one output as a function, run by ONNX's reference evaluator."""
    evaluator = ReferenceEvaluator(graph, opsets=opsets)
    (name,) = evaluator.input_names
    return lambda x: torch.from_numpy(evaluator.run(None, {name: x.to(precision).numpy()})[0])
