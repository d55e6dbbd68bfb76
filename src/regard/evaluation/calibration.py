"""Calibration of classifier probabilities: expected calibration error and Brier score.

Expected calibration error (Guo et al. 2017, eq. 3): texts are binned by confidence, the probability of the
predicted label, and ECE = Σ over bins (texts in bin / texts) · |accuracy − mean confidence|.
Brier score (Brier 1950): the mean of Σ over labels (probability − [label is correct])², in [0, 2]; for two
labels it is twice the value of the common one-label definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import DataError, OptionError
from regard.evaluation.save_figure import save_figure
from regard.pictures.picture import check_matplotlib

BINS = 15


@dataclass(frozen=True)
class Bin:
    """Texts with confidence in (low, high]; means are None for an empty bin."""

    low: float
    high: float
    texts: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error and Brier score (0 is best for both), and the bins."""

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
        """Both metrics, and one line per non-empty bin."""
        lines = [
            f"expected calibration error {self.ece:.4f} ({len(self.bins)} bins), Brier score {self.brier:.4f}"
        ]
        lines.append("   confidence     texts   mean accuracy")
        lines += [
            f"{bin.low:6.3f} – {bin.high:.3f} {bin.texts:8,} {bin.confidence:7.4f} {bin.accuracy:7.4f}"
            for bin in self.bins
            if bin.texts
        ]
        return "\n".join(lines)

    def draw(self, path: str | Path) -> Path:
        """Plot the reliability diagram: accuracy and mean confidence of each bin, and its number of texts."""
        check_matplotlib("the reliability diagram")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 5), dpi=150, layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        filled = [bin for bin in self.bins if bin.accuracy is not None]
        centers, width = [(bin.low + bin.high) / 2 for bin in filled], 1 / len(self.bins)
        above.bar(
            centers,
            [bin.accuracy for bin in filled],
            width=width * 0.92,
            color="#4477aa",
            label="accuracy",
        )
        above.plot([0, 1], [0, 1], color="#444444", linestyle="--", linewidth=1, label="perfect calibration")
        confidences, accuracies = [bin.confidence for bin in filled], [bin.accuracy for bin in filled]
        above.plot(confidences, accuracies, "o", color="#cc3311", markersize=3, label="mean confidence")
        above.set_ylim(0, 1)
        above.set_ylabel("accuracy")
        above.set_title(f"expected calibration error {self.ece:.4f}, Brier {self.brier:.4f}", fontsize=10)
        above.legend(fontsize=8, loc="upper left")
        below.bar(centers, [bin.texts for bin in filled], width=width * 0.92, color="#bbbbbb")
        below.set_xlim(0, 1)
        below.set_xlabel("confidence (probability of the predicted label)")
        below.set_ylabel("texts")
        return save_figure(figure, path)


def calibration(
    gold: Sequence[str], probabilities: np.ndarray, labels: Sequence[str], *, bins: int = BINS
) -> Calibration:
    """Calibration of `probabilities` (texts, labels), whose columns are in the order of `labels`."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise OptionError(f"bins must be an integer of at least 1, got {bins!r}")
    p = check_probabilities(probabilities, len(gold), len(labels))
    index = {label: i for i, label in enumerate(labels)}
    gold_ids = np.array([index[label] for label in gold])
    confidence, correct = p.max(1), p.argmax(1) == gold_ids
    bin_ids = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # bins are (low, high]
    binned = []
    for i in range(bins):
        rows = bin_ids == i
        texts = int(rows.sum())
        means = (float(confidence[rows].mean()), float(correct[rows].mean())) if texts else (None, None)
        binned.append(Bin(i / bins, (i + 1) / bins, texts, *means))
    gap = sum(
        bin.texts * abs(bin.accuracy - bin.confidence)
        for bin in binned
        if bin.accuracy is not None and bin.confidence is not None
    )
    brier = float(((p - np.eye(len(labels))[gold_ids]) ** 2).sum(1).mean())
    return Calibration(gap / len(gold), brier, tuple(binned))


def check_probabilities(probabilities: np.ndarray, texts: int, labels: int) -> np.ndarray:
    """Check shape, range and row sums of probabilities, and return them in float64."""
    p = np.asarray(probabilities, dtype=np.float64)
    if p.shape != (texts, labels):
        raise DataError(
            f"{texts} texts and {labels} labels need probabilities of shape ({texts}, {labels}), got "
            f"{p.shape}"
        )
    if not np.isfinite(p).all() or p.min() < -1e-6 or np.abs(p.sum(1) - 1).max() > 1e-3:
        raise DataError(
            "probabilities must lie in [0, 1] and each row must add up to 1; give the softmax, not logits"
        )
    return p
