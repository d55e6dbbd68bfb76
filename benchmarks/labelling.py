"""Accuracy of `regard label` on TREC's questions: ten examples of each class, all other questions labelled.

    python -m benchmarks.labelling

Each draw takes the examples at random from the training rows. Label spreading then labels all other
questions, those of the test set included; both sets are scored. A logistic regression on the same vectors and
examples is the peer. Needs the corpus trec-qc under $REGARD_DATA, and regard[minilm,interactions].
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers import command, machine
from benchmarks.peers.process import log
from benchmarks.peers.tables import markdown_table
from regard.data import corpora
from regard.errors import OptionError
from regard.models.embedder import Embedder
from regard.pipelines.embed import embed
from regard.search.label_spreading import spread_labels

CONFIDENT = 0.9  # `regard label --take 0.9` keeps these as training data
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Accuracies:
    """Shares of correct labels, in per cent, in one draw and one set of questions."""

    all: float
    confident_half: float  # of label spreading
    confident: float | None  # of label spreading, from CONFIDENT on; None if there are none
    confident_count: int
    regression: float


def draw_examples(labels: Sequence[str], candidates: int, per_label: int, seed: int) -> dict[int, str]:
    """Draw questions of each label from the first `candidates`; return their labels by position."""
    generator, examples = np.random.default_rng(seed), {}
    for label in sorted(set(labels)):
        positions = [i for i in range(candidates) if labels[i] == label]
        if len(positions) < per_label:
            raise OptionError(
                f"only {len(positions)} training questions are {label}, and --examples is {per_label}"
            )
        chosen = generator.choice(positions, per_label, replace=False)
        examples.update({int(i): label for i in chosen})
    return examples


def measure(
    vectors: Vectors, labels: Sequence[str], examples: dict[int, str], sets: dict[str, range]
) -> dict[str, Accuracies]:
    """Label all questions from the examples, by both methods; score each set without the examples."""
    from sklearn.linear_model import LogisticRegression

    predicted, confidence = spread_labels(vectors, examples).best()
    regression = LogisticRegression(max_iter=1000).fit(vectors[list(examples)], list(examples.values()))
    gold = np.asarray(labels)
    correct = np.asarray(predicted) == gold
    correct_regression = regression.predict(vectors) == gold
    results = {}
    for name, positions in sets.items():
        rows = np.asarray([i for i in positions if i not in examples])
        by_confidence = rows[np.argsort(-confidence[rows], kind="stable")]
        confident = rows[confidence[rows] >= CONFIDENT]
        results[name] = Accuracies(
            _percent(correct[rows]),
            _percent(correct[by_confidence[: len(rows) // 2]]),
            _percent(correct[confident]) if len(confident) else None,
            len(confident),
            _percent(correct_regression[rows]),
        )
    return results


def _percent(correct: NDArray[np.bool_]) -> float:
    return 100 * float(correct.mean())


def row(name: str, count: int, draws: Sequence[Accuracies]) -> list[str]:
    """A row of the table: means over the draws with standard deviations."""
    confident = [draw.confident for draw in draws if draw.confident is not None]
    return [
        name,
        str(count),
        _mean([draw.all for draw in draws]),
        _mean([draw.confident_half for draw in draws]),
        f"{_mean(confident)} of {statistics.mean(draw.confident_count for draw in draws):.0f}",
        _mean([draw.regression for draw in draws]),
    ]


def _mean(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}" if values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.labelling", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--model", default="minilm", help="minilm, or a model folder (default minilm)")
    parser.add_argument("--examples", type=int, default=10, help="examples of each class (default 10)")
    parser.add_argument(
        "--draws", type=int, default=5, help="draws of the examples, seeds 1 to N (default 5)"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (default 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    corpus = corpora.find("trec-qc")
    train, test = ([(text, label) for text, label in corpus.rows(split)] for split in ("train", "test"))
    texts, labels = zip(*train, *test, strict=True)
    print(machine.stamp(), flush=True)
    log(f"embedding {len(texts):,} questions")
    vectors = embed(texts, Embedder.load(options.model))
    sets = {"training questions": range(len(train)), "test questions": range(len(train), len(texts))}
    draws = [
        measure(vectors, labels, draw_examples(labels, len(train), options.examples, seed), sets)
        for seed in range(1, options.draws + 1)
    ]
    header = [
        "",
        "questions",
        "correct, %",
        "more confident half",
        f"confidence ≥ {CONFIDENT}",
        "logistic regression",
    ]
    counts = [len(train) - options.examples * len(set(labels)), len(test)]
    rows = [
        row(name, count, [draw[name] for draw in draws]) for name, count in zip(sets, counts, strict=True)
    ]
    print(*markdown_table(header, rows), sep="\n")


if __name__ == "__main__":
    command.run(main)
