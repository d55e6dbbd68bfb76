"""How much attention differs between models of one recipe and several seeds (Wiegreffe & Pinter 2019, 3.3).

Differences between attention and an alternative mean little if training again gives the same differences.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from regard import arguments
from regard.errors import DataError, OptionError
from regard.evaluation.explanation.comparisons import Mean, jensen_shannon, kendall_tau, total_variation
from regard.evaluation.explanation.explained_models import explained_model
from regard.evaluation.explanation.probe import Probe
from regard.files.progress import track
from regard.models.folder import load

SENTENCES = {
    "divergence": "Attention of two seeds differs by {value} (Jensen–Shannon divergence, at most 0.69).",
    "tau": "The rankings by attention of two seeds agree with Kendall's τ = {value}.",
    "change": "The outputs of two seeds differ by {value} (total variation).",
}

DIFFERENT = "the models have different vocabularies or labels; give models of one recipe"


@dataclass(frozen=True)
class SeedVariance:
    """Differences between models, one entry per text: the mean over pairs of models.

    Attributes:
        divergence: Jensen–Shannon divergence of the attention to the tokens, rescaled to sum to 1.
        tau: Kendall's τ-b of the attention.
        change: total variation of the outputs.
        models: the number of models.
    """

    divergence: list[float]
    tau: list[float]
    change: list[float]
    models: int

    @cached_property
    def means(self) -> dict[str, Mean]:
        """The mean of each over the texts, with its 95 % confidence interval."""
        return {name: Mean.of(getattr(self, name)) for name in SENTENCES}

    def as_dict(self) -> dict[str, Any]:
        """The means, for JSON."""
        return {"models": self.models} | {name: mean.as_dict() for name, mean in self.means.items()}

    def __str__(self) -> str:
        lines = [f"{self.models} seeds:"]
        for name, mean in self.means.items():
            if mean.value is not None:
                lines.append(f"    {SENTENCES[name].format(value=f'{mean.value:.3f}')}")
        return "\n".join(lines)


def seed_variance(
    models: Sequence[Any],
    texts: Any,
    *,
    tokenizer: Any = None,
    attention: str | None = None,
    seed: int = 0,
    progress: bool = False,
) -> SeedVariance:
    """Compare attention and outputs of models trained by one recipe with several seeds.

    Args:
        models: at least two models or folders, with equal tokenizers.
        texts: the texts or sequences to explain; this and all below as for `regard.evaluation.faithfulness`.
        tokenizer: for Hugging Face models.
        attention: name of the attention to compare.
        seed: of the random choices.
        progress: show a progress bar.
    """
    given = arguments.as_list("models", models, "a list of models or folders")
    if len(given) < 2:
        raise OptionError(f"seed_variance compares at least two models, got {len(given)}")
    loaded = [load(Path(m)) if isinstance(m, str | os.PathLike) else m for m in given]
    explained = [explained_model(model, tokenizer) for model in loaded]
    rows, unit = explained[0].as_list(texts), f"{explained[0].units.input}s"
    result = SeedVariance([], [], [], len(explained))
    with track(len(rows), "comparing seeds", unit) if progress else nullcontext() as bar:
        for text in rows:
            first = Probe(explained[0], text, seed=seed, attention=attention)
            # All explain the same output: the word or target token that the first one draws.
            probes = [first]
            for other in explained[1:]:
                if other.units != explained[0].units or not np.array_equal(
                    other.read(text, first.generator("output")).inputs, first.given.inputs
                ):
                    raise DataError(DIFFERENT)
                probes.append(Probe(other, text, seed=seed, attention=attention, given=first.given))
                if len(probes[-1].distribution) != len(first.distribution):
                    raise DataError(DIFFERENT)
            _compare(result, probes)
            if bar is not None:
                bar.advance()
    return result


def _compare(result: SeedVariance, probes: list[Probe]) -> None:
    divergences, taus, changes = [], [], []
    for one, other in combinations(probes, 2):
        p, q = (probe.attention / probe.attention.sum().clamp(min=1e-12) for probe in (one, other))
        divergences.append(float(jensen_shannon(p, q)))
        taus.append(kendall_tau(p, q))
        changes.append(float(total_variation(one.distribution, other.distribution)))
    result.divergence.append(sum(divergences) / len(divergences))
    result.tau.append(sum(taus) / len(taus))
    result.change.append(sum(changes) / len(changes))
