"""`faithfulness`: measure on many texts or sequences whether a model's attention explains its outputs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from regard import arguments
from regard.errors import DataError, OptionError
from regard.evaluation.explanation.comparisons import Mean
from regard.evaluation.explanation.explained_models import TOKENS, ExplainedModel, Units, explained_model
from regard.evaluation.explanation.measures import MEASURES, METRICS, MeasureOptions
from regard.evaluation.explanation.probe import Probe
from regard.files.progress import track
from regard.models.folder import load


@dataclass(frozen=True)
class ExplainedText:
    """The metrics of one text, or of one sequence of numbers.

    Attributes:
        text: the text; of a sequence the name of its file, or its size if it was given as an array.
        tokens: the tokens of the text, or the frame indices of a sequence.
        prediction: the label, tag or token that is explained.
        probability: its probability.
        attention: the attention to each token.
        metrics: by name; NaN where a metric is not defined, such as a rank correlation of one token.
        scores: other scores of the tokens, by name: gradient, leave_one_out, rollout, adversarial, …
        curves: metrics by share of the tokens: comprehensiveness, sufficiency.
    """

    text: str
    tokens: list[str]
    prediction: str
    probability: float
    attention: list[float]
    metrics: dict[str, float]
    scores: dict[str, list[float]] = field(default_factory=dict, repr=False)
    curves: dict[str, tuple[float, ...]] = field(default_factory=dict, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON; None for metrics that are not defined."""
        record = asdict(self)
        record["metrics"] = {name: _defined(x) for name, x in self.metrics.items()}
        for part in ("scores", "curves"):
            record[part] = {name: list(map(_defined, values)) for name, values in record[part].items()}
        return record


def _defined(value: float) -> float | None:
    """None in place of NaN, which JSON does not have."""
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class FaithfulnessResult:
    """Metrics of each text and their means; `print(result)` shows a table.

    Attributes:
        examples: one entry per text, in order.
        attention: the names of the attention that is taken as the explanation.
        options: the options of the measures.
        seed: the seed.
        units: tokens of texts, or frames of sequences.
    """

    examples: list[ExplainedText]
    attention: list[str]
    options: MeasureOptions
    seed: int
    units: Units = TOKENS

    @cached_property
    def means(self) -> dict[str, Mean]:
        """The mean of each metric with its 95 % confidence interval, in the order of the table."""
        return {
            name: Mean.of([e.metrics[name] for e in self.examples if name in e.metrics], self.seed)
            for name in METRICS
            if any(name in example.metrics for example in self.examples)
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "attention": self.attention,
            "options": asdict(self.options),
            "seed": self.seed,
            "means": {name: mean.as_dict() for name, mean in self.means.items()},
            "examples": [example.as_dict() for example in self.examples],
        }

    def __str__(self) -> str:
        lines = [f"attention: {', '.join(self.attention)}; {len(self.examples)} {self.units.input}s", ""]
        for name, mean in self.means.items():
            metric = METRICS[name]
            lines.append(f"{metric.title:<40} {value_and_interval(mean, self.units)}")
            if mean.value is not None:
                lines.append(f"    {metric.say(mean.value, self.units)} ({metric.scale})")
        return "\n".join(lines)

    def report(self, path: str | Path, title: str = "Faithfulness of attention") -> Path:
        """Write a self-contained HTML page with the table, plots and the tokens of some texts."""
        from regard.evaluation.explanation.report import write_report

        return write_report(self, Path(path), title)


def value_and_interval(mean: Mean, units: Units = TOKENS) -> str:
    """0.345 [0.312, 0.377], as tables show a mean."""
    if mean.value is None:
        return f"not defined for any {units.input}"
    interval = "" if mean.low is None else f" [{mean.low:6.3f}, {mean.high:6.3f}]"
    return f"{mean.value:6.3f}{interval}"


