"""The measures of faithfulness by name, and the metrics that they give."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard import arguments
from regard.attention.edits import Mapped, Permuted, Uniform
from regard.errors import OptionError
from regard.evaluation.explanation.adversary import STEPS, TOLERANCE, adversarial_attention
from regard.evaluation.explanation.attributions import (
    gradient_times_input,
    integrated_gradients,
    leave_one_out,
)
from regard.evaluation.explanation.comparisons import kendall_tau, total_variation
from regard.evaluation.explanation.erasure import SHARES, erasure, flip_share, flips, mean_defined
from regard.evaluation.explanation.explained_models import TOKENS, Units
from regard.evaluation.explanation.probe import Probe
from regard.evaluation.explanation.rollout import attention_flow, attention_rollout
from regard.registry import Registry

FLOW_TOKENS = 64  # tokens or frames; maximum flow takes seconds for more


@dataclass(frozen=True)
class MeasureOptions:
    """Options of the measures.

    Attributes:
        permutations: random orders of the attention weights; the metric is the median change.
        tolerance: output change that adversarial attention may cause, in total variation.
        adversary_steps: steps of the search for adversarial attention.
        shares: shares of the tokens for comprehensiveness and sufficiency.
    """

    permutations: int = 100
    tolerance: float = TOLERANCE
    adversary_steps: int = STEPS
    shares: tuple[float, ...] = SHARES

    def __post_init__(self) -> None:
        arguments.integer("permutations", self.permutations, 1, 10_000)
        arguments.number("tolerance", self.tolerance, 0, 1)
        arguments.integer("adversary_steps", self.adversary_steps, 1, 100_000)
        if not isinstance(self.shares, tuple) or not self.shares:
            raise OptionError(f"shares must be a tuple of numbers, got {arguments.quoted(self.shares)}")
        for share in self.shares:
            arguments.number("a share of the tokens", share, 0, 1)


@dataclass
class Measured:
    """What a measure gives for one text: metrics by name, curves and scores of tokens for the report."""

    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, tuple[float, ...]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """A metric of faithfulness, as tables and reports show it.

    Attributes:
        title: the name in tables.
        sentence: one sentence with {value}, {percent} or {fall}; {feature} is "token" or "frame", {input} is
            "text" or "sequence".
        scale: what its extreme values mean.
    """

    title: str
    sentence: str
    scale: str

    def say(self, value: float, units: Units = TOKENS) -> str:
        """The sentence for a value."""
        fall = f"rises by {-value:.2f}" if value <= -0.005 else f"falls by {value:.2f}"
        return self.sentence.format(
            value=f"{value:.2f}", percent=f"{value:.0%}", fall=fall, **units._asdict()
        )


Measure = Callable[[Probe, MeasureOptions], Measured]
MEASURES: Registry[Measure] = Registry("measure")
METRICS: dict[str, Metric] = {}  # in the order of tables

ATTRIBUTIONS: dict[str, Callable[[Probe], Tensor]] = {
    "gradient": gradient_times_input,
    "integrated_gradients": integrated_gradients,
    "leave_one_out": leave_one_out,
}
TITLES = {
    "gradient": "gradient × input",
    "integrated_gradients": "integrated gradients",
    "leave_one_out": "leave-one-out",
}
TAU = "1: the same order; 0: unrelated; −1: the reverse order"
CHANGE = "0: the output stays the same; 1: it changes completely"


def _attribution(probe: Probe, name: str) -> Tensor:
    """The size of each token's attribution."""
    return probe.cached(name, ATTRIBUTIONS[name]).abs()


def _random_scores(probe: Probe) -> Tensor:
    return torch.rand(probe.count, generator=probe.generator("random order"), dtype=torch.float64)


for _name, _title in TITLES.items():
    METRICS[f"tau_{_name}"] = Metric(
        f"τ with {_title}",
        f"Ranked by attention and by {_title}, the {{feature}}s of a {{input}} agree with Kendall's τ = "
        "{value}.",
        TAU,
    )


