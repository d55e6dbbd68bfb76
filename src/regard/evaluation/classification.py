"""How well texts were labelled: accuracy, precision, recall and F₁ of each label, what was taken for what, and how sure it was.

Of the texts that were given a label, precision is the share that has it; of those that have it, recall is the share that was
found; F₁ is their harmonic mean, 0 where nothing was found. Macro-F₁ is the mean over the labels that occur, in the gold or
among the answers: a rare label counts as much as a frequent one. All equal scikit-learn's; a test draws labels and compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import DataError
from regard.evaluation.calibration import Calibration, calibration
from regard.evaluation.plots import save_figure

MAX_MATRIX_LABELS = 12  # labels that a matrix has on a terminal; of more, the commonest mistakes are listed
MAX_MISTAKES = 15  # mistakes listed
MAX_NUMBERED_LABELS = 30  # labels up to which a drawing has numbers in it


@dataclass(frozen=True)
class ClassScore:
    """One label; `support` counts the texts that have it."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationScores:
    """Shares in [0, 1]. `confusion` counts texts: (label they have, label they were given), in the order of `labels`."""

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
        each = {
            score.label: {k: v for k, v in asdict(score).items() if k != "label"} for score in self.classes
        }
        found = {
            "accuracy": self.accuracy, "macro_f1": self.macro_f1, "texts": self.texts, "classes": each,
            "confusion": {"labels": list(self.labels), "counts": self.confusion.tolist()},
        }  # fmt: skip
        return found if self.calibration is None else found | {"calibration": self.calibration.as_dict()}

    def text(self) -> str:
        """Everything, for a person."""
        right = int(np.trace(self.confusion))
        parts = [
            f"accuracy {self.accuracy:.4f} ({right:,} of {self.texts:,}), macro-F1 {self.macro_f1:.4f}",
            _each(self.classes),
            _matrix(self) if len(self.labels) <= MAX_MATRIX_LABELS else _mistakes(self),
        ]
        return "\n\n".join(parts if self.calibration is None else [*parts, self.calibration.text()])

    def __str__(self) -> str:
        return self.text()

    def draw(self, path: str | Path) -> list[Path]:
        """The confusion matrix as a picture; with probabilities the reliability diagram too, as NAME-calibration beside it."""
        path = Path(path)
        found = [_draw(self, path)]
        if self.calibration is not None:
            found.append(self.calibration.draw(path.with_name(f"{path.stem}-calibration{path.suffix}")))
        return found


def scores(
    gold: Sequence[str],
    predicted: Sequence[str],
    probabilities: np.ndarray | None = None,
    labels: Sequence[str] | None = None,
) -> ClassificationScores:
    """Score the labels that texts were given against those they have. `labels` are all there are, in the order of the columns of
    `probabilities`; without it those that occur, in alphabetical order.
    """
    if len(gold) != len(predicted):
        raise DataError(
            f"there are {len(gold)} right labels and {len(predicted)} answers; give one answer for each text"
        )
    if not gold:
        raise DataError("there are no texts to score; give at least one")
    labels = sorted({*gold, *predicted}) if labels is None else list(labels)
    _known(gold, labels, "is labelled")
    _known(predicted, labels, "was given")
    counts = confusion(gold, predicted, labels)
    each = tuple(_class(label, counts, i) for i, label in enumerate(labels))
    occur = counts.sum(0) + counts.sum(1) > 0
    return ClassificationScores(
        accuracy=float(np.trace(counts) / len(gold)),
        macro_f1=float(np.mean([score.f1 for score, there in zip(each, occur, strict=True) if there])),
        classes=each,
        labels=tuple(labels),
        confusion=counts,
        calibration=None if probabilities is None else calibration(gold, probabilities, labels),
    )


def accuracy(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """The share of texts whose label is right."""
    return scores(gold, predicted).accuracy


def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """The mean F₁ of the labels that occur."""
    return scores(gold, predicted).macro_f1


def confusion(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """How many texts have a label and were given a label, (labels, labels)."""
    place = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(counts, ([place[label] for label in gold], [place[label] for label in predicted]), 1)
    return counts


def _known(given: Sequence[str], labels: Sequence[str], how: str) -> None:
    known = set(labels)
    for row, label in enumerate(given, 1):
        if label not in known:
            raise DataError(
                f"text {row:,} {how} {label!r}, which is none of the labels ({_some(labels)}); mend it or leave it out"
            )


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:10]) + (f", … {len(labels)} in all" if len(labels) > 10 else "")


def _class(label: str, counts: np.ndarray, i: int) -> ClassScore:
    right, given, support = int(counts[i, i]), int(counts[:, i].sum()), int(counts[i].sum())
    return ClassScore(
        label=label,
        precision=right / given if given else 0.0,
        recall=right / support if support else 0.0,
        f1=2 * right / (given + support) if given + support else 0.0,
        support=support,
    )


def _short(label: str, most: int = 12) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def _each(classes: Sequence[ClassScore]) -> str:
    wide = max(5, *(len(_short(score.label, 24)) for score in classes))
    rows = [f"{'label':{wide}}  precision  recall      F1   texts"]
    rows += [
        f"{_short(s.label, 24):{wide}}  {s.precision:9.4f}  {s.recall:6.4f}  {s.f1:6.4f}  {s.support:6,}"
        for s in classes
    ]
    return "\n".join(rows)


def _matrix(found: ClassificationScores) -> str:
    names = [_short(label) for label in found.labels]
    wide = [
        max(len(name), len(f"{column.max():,}"))
        for name, column in zip(names, found.confusion.T, strict=True)
    ]
    first = max(len("has ↓  given →"), *map(len, names))
    rows = [
        "  ".join(
            [f"{'has ↓  given →':{first}}", *(f"{name:>{w}}" for name, w in zip(names, wide, strict=True))]
        )
    ]
    for name, row in zip(names, found.confusion, strict=True):
        rows.append(
            "  ".join([f"{name:{first}}", *(f"{count:>{w},}" for count, w in zip(row, wide, strict=True))])
        )
    return "\n".join(rows)


def _mistakes(found: ClassificationScores) -> str:
    """The commonest confusions; of equal ones the first."""
    wrong = found.confusion - np.diag(np.diag(found.confusion))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_MISTAKES]
    pairs = [divmod(int(at), len(found.labels)) for at in order]
    rows = [
        f"{wrong[i, j]:6,}  {found.labels[i]} taken for {found.labels[j]}" for i, j in pairs if wrong[i, j]
    ]
    kinds = int((wrong > 0).sum())
    return "\n".join([f"the commonest of {int(wrong.sum()):,} mistakes, of {kinds:,} kinds", *rows])


def _draw(found: ClassificationScores, path: Path) -> Path:
    from matplotlib.figure import Figure

    size = len(found.labels)
    side = min(16.0, max(3.6, 0.55 * size + 2))
    figure = Figure(figsize=(side + 0.6, side), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    shares = found.confusion / np.maximum(found.confusion.sum(1, keepdims=True), 1)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [_short(label, 16) for label in found.labels]
    axes.set_xticks(range(size), names, rotation=90 if size > 4 else 0)
    axes.set_yticks(range(size), names)
    axes.set_xlabel("label it was given")
    axes.set_ylabel("label it has")
    axes.set_title(f"accuracy {found.accuracy:.4f}, macro-F1 {found.macro_f1:.4f}", fontsize=10)
    if size <= MAX_NUMBERED_LABELS:
        for (i, j), count in np.ndenumerate(found.confusion):
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
    figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the texts that have the label")
    return save_figure(figure, path)
