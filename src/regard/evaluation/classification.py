"""Classification metrics: accuracy, precision, recall and F₁ per label, confusion matrix, calibration.

Undefined precision, recall and F₁ are 0. Macro-F₁ is the mean over labels that occur in the gold or predicted
labels. All values equal scikit-learn's; a test compares them on random labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import DataError
from regard.evaluation.calibration import Calibration, calibration
from regard.evaluation.save_figure import save_figure
from regard.pictures.picture import check_matplotlib

MAX_MATRIX_LABELS = 12  # with more labels the text lists common mistakes instead of the matrix
MAX_MISTAKES = 15  # confusions in that list
MAX_NUMBERED_LABELS = 30  # with more labels the plot has no numbers in its cells


@dataclass(frozen=True)
class ClassScore:
    """Scores of one label; `support` is its number of gold texts."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationScores:
    """Scores in [0, 1]. `confusion` counts texts, (gold label, predicted label), in the order of `labels`."""

    accuracy: float
    macro_f1: float
    classes: tuple[ClassScore, ...]
    labels: tuple[str, ...]
    confusion: np.ndarray
    calibration: Calibration | None = None

    @property
    def texts(self) -> int:
        return int(self.confusion.sum())

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        classes = {
            score.label: {k: v for k, v in asdict(score).items() if k != "label"} for score in self.classes
        }
        result = {
            "accuracy": self.accuracy, "macro_f1": self.macro_f1, "texts": self.texts, "classes": classes,
            "confusion": {"labels": list(self.labels), "counts": self.confusion.tolist()},
        }  # fmt: skip
        return result if self.calibration is None else result | {"calibration": self.calibration.as_dict()}

    def text(self) -> str:
        """All scores as readable text."""
        correct = int(np.trace(self.confusion))
        parts = [
            f"accuracy {self.accuracy:.4f} ({correct:,} of {self.texts:,}), macro-F1 {self.macro_f1:.4f}",
            _class_table(self.classes),
            _matrix(self) if len(self.labels) <= MAX_MATRIX_LABELS else _mistakes(self),
        ]
        return "\n\n".join(parts if self.calibration is None else [*parts, self.calibration.text()])

    def __str__(self) -> str:
        return self.text()

    def draw(self, path: str | Path) -> list[Path]:
        """Plot the confusion matrix; with probabilities also the reliability diagram, as NAME-calibration."""
        path = Path(path)
        paths = [_draw(self, path)]
        if self.calibration is not None:
            paths.append(self.calibration.draw(path.with_name(f"{path.stem}-calibration{path.suffix}")))
        return paths


def scores(
    gold: Sequence[str],
    predicted: Sequence[str],
    probabilities: np.ndarray | None = None,
    labels: Sequence[str] | None = None,
) -> ClassificationScores:
    """Score predicted labels against gold labels.

    `labels` lists all labels, in the order of the columns of `probabilities`; by default the labels that
    occur, sorted.
    """
    if len(gold) != len(predicted):
        raise DataError(
            f"got {len(gold)} gold labels and {len(predicted)} predictions; give one prediction per text"
        )
    if not gold:
        raise DataError("there are no texts to score; give at least one")
    labels = sorted({*gold, *predicted}) if labels is None else list(labels)
    _check_labels(gold, labels, "gold")
    _check_labels(predicted, labels, "predicted")
    counts = confusion(gold, predicted, labels)
    classes = tuple(_class(label, counts, i) for i, label in enumerate(labels))
    occurring = counts.sum(0) + counts.sum(1) > 0
    return ClassificationScores(
        accuracy=float(np.trace(counts) / len(gold)),
        macro_f1=float(
            np.mean([score.f1 for score, occurs in zip(classes, occurring, strict=True) if occurs])
        ),
        classes=classes,
        labels=tuple(labels),
        confusion=counts,
        calibration=None if probabilities is None else calibration(gold, probabilities, labels),
    )


