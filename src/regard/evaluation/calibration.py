"""Whether probabilities mean what they say: of all texts labelled with 80 per cent confidence, are 80 per cent right?

Expected calibration error (Guo et al. 2017, eq. 3): texts go into bins of equal width by the probability of their likeliest label,
and Σ (texts in the bin / texts) · |share that is right − mean confidence|. Brier score (Brier 1950): the mean of
Σ over labels (probability − 1 if it is the right label, else 0)², between 0 and 2; for two labels it is twice the figure that
some report for one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import DataError, OptionError
from regard.evaluation.plots import save_figure

BINS = 15


@dataclass(frozen=True)
class Bin:
    """The texts whose confidence is above `low` and at most `high`; of no texts there is no mean."""

    low: float
    high: float
    texts: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error (0 is best), Brier score (0 is best), and what they are made of."""

    ece: float
    brier: float
    bins: tuple[Bin, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "expected_calibration_error": self.ece,
            "brier": self.brier,
            "bins": [asdict(bin) for bin in self.bins],
        }

    def text(self) -> str:
        """The two figures, and a line for each bin that has texts."""
        lines = [
            f"expected calibration error {self.ece:.4f} ({len(self.bins)} bins), Brier score {self.brier:.4f}"
        ]
        lines.append("   confidence     texts   mean    right")
        lines += [
            f"{bin.low:6.3f} – {bin.high:.3f} {bin.texts:8,} {bin.confidence:7.4f} {bin.accuracy:7.4f}"
            for bin in self.bins
            if bin.texts
        ]
        return "\n".join(lines)

    def draw(self, path: str | Path) -> Path:
        """The reliability diagram: how often each bin is right beside how sure it was, and how many texts are in it."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 5), dpi=150, layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        filled = [bin for bin in self.bins if bin.accuracy is not None]
        places, wide = [(bin.low + bin.high) / 2 for bin in filled], 1 / len(self.bins)
        above.bar(
            places,
            [bin.accuracy for bin in filled],
            width=wide * 0.92,
            color="#4477aa",
            label="share that is right",
        )
        above.plot([0, 1], [0, 1], color="#444444", linestyle="--", linewidth=1, label="as sure as right")
        above.plot([bin.confidence for bin in filled], [bin.accuracy for bin in filled], "o", color="#cc3311", markersize=3,
                   label="mean confidence")  # fmt: skip
        above.set_ylim(0, 1)
        above.set_ylabel("right")
        above.set_title(f"expected calibration error {self.ece:.4f}, Brier {self.brier:.4f}", fontsize=10)
        above.legend(fontsize=8, loc="upper left")
        below.bar(places, [bin.texts for bin in filled], width=wide * 0.92, color="#bbbbbb")
        below.set_xlim(0, 1)
        below.set_xlabel("confidence: the probability of the likeliest label")
        below.set_ylabel("texts")
        return save_figure(figure, path)


def calibration(
    gold: Sequence[str], probabilities: np.ndarray, labels: Sequence[str], *, bins: int = BINS
) -> Calibration:
    """Of the right labels and the probabilities (texts, labels), whose columns stand in the order of `labels`."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise OptionError(f"bins must be a whole number of at least 1, got {bins!r}")
    p = check_probabilities(probabilities, len(gold), len(labels))
    place = {label: i for i, label in enumerate(labels)}
    right = np.array([place[label] for label in gold])
    confidence, hit = p.max(1), p.argmax(1) == right
    at = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # bins are (low, high]
    found = []
    for i in range(bins):
        rows = at == i
        texts = int(rows.sum())
        means = (float(confidence[rows].mean()), float(hit[rows].mean())) if texts else (None, None)
        found.append(Bin(i / bins, (i + 1) / bins, texts, *means))
    gap = sum(
        bin.texts * abs(bin.accuracy - bin.confidence)
        for bin in found
        if bin.accuracy is not None and bin.confidence is not None
    )
    brier = float(((p - np.eye(len(labels))[right]) ** 2).sum(1).mean())
    return Calibration(gap / len(gold), brier, tuple(found))


def check_probabilities(probabilities: np.ndarray, texts: int, labels: int) -> np.ndarray:
    """The probabilities in float64, if they are probabilities of so many texts and labels."""
    p = np.asarray(probabilities, dtype=np.float64)
    if p.shape != (texts, labels):
        raise DataError(
            f"{texts} texts and {labels} labels need probabilities of shape ({texts}, {labels}), got {p.shape}"
        )
    if not np.isfinite(p).all() or p.min() < -1e-6 or np.abs(p.sum(1) - 1).max() > 1e-3:
        raise DataError(
            "probabilities lie between 0 and 1 and each text's add up to 1; give the softmax, not the scores before it"
        )
    return p
