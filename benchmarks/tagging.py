"""CRFsuite with hand-made features (words, shapes, affixes, neighbours) beside regard's taggers.

    python -m benchmarks.tagging wnut17 [RUN ...]      # needs python-crfsuite; RUN: folders of `regard train`

Both learn from the training set alone: no pretrained vectors, no lists of names. CRFsuite's two penalties are
chosen on the validation set, as regard's settings were.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

from benchmarks.peers import command, machine
from regard.data.datasets import split_rows
from regard.evaluation.tagging import TaggingScores, tagging_scores

PENALTIES = ((0.05, 0.01), (0.2, 0.01), (0.5, 0.01), (1.0, 0.01), (0.2, 0.1), (0.01, 0.1))  # L1, L2
Sentences = list[tuple[list[str], list[str]]]


def shape(word: str) -> str:
    """The shape of a word: McDonald's becomes XxXx'x (case, d for digits, others kept, repeats merged)."""
    kinds = ("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)
    return "".join(kind for kind, _ in groupby(kinds))


def sentence_features(words: list[str]) -> list[list[str]]:
    """Features of each word: the word, its shape, prefixes and suffixes, and two neighbours on each side."""
    features_of_words = []
    for i, word in enumerate(words):
        lower = word.lower()
        word_features = ["bias", f"w={lower}", f"shape={shape(word)}", f"first={i == 0}"]
        word_features += [
            f"{side}{n}={part}"
            for n in range(1, 5)
            for side, part in (("begin", lower[:n]), ("end", lower[-n:]))
        ]
        for offset in (-2, -1, 1, 2):
            inside = 0 <= i + offset < len(words)
            word_features += (
                [f"{offset}:w={words[i + offset].lower()}", f"{offset}:shape={shape(words[i + offset])}"]
                if inside
                else [f"{offset}:none"]
            )
        features_of_words.append(word_features)
    return features_of_words


def read_split(corpus: str, split: str) -> Sentences:
    """The words and tags of the sentences of a split."""
    rows = split_rows({"corpus": corpus}, split, "tag")
    return [(words.split(" "), tags.split(" ")) for words, tags in rows]


def train_crfsuite(train: Sentences, l1: float, l2: float, path: str) -> SimpleNamespace:
    """Train a linear-chain CRF with L1 and L2 penalties; return its `tag` function and CPU seconds."""
    from pycrfsuite import Tagger, Trainer  # type: ignore[import-not-found, attr-defined]

    trainer = Trainer(verbose=False)
    for words, tags in train:
        trainer.append(sentence_features(words), tags)
    trainer.set_params({"c1": l1, "c2": l2, "max_iterations": 80, "feature.possible_transitions": True})
    begin = time.process_time()
    trainer.train(path)
    tagger = Tagger()
    tagger.open(path)
    return SimpleNamespace(
        tag=lambda sentences: [tagger.tag(sentence_features(words)) for words in sentences],
        seconds=time.process_time() - begin,
    )


def score(model: SimpleNamespace, sentences: Sentences) -> TaggingScores:
    """Entity scores of a model on sentences."""
    words = [words for words, _ in sentences]
    return tagging_scores([tags for _, tags in sentences], model.tag(words), words)


def format_row(name: str, scores: TaggingScores, note: str = "") -> str:
    """One line of the table."""
    views = "".join(f"  {title} {100 * view.f1:.2f}" for title, view in scores.views.items())
    rates = f"P {100 * scores.precision:5.2f}  R {100 * scores.recall:5.2f}  F1 {100 * scores.f1:5.2f}"
    return f"{name:40} {rates}{views}{note}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", help="a tagging corpus known by name, such as wnut17")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run folders of taggers to score beside it")
    options = parser.parse_args()
    print(machine.stamp(), flush=True)
    train, validation, test = (read_split(options.corpus, split) for split in ("train", "validation", "test"))
    with tempfile.TemporaryDirectory() as folder:
        models = [
            (l1, l2, train_crfsuite(train, l1, l2, str(Path(folder) / f"{i}")))
            for i, (l1, l2) in enumerate(PENALTIES)
        ]
        l1, l2, best = max(models, key=lambda candidate: score(candidate[2], validation).f1)
        print(
            format_row(
                f"CRFsuite, c1 {l1}, c2 {l2}", score(best, test), f"  trained in {best.seconds:.0f} s"
            ),
            flush=True,
        )
    for run in options.runs:
        from regard.models.folder import load

        print(format_row(run, score(load(run), test)), flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    command.run(main)