@MEASURES.add("correlation")
def correlation(probe: Probe, options: MeasureOptions) -> Measured:
    """Kendall's τ-b of attention with gradient × input, integrated gradients and leave-one-out
    (Jain & Wallace 2019, section 4.1).
    """
    measured = Measured()
    for name in ATTRIBUTIONS:
        scores = _attribution(probe, name)
        measured.metrics[f"tau_{name}"] = kendall_tau(probe.attention, scores)
        measured.scores[name] = scores.tolist()
    return measured


METRICS["change_permuted"] = Metric(
    "change by permuted attention",
    "With the attention weights in random order, the output changes by {value} (median, total variation).",
    CHANGE,
)
METRICS["max_weight"] = Metric(
    "largest weight",
    "The largest attention weight on a {feature} of a {input} is {value}.",
    "1: all attention",
)


@MEASURES.add("permuted")
def permuted(probe: Probe, options: MeasureOptions) -> Measured:
    """Median output change under random permutations of the weights (Jain & Wallace 2019, section 4.2.1)."""
    starts = range(0, options.permutations, probe.batch)
    sizes = [min(probe.batch, options.permutations - start) for start in starts]
    parts = [probe.under(Permuted((probe.seed + at) % (1 << 31)), size) for at, size in enumerate(sizes)]
    change = float(total_variation(torch.cat(parts), probe.distribution.cpu()).median())
    return Measured({"change_permuted": change, "max_weight": float(probe.attention.max())})


METRICS["change_uniform"] = Metric(
    "change by uniform attention",
    "With equal attention to all {feature}s, the output changes by {value} (total variation).",
    CHANGE,
)


@MEASURES.add("uniform")
def uniform(probe: Probe, options: MeasureOptions) -> Measured:
    """Output change with equal weights on all keys."""
    output = probe.under(Uniform())[0]
    return Measured({"change_uniform": float(total_variation(output, probe.distribution.cpu()))})


METRICS["adversarial_divergence"] = Metric(
    "divergence of adversarial attention",
    "Attention that differs by {value} (Jensen–Shannon divergence, at most 0.69) gives the same output.",
    "0: other attention gives another output; 0.69: entirely other attention gives the same output",
)
METRICS["adversarial_change"] = Metric(
    "change by adversarial attention",
    "The output under that attention differs by {value} (total variation).",
    "at most the tolerance, 0.01 by default",
)


@MEASURES.add("adversary")
def adversary(probe: Probe, options: MeasureOptions) -> Measured:
    """The most different attention with nearly the same output (Jain & Wallace 2019, section 4.2.2)."""
    adversarial = adversarial_attention(probe, tolerance=options.tolerance, steps=options.adversary_steps)
    mean = torch.stack([w.mean((0, 1)) for w in adversarial.weights.values()]).mean(0)
    scores = {"adversarial": mean[probe.given.keys].tolist()}
    return Measured(
        {"adversarial_divergence": adversarial.divergence, "adversarial_change": adversarial.change},
        scores=scores,
    )


for _kind, _sentence in {
    "comprehensiveness": "Without the first {{feature}}s by {by}, the decision's probability {{fall}}",
    "sufficiency": "With the first {{feature}}s by {by} alone, the decision's probability {{fall}}",
}.items():
    for _suffix, _by in {"": "attention", "_gradient": "gradient × input", "_random": "random order"}.items():
        METRICS[_kind + _suffix] = Metric(
            f"{_kind} of {_by}",
            _sentence.format(by=_by) + " (mean over the shares).",
            "larger: they were needed" if _kind[0] == "c" else "smaller: they are enough",
        )


@MEASURES.add("erasure")
def erase(probe: Probe, options: MeasureOptions) -> Measured:
    """Comprehensiveness and sufficiency, mean over shares (DeYoung et al. 2020), beside random order."""
    measured = Measured()
    orders = {
        "": probe.attention,
        "_gradient": _attribution(probe, "gradient"),
        "_random": _random_scores(probe),
    }
    for suffix, scores in orders.items():
        result = erasure(probe, scores, options.shares)
        for name in ("comprehensiveness", "sufficiency"):
            curve = getattr(result, name)
            measured.metrics[name + suffix] = mean_defined(curve)
            measured.curves[name + suffix] = curve
    return measured


