"""BLEU by sentence length, which shows the bottleneck of a fixed-size encoding.

Each bucket of lengths is scored as a separate corpus (the curve of Bahdanau et al. 2015, figure 2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.errors import DataError, OptionError
from regard.evaluation.bleu import bleu_metric, reference_documents
from regard.evaluation.save_figure import save_figure
from regard.pictures.picture import check_matplotlib

EDGES = (10, 20, 30, 40, 50)


@dataclass(frozen=True)
class Bucket:
    """Lines of `shortest` to `longest` words (None: no limit); `bleu` is None without lines."""

    shortest: int
    longest: int | None
    lines: int
    bleu: float | None

    @property
    def label(self) -> str:
        """Axis label."""
        return f"{self.shortest}+" if self.longest is None else f"{self.shortest}–{self.longest}"


@dataclass(frozen=True)
class BleuByLength:
    """BLEU of each bucket; `length_of` is the side whose words were counted, source or reference."""

    buckets: tuple[Bucket, ...]
    length_of: str

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """As a table."""
        return table({"BLEU": self})


def count_words(line: str) -> int:
    """Number of words separated by white space."""
    return len(line.split())


def bleu_by_length(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
    *,
    edges: Sequence[int] = EDGES,
    length: Callable[[str], int] = count_words,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> BleuByLength:
    """Corpus BLEU of lines with up to edges[0] words, up to edges[1] words, …, and more.

    Words are counted in the source, which is the same for every system, or else in the first reference.
    """
    documents = reference_documents(hypotheses, references)
    if sources is not None and len(sources) != len(hypotheses):
        raise DataError(
            f"the source has {len(sources)} lines but the hypothesis has {len(hypotheses)}; "
            "give the source that was translated"
        )
    integers = all(isinstance(edge, int) and not isinstance(edge, bool) for edge in edges)
    if not edges or not integers or edges[0] < 1 or any(a >= b for a, b in itertools.pairwise(edges)):
        raise OptionError(f"edges must be increasing integers from 1, such as {EDGES}, got {tuple(edges)}")
    sizes = [length(line) for line in (documents[0] if sources is None else sources)]
    bleu, buckets = bleu_metric(tokenize, lowercase), []
    # Empty lines belong to the first bucket.
    for low, high in zip([0, *(edge + 1 for edge in edges)], [*edges, None], strict=True):
        rows = [i for i, size in enumerate(sizes) if low <= size and (high is None or size <= high)]
        bucket_references = [[document[i] for i in rows] for document in documents]
        score = (
            float(bleu.corpus_score([hypotheses[i] for i in rows], bucket_references).score) if rows else None
        )
        buckets.append(Bucket(max(1, low), high, len(rows), score))
    return BleuByLength(tuple(buckets), "reference" if sources is None else "source")


def table(curves: Mapping[str, BleuByLength]) -> str:
    """A text table: one row per bucket, one column per system."""
    first = _same_lines(curves)
    heads = [f"words of {first.length_of}", "lines", *curves]
    rows = [heads]
    for i, bucket in enumerate(first.buckets):
        scores = [curve.buckets[i].bleu for curve in curves.values()]
        rows.append([bucket.label, str(bucket.lines), *("–" if s is None else f"{s:.2f}" for s in scores)])
    widths = [max(len(row[c]) for row in rows) for c in range(len(heads))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def plot(
    curves: Mapping[str, BleuByLength], path: str | Path, *, title: str = "BLEU by sentence length"
) -> Path:
    """Plot one curve per system into a file (.png, .svg, .pdf)."""
    check_matplotlib("the plot of BLEU by length")
    from matplotlib.figure import Figure

    first = _same_lines(curves)
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    places = range(len(first.buckets))
    for name, curve in curves.items():
        points = [
            (x, bucket.bleu)
            for x, bucket in zip(places, curve.buckets, strict=True)
            if bucket.bleu is not None
        ]
        axes.plot([x for x, _ in points], [bleu for _, bleu in points], marker="o", label=name)
    axes.set_xticks(list(places), [f"{bucket.label}\n{bucket.lines}" for bucket in first.buckets])
    axes.set_xlabel(f"words of the {first.length_of}; below: number of lines")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(axis="y", alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    return save_figure(figure, path)


def _same_lines(curves: Mapping[str, BleuByLength]) -> BleuByLength:
    if not curves:
        raise DataError("there are no curves to show; give at least one system")
    first = next(iter(curves.values()))
    shape = lambda curve: (curve.length_of, [(b.shortest, b.longest, b.lines) for b in curve.buckets])  # noqa: E731
    for name, curve in curves.items():
        if shape(curve) != shape(first):
            raise DataError(
                f"{name} has other buckets than {next(iter(curves))}; "
                "score all systems on the same lines and edges"
            )
    return first
