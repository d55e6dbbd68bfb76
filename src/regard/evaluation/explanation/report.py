"""The HTML report of `faithfulness`: one page without scripts that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import OptionError
from regard.evaluation.explanation.comparisons import Mean
from regard.evaluation.explanation.explained_models import TOKENS, Units
from regard.evaluation.explanation.measures import METRICS
from regard.evaluation.explanation.svg_plots import histogram, lines, scatter
from regard.files.atomic import write_file

if TYPE_CHECKING:
    from regard.evaluation.explanation.faithfulness import ExplainedText, FaithfulnessResult

MAX_TEXTS = 20  # shown with their tokens
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { padding: .25rem .75rem; text-align: left; vertical-align: top; border-bottom: 1px solid #8884; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.tokens { line-height: 2; }
.tokens span { padding: .1rem .25rem; border-radius: .2rem; }
.name { display: inline-block; width: 12rem; opacity: .7; }
small { opacity: .7; }
"""
ROWS = {
    "attention": "attention",
    "gradient": "gradient × input",
    "integrated_gradients": "integrated gradients",
    "leave_one_out": "leave-one-out",
    "rollout": "attention rollout",
    "flow": "attention flow",
    "adversarial": "adversarial attention",
}


def write_report(result: FaithfulnessResult, path: Path, title: str, notes: Sequence[str] = ()) -> Path:
    """Write the page; `notes` are further paragraphs below the table."""
    check_folder(path)
    write_file(path, page(result, title, notes))
    return path


def check_folder(path: Path) -> None:
    """Raise an OptionError if the report cannot be written there, before any work."""
    if path.is_dir():
        raise OptionError(f"the report {path} is a folder; name a file, such as {path / 'faithfulness.html'}")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"the report {path} cannot be written, its folder does not exist; create it first")


def page(result: FaithfulnessResult, title: str, notes: Sequence[str] = ()) -> str:
    """The page as HTML."""
    units = result.units
    texts = "".join(_tokens(example, units) for example in result.examples[:MAX_TEXTS])
    more = len(result.examples) - MAX_TEXTS
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>"
        f"<p>Is attention explanation? {len(result.examples)} {units.input}s; the explanation is the "
        f"attention of {escape(', '.join(result.attention))}; seed {result.seed}. Intervals are 95 % "
        "bootstrap intervals of the mean.</p>"
        f"<table><tr><th>metric</th><th>mean</th><th>interval</th><th>what it says</th></tr>"
        f"{''.join(_row(name, mean, units) for name, mean in result.means.items())}</table>"
        f"{''.join(f'<p>{escape(note)}</p>' for note in notes)}"
        f'<h2>Plots</h2><div class="plots">{"".join(_plots(result))}</div>'
        f"<h2>{units.input.capitalize()}s</h2>"
        f"<p>Darker {units.feature}s have larger scores; each row is scaled to its own largest score.</p>"
        f"{texts}{f'<p>… and {more} more {units.input}s.</p>' if more > 0 else ''}"
        "</body></html>\n"
    )


def _row(name: str, mean: Mean, units: Units) -> str:
    metric = METRICS[name]
    if mean.value is None:
        return (
            f"<tr><td>{escape(metric.title)}</td><td>–</td><td>–</td>"
            f"<td>Not defined for any {units.input}.</td></tr>"
        )
    interval = "–" if mean.low is None else f"[{mean.low:.3f}, {mean.high:.3f}]"
    says = f"{escape(metric.say(mean.value, units))} <small>{escape(metric.scale)}</small>"
    return (
        f'<tr><td>{escape(metric.title)}</td><td class="number">{mean.value:.3f}</td>'
        f'<td class="number">{interval}</td><td>{says}</td></tr>'
    )


def _values(result: FaithfulnessResult, name: str) -> list[float]:
    values = [example.metrics.get(name, math.nan) for example in result.examples]
    return [value for value in values if not math.isnan(value)]


def _plots(result: FaithfulnessResult) -> list[str]:
    count = f"{result.units.input}s"
    plots = [
        histogram(values, METRICS[name].title, ("Kendall's τ-b", count), (-1, 1))
        for name in ("tau_gradient", "tau_integrated_gradients", "tau_leave_one_out")
        if (values := _values(result, name))
    ]
    points = [
        (example.metrics["max_weight"], example.metrics["change_permuted"])
        for example in result.examples
        if "change_permuted" in example.metrics
    ]
    if points:
        labels = ("largest attention weight", "output change")
        plots.append(scatter(points, "Permuted attention", labels, ((0, 1), (0, 1))))
    if values := _values(result, "adversarial_divergence"):
        labels = ("Jensen–Shannon divergence", count)
        plots.append(histogram(values, "Adversarial attention", labels, (0, 0.7), 14))
    plots += [_curves(result, name) for name in ("comprehensiveness", "sufficiency") if _has(result, name)]
    return plots


def _has(result: FaithfulnessResult, curve: str) -> bool:
    return any(curve in example.curves for example in result.examples)


def _curves(result: FaithfulnessResult, name: str) -> str:
    series = {}
    for suffix, title in {
        "": "attention",
        "_gradient": "gradient × input",
        "_random": "random order",
    }.items():
        curves = [e.curves[name + suffix] for e in result.examples if name + suffix in e.curves]
        columns = [[x for x in column if not math.isnan(x)] for column in zip(*curves, strict=True)]
        points = zip(result.options.shares, columns, strict=True)
        series[title] = [(share, sum(column) / len(column)) for share, column in points if column]
    heights = [y for points in series.values() for _, y in points] or [0.0]
    low, high = min(0.0, *heights) - 0.02, max(0.1, *heights)
    up = (low, high + 0.4 * (high - low))  # room for the legend
    across = (0.0, max(0.1, *result.options.shares))
    labels = (f"share of the {result.units.feature}s", "fall of probability")
    return lines(series, name.capitalize(), labels, (across, up))


def _tokens(example: ExplainedText, units: Units) -> str:
    rows = []
    for name, title in ROWS.items():
        scores = example.attention if name == "attention" else example.scores.get(name)
        if scores is None:
            continue
        most = max((abs(s) for s in scores if not math.isnan(s)), default=0.0) or 1.0
        spans = "".join(
            f'<span style="background:rgba(60,130,220,{0 if math.isnan(s) else abs(s) / most * 0.7:.2f})" '
            f'title="{s:.4f}">{escape(token)}</span> '
            for token, s in zip(example.tokens, scores, strict=True)
        )
        rows.append(f'<div class="tokens"><span class="name">{escape(title)}</span>{spans}</div>')
    file = "" if units == TOKENS else f" · {escape(example.text)}"  # numbers of frames do not name a sequence
    return (
        f"<h3>{escape(example.prediction)} <small>p = {example.probability:.3f}{file}</small></h3>"
        f"{''.join(rows)}"
    )