METRICS["flip_top"] = Metric(
    "flips without the top weight",
    "Without the largest attention weight, {percent} of the decisions change.",
    "0: none; 1: all",
)
METRICS["flip_random"] = Metric(
    "flips without a random weight",
    "Without the weight of a {feature} at random, {percent} of the decisions change.",
    "0: none; 1: all",
)
for _suffix, _by, _first in (
    ("", "attention", "Highest attention first"),
    ("_gradient", "gradient of the weight", "Highest gradient first"),
    ("_random", "random order", "In random order"),
):
    METRICS[f"flip_share{_suffix}"] = Metric(
        f"share removed by {_by}",
        f"{_first}, {{percent}} of the weights are removed until the decision changes.",
        "small: few weights hold the decision; 1: it never changes",
    )


@MEASURES.add("flips")
def decision_flips(probe: Probe, options: MeasureOptions) -> Measured:
    """Decision flips by removing attention weights (Serrano & Smith 2019)."""
    top = int(probe.attention.argmax())
    others = [at for at in range(probe.count) if at != top]
    metrics = {"flip_top": float(flips(probe, [[top]])[0]), "flip_random": math.nan}
    if others:
        pick = others[int(torch.randint(len(others), (), generator=probe.generator("random weight")))]
        metrics["flip_random"] = float(flips(probe, [[pick]])[0])
    orders = {
        "": probe.attention,
        "_gradient": probe.cached("weight_gradient", weight_gradient),
        "_random": _random_scores(probe),
    }
    for suffix, scores in orders.items():
        metrics[f"flip_share{suffix}"] = flip_share(probe, scores)
    return Measured(metrics)


def weight_gradient(probe: Probe) -> Tensor:
    """|α · ∂p/∂α| of the attention to each feature, for the predicted class, (features,)."""
    given: dict[str, Tensor] = {}

    def use(name: str) -> Mapped:
        def function(weights: Tensor) -> Tensor:
            given[name] = weights.detach().requires_grad_()
            return given[name]

        return Mapped(function)

    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        with probe.edited({name: use(name) for name in probe.weights}):
            p = probe.output(probe.inputs)[0, probe.predicted]
        gradients = torch.autograd.grad(p, list(given.values()))
    products = [w.detach() * g for w, g in zip(given.values(), gradients, strict=True)]  # (1, heads, Tq, Tk)
    total = torch.stack([product.double().sum((0, 1, 2)) for product in products]).sum(0)
    return total[probe.given.keys].abs().cpu()


for _name, _title in {"rollout": "attention rollout", "flow": "attention flow"}.items():
    for _other in ("gradient", "leave_one_out"):
        METRICS[f"tau_{_name}_{_other}"] = Metric(
            f"τ of {_name} with {TITLES[_other]}",
            f"Ranked by {_title} and by {TITLES[_other]}, the {{feature}}s agree with Kendall's τ = "
            "{value}.",
            TAU,
        )


def _through_layers(
    probe: Probe, name: str, explain: Callable[[list[Tensor], Tensor], Tensor], others: tuple[str, ...]
) -> Measured:
    layers = [layer.cpu() for layer in probe.layers]
    scores = explain(layers, probe.top.cpu())[probe.given.keys]
    taus = {f"tau_{name}_{other}": kendall_tau(scores, _attribution(probe, other)) for other in others}
    return Measured(taus, scores={name: scores.tolist()})


@MEASURES.add("rollout")
def rollout(probe: Probe, options: MeasureOptions) -> Measured:
    """Attention rollout (Abnar & Zuidema 2020) as the explanation; nothing without self-attention."""
    if not probe.layers:
        return Measured()
    return _through_layers(probe, "rollout", attention_rollout, ("gradient", "leave_one_out"))


@MEASURES.add("flow")
def flow(probe: Probe, options: MeasureOptions) -> Measured:
    """Attention flow (Abnar & Zuidema 2020) as the explanation, for texts of up to FLOW_TOKENS tokens."""
    if not probe.layers or probe.count > FLOW_TOKENS:
        return Measured()
    return _through_layers(probe, "flow", attention_flow, ("gradient", "leave_one_out"))