def explain_text(
    model: ExplainedModel,
    text: Any,
    measures: Iterable[str] | None = None,
    *,
    attention: str | None = None,
    options: MeasureOptions | None = None,
    seed: int = 0,
) -> tuple[ExplainedText, list[str]]:
    """The metrics of one text, and the names of the attention that explains it; see `faithfulness`.

    Without the measures adversary and flow it takes about 0.1 s on one core.
    """
    probe = Probe(model, text, seed=seed, attention=attention)
    metrics: dict[str, float] = {}
    scores: dict[str, list[float]] = {}
    curves: dict[str, tuple[float, ...]] = {}
    for name in MEASURES if measures is None else measures:
        measured = MEASURES[name](probe, options or MeasureOptions())
        metrics |= measured.metrics
        scores |= measured.scores
        curves |= measured.curves
    explained = ExplainedText(
        text if isinstance(text, str) else model.model.source_tokenizer.decode(probe.given.inputs),
        probe.tokens,
        model.class_name(probe.predicted),
        float(probe.distribution[probe.predicted]),
        probe.attention.tolist(),
        metrics,
        scores,
        curves,
    )
    return explained, list(probe.weights)


def faithfulness(
    model: Any,
    texts: Any,
    *,
    tokenizer: Any = None,
    attention: str | None = None,
    measures: Sequence[str] | None = None,
    options: MeasureOptions | None = None,
    seed: int = 0,
    progress: bool = False,
) -> FaithfulnessResult:
    """Measure whether a model's attention explains its outputs.

    >>> model = regard.load("film-reviews")
    >>> result = regard.evaluation.faithfulness(model, ["a film to remember", "a bore"])
    >>> round(result.means["tau_leave_one_out"].value, 2)
    0.83
    >>> page = result.report("faithfulness.html")

    Args:
        model: a classifier, tagger, translator or language model, its folder, or a Hugging Face model loaded
            with attn_implementation="regard" (or "sdpa").
        texts: a text or several. A text without tokens is an error. A model of sequences of numbers takes
            files (.npy, .csv) or arrays (frames, channels) instead; frames are then ranked like tokens.
        tokenizer: the tokenizer of a Hugging Face model.
        attention: a name or glob pattern as in `regard.watch`, to take other attention as the explanation.
            By default: attention pooling or the last encoder layer of a classifier, the last layer of a
            tagger or language model, the last cross-attention of a translator.
        measures: names of `MEASURES`: correlation, permuted, uniform, adversary, erasure, flips, rollout,
            flow. By default all; adversary takes most of the time.
        options: options of the measures.
        seed: seed of permutations, random orders, and the explained output of taggers and translators.
        progress: show a progress bar.
    """
    if isinstance(model, str | os.PathLike):
        model = load(Path(model))
    explained = explained_model(model, tokenizer)
    given, units = explained.as_list(texts), explained.units
    arguments.integer("seed", seed, 0)
    if attention is not None and not isinstance(attention, str):
        raise OptionError(f"attention must be a name or a glob pattern, got {arguments.quoted(attention)}")
    if options is not None and not isinstance(options, MeasureOptions):
        raise OptionError(f"options must be MeasureOptions, got {arguments.quoted(options)}")
    names = _check_measures(measures)
    if not given:
        raise DataError(f"there are no {units.input}s to measure; give at least one")
    examples: list[ExplainedText] = []
    used: dict[str, None] = {}
    with track(len(given), "measuring", f"{units.input}s") if progress else nullcontext() as bar:
        for text in given:
            example, attentions = explain_text(
                explained, text, names, attention=attention, options=options, seed=seed
            )
            examples.append(example)
            used |= dict.fromkeys(attentions)
            if bar is not None:
                bar.advance()
    return FaithfulnessResult(examples, list(used), options or MeasureOptions(), seed, units)


def _check_measures(measures: Sequence[str] | None) -> list[str]:
    if measures is None:
        return list(MEASURES)
    if isinstance(measures, str) or not isinstance(measures, Iterable):
        raise OptionError(f"measures must be a list of names, got {arguments.quoted(measures)}")
    for name in (names := list(measures)):
        if not isinstance(name, str) or name not in MEASURES:
            raise OptionError(f"measure must be one of {', '.join(MEASURES)}, got {arguments.quoted(name)}")
    return names