def accuracy(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """The share of texts with the correct label."""
    return scores(gold, predicted).accuracy


def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """The mean F₁ of the labels that occur."""
    return scores(gold, predicted).macro_f1


def confusion(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Confusion matrix: counts of (gold, predicted), (labels, labels)."""
    index = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([index[label] for label in gold], [index[label] for label in predicted]), 1)
    return counts


def _check_labels(values: Sequence[str], labels: Sequence[str], name: str) -> None:
    known = set(labels)
    for row, label in enumerate(values, 1):
        if label not in known:
            raise DataError(
                f"the {name} label {label!r} of text {row:,} is none of the labels ({_some(labels)}); "
                "fix it or leave it out"
            )


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:10]) + (f", … {len(labels)} in all" if len(labels) > 10 else "")


def _class(label: str, counts: np.ndarray, i: int) -> ClassScore:
    correct, predicted, support = int(counts[i, i]), int(counts[:, i].sum()), int(counts[i].sum())
    return ClassScore(
        label=label,
        precision=correct / predicted if predicted else 0.0,
        recall=correct / support if support else 0.0,
        f1=2 * correct / (predicted + support) if predicted + support else 0.0,
        support=support,
    )


def _short(label: str, most: int = 12) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def _class_table(classes: Sequence[ClassScore]) -> str:
    width = max(5, *(len(_short(score.label, 24)) for score in classes))
    rows = [f"{'label':{width}}  precision  recall      F1   texts"]
    rows += [
        f"{_short(s.label, 24):{width}}  {s.precision:9.4f}  {s.recall:6.4f}  {s.f1:6.4f}  {s.support:6,}"
        for s in classes
    ]
    return "\n".join(rows)


def _matrix(scores: ClassificationScores) -> str:
    names = [_short(label) for label in scores.labels]
    widths = [
        max(len(name), len(f"{column.max():,}"))
        for name, column in zip(names, scores.confusion.T, strict=True)
    ]
    first = max(len("gold ↓  predicted →"), *map(len, names))
    rows = [
        "  ".join(
            [
                f"{'gold ↓  predicted →':{first}}",
                *(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)),
            ]
        )
    ]
    for name, row in zip(names, scores.confusion, strict=True):
        rows.append(
            "  ".join([f"{name:{first}}", *(f"{count:>{w},}" for count, w in zip(row, widths, strict=True))])
        )
    return "\n".join(rows)


def _mistakes(scores: ClassificationScores) -> str:
    """The most frequent confusions; ties in label order."""
    wrong = scores.confusion - np.diag(np.diag(scores.confusion))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_MISTAKES]
    pairs = [divmod(int(cell), len(scores.labels)) for cell in order]
    rows = [
        f"{wrong[i, j]:6,}  {scores.labels[i]} predicted as {scores.labels[j]}"
        for i, j in pairs
        if wrong[i, j]
    ]
    kinds = int((wrong > 0).sum())
    return "\n".join([f"the most frequent of {int(wrong.sum()):,} mistakes, {kinds:,} kinds", *rows])


def _draw(scores: ClassificationScores, path: Path) -> Path:
    check_matplotlib("the plot of the confusion matrix")
    from matplotlib.figure import Figure

    size = len(scores.labels)
    side = min(16.0, max(3.6, 0.55 * size + 2))
    figure = Figure(figsize=(side + 0.6, side), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    shares = scores.confusion / np.maximum(scores.confusion.sum(1, keepdims=True), 1)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [_short(label, 16) for label in scores.labels]
    axes.set_xticks(range(size), names, rotation=90 if size > 4 else 0)
    axes.set_yticks(range(size), names)
    axes.set_xlabel("predicted label")
    axes.set_ylabel("gold label")
    axes.set_title(f"accuracy {scores.accuracy:.4f}, macro-F1 {scores.macro_f1:.4f}", fontsize=10)
    if size <= MAX_NUMBERED_LABELS:
        for (i, j), count in np.ndenumerate(scores.confusion):
            if count:
                axes.text(
                    j,
                    i,
                    f"{count:,}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if shares[i, j] > 0.5 else "black",
                )
    figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the gold label")
    return save_figure(figure, path)
