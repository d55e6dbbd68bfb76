"""What the faithfulness measures of one output say: what chance would give, a sentence each, a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.evaluation.explanation.erasure import erasures, mean_defined
from regard.evaluation.explanation.measures import METRICS, TITLES
from regard.evaluation.explanation.probe import Probe

HARDLY, MOSTLY = 0.1, 0.5  # total variation: below, the output hardly changes; from here on, mostly
SIGMAS = 1.96  # standard deviations from the mean: 95 % of a normal distribution
RANDOM_ORDERS = 20  # of the tokens, for what erasure gives by chance
MARGIN = 0.02  # probability beyond the random orders that does not count yet
RANKINGS = {  # figures that test the order of the tokens by attention
    "tau_gradient": TITLES["gradient"],
    "tau_leave_one_out": TITLES["leave_one_out"],
    "comprehensiveness": "comprehensiveness",
    "sufficiency": "sufficiency",
}
CLOSE = 0.05  # from the edge of the band: a close call
PARTIAL, GOOD = 0.5, 0.75  # share of these figures that must be beyond chance


@dataclass(frozen=True)
class Chance:
    """What attention that has nothing to do with the output would give.

    Attributes:
        count: tokens of the text.
        comprehensiveness: of random orders of the tokens.
        sufficiency: of the same orders.
    """

    count: int
    comprehensiveness: Sequence[float]
    sufficiency: Sequence[float]

    @classmethod
    def of(cls, probe: Probe, shares: Sequence[float]) -> Chance:
        generator = probe.generator("random orders")
        orders = torch.rand(RANDOM_ORDERS, probe.count, generator=generator, dtype=torch.float64)
        results = erasures(probe, list(orders), shares)
        return cls(
            probe.count,
            [mean_defined(result.comprehensiveness) for result in results],
            [mean_defined(result.sufficiency) for result in results],
        )

    def bands(self) -> dict[str, tuple[float, float]]:
        """By figure: the values that say nothing in favour of attention; NaN where they are not defined."""
        limit = chance_limit(self.count)
        return {
            "tau_gradient": (-limit, limit),
            "tau_leave_one_out": (-limit, limit),
            "change_uniform": (0.0, HARDLY),
            "change_permuted": (0.0, HARDLY),
            "comprehensiveness": _band(self.comprehensiveness),
            "sufficiency": _band(self.sufficiency),
        }


def _band(values: Sequence[float]) -> tuple[float, float]:
    """The mean ± 1.96 standard deviations, as for τ, widened by MARGIN.

    Not quantiles: if one token alone counts, one random order in n puts it first, and no order can be rarer.
    """
    deviation, mean = torch.std_mean(torch.tensor(values, dtype=torch.float64), correction=0)
    if math.isnan(float(mean)):
        return math.nan, math.nan
    half = SIGMAS * float(deviation) + MARGIN
    return max(-1.0, float(mean) - half), min(1.0, float(mean) + half)


def _is_beyond(name: str, value: float, band: tuple[float, float]) -> bool | None:
    """Whether a figure is beyond its band on the side that speaks for attention; None: not defined."""
    if math.isnan(value) or math.isnan(band[0]):
        return None
    return value < band[0] if name == "sufficiency" else value > band[1]


def _edge(name: str, band: tuple[float, float]) -> float:
    """The end of the band that a figure must pass to speak for attention."""
    return band[0] if name == "sufficiency" else band[1]


def _mark(name: str, value: float, band: tuple[float, float]) -> str:
    """Where a figure lies, in words: "above chance", "just within chance", …; empty: not defined."""
    beyond = _is_beyond(name, value, band)
    if beyond is None:
        return ""
    just = "just " if abs(value - _edge(name, band)) <= CLOSE else ""
    if name.startswith("change"):
        return f"{just}enough to count" if beyond else f"{just}too little to count"
    if beyond:
        return f"{just}{'below' if name == 'sufficiency' else 'above'} chance"
    if band[0] <= value <= band[1]:
        return f"{just}within chance"
    return f"{'above' if name == 'sufficiency' else 'below'} chance"


def verdict(figures: Sequence[dict[str, Any]], prediction: str) -> dict[str, str]:
    """One sentence on all figures: a grade, the claim and its reason. docs/explorer.md explains the rule."""
    beyond = {figure["name"]: figure["beyond"] for figure in figures}
    close = {f["name"] for f in figures if f["beyond"] and f["mark"].startswith("just ")}
    tests = {title: beyond[name] for name, title in RANKINGS.items() if beyond[name] is not None}
    passed = [title for title, is_beyond in tests.items() if is_beyond]
    failed = [title for title, is_beyond in tests.items() if not is_beyond]
    if len(tests) < 2:
        return {
            "grade": "none",
            "claim": f"There is too little text to judge the explanation of “{prediction}”",
            "reason": "most figures are not defined",
        }
    share = len(passed) / len(tests)
    sure = sum(beyond[name] is True and name not in close for name in RANKINGS) / len(tests)
    if not (beyond["change_uniform"] or beyond["change_permuted"]):
        grade, reason = "weak", "with other weights the output hardly changes"
    elif not passed:
        grade, reason = "weak", "the tokens it prefers count no more than by chance in any test"
    else:
        grade = _grade(share)
        rest = f", but not by {_listed(failed)}" if failed else ""
        reason = (
            f"other weights change the output, and the tokens it prefers count by {_listed(passed)}{rest}"
        )
    defined = [is_beyond for is_beyond in beyond.values() if is_beyond is not None]
    counted = f"{sum(defined)} of {len(defined)} figures speak for it"
    if close:
        counted += f", {len(close)} of them only just"
    narrow = grade != "weak" and _grade(sure) != grade
    return {
        "grade": grade,
        "claim": f"This attention is a {grade} explanation of “{prediction}”"
        + ", but it is a close call" * narrow,
        "reason": f"{counted}; {reason}",
    }


def _grade(share: float) -> str:
    """The grade by the share of rankings that are beyond chance."""
    return "good" if share >= GOOD else "partial" if share >= PARTIAL else "weak"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def readings(figures: dict[str, float], chance: Chance, prediction: str) -> list[dict[str, Any]]:
    """Title, value, band of chance and one sentence for each measure."""
    bands = chance.bands()
    chosen = {
        "tau_gradient": _tau_sentence(figures["tau_gradient"], "gradient", chance.count),
        "tau_leave_one_out": _tau_sentence(figures["tau_leave_one_out"], "leave_one_out", chance.count),
        "change_uniform": _change_sentence(figures["change_uniform"], "equal attention to all tokens"),
        "change_permuted": _change_sentence(figures["change_permuted"], "the weights in random order"),
        **{
            name: _erasure_sentence(name, figures[name], chance, prediction)
            for name in ("comprehensiveness", "sufficiency")
        },
    }
    return [
        {
            "name": name,
            "title": METRICS[name].title,
            "value": None if math.isnan(figures[name]) else figures[name],
            "band": None if math.isnan(bands[name][0]) else bands[name],
            "beyond": _is_beyond(name, figures[name], bands[name]),
            "mark": _mark(name, figures[name], bands[name]),
            "scale": METRICS[name].scale,
            "reading": sentence,
        }
        for name, sentence in chosen.items()
    ]


def chance_limit(count: int) -> float:
    """The |τ| that two unrelated rankings of `count` tokens exceed in 5 % of cases (normal approximation).

    The variance of Kendall's τ under independence is 2(2n + 5) / 9n(n − 1).
    """
    if count < 2:
        return 1.0
    return min(1.0, SIGMAS * math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1))))


def _tau_sentence(value: float, other: str, count: int) -> str:
    title = TITLES[other]
    if math.isnan(value):
        return "Not defined: all scores are equal, or there is one token."
    limit = chance_limit(count)
    if abs(value) <= limit:
        return (
            f"The rankings of the {count} tokens by attention and by {title} agree no more than by chance "
            f"(±{limit:.2f})."
        )
    which = "also count more" if value > 0 else "count less"
    return f"Tokens with more attention {which} by {title}; by chance τ stays within ±{limit:.2f}."


def _change_sentence(value: float, how: str) -> str:
    if value < HARDLY:
        return f"With {how} the output hardly changes: it does not depend on these weights."
    if value < MOSTLY:
        return f"With {how} the output changes in part: it depends somewhat on these weights."
    return f"With {how} the output changes a lot: it depends on these weights."


def _erasure_sentence(name: str, value: float, chance: Chance, prediction: str) -> str:
    """Read comprehensiveness (tokens removed) or sufficiency (only these kept) beside random tokens."""
    random = mean_defined(getattr(chance, name))
    if math.isnan(value) or math.isnan(random):
        return "Not defined: no text is left."
    low, high = chance.bands()[name]
    beyond = _is_beyond(name, value, (low, high))
    if name == "comprehensiveness":
        how, alone, limit = "Without", "", f"more than {high:.2f}"
        finding = f"attention finds {'tokens that count' if beyond else 'no more than chance does'}"
    else:
        how, alone, limit = "With", " alone", f"less than {low:.2f}"
        finding = f"they say {'more' if beyond else 'no more'} than others"
    return (
        f"{how} the tokens of most attention{alone} the probability of “{prediction}” {_moves(value)}. "
        f"{how} random tokens{alone} it {_moves(random)} on average, rarely by {limit}: {finding}."
    )


def _moves(fall: float) -> str:
    return f"falls by {fall:.2f}" if fall > -0.005 else f"rises by {-fall:.2f}"
