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

from benchmarks.peers import machine
from regard.data.datasets import split_rows
from regard.evaluation.tagging import TaggingScores, tagging_scores

PENALTIES = ((0.05, 0.01), (0.2, 0.01), (0.5, 0.01), (1.0, 0.01), (0.2, 0.1), (0.01, 0.1))  # L1, L2
Sentences = list[tuple[list[str], list[str]]]


def shape(word: str) -> str:
    """The shape of a word: McDonald's becomes XxXx'x (case, d for digits, others kept, repeats merged)."""
    kinds = ("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)
    return "".join(kind for kind, _ in groupby(kinds))


def features(words: list[str]) -> list[list[str]]:
    found = []
    for i, word in enumerate(words):
        low = word.lower()
        features = ["bias", f"w={low}", f"shape={shape(word)}", f"first={i == 0}"]
        features += [
            f"{side}{n}={part}" for n in range(1, 5) for side, part in (("begin", low[:n]), ("end", low[-n:]))
        ]
        for d in (-2, -1, 1, 2):
            inside = 0 <= i + d < len(words)
            features += (
                [f"{d}:w={words[i + d].lower()}", f"{d}:shape={shape(words[i + d])}"]
                if inside
                else [f"{d}:none"]
            )
        found.append(features)
    return found


def read(corpus: str, split: str) -> Sentences:
    rows = split_rows({"corpus": corpus}, split, "tag")
    return [(words.split(" "), tags.split(" ")) for words, tags in rows]


def crfsuite(train: Sentences, l1: float, l2: float, path: str) -> SimpleNamespace:
    import pycrfsuite  # type: ignore[import-not-found]

    trainer = pycrfsuite.Trainer(verbose=False)
    for words, tags in train:
        trainer.append(features(words), tags)
    trainer.set_params({"c1": l1, "c2": l2, "max_iterations": 80, "feature.possible_transitions": True})
    begin = time.process_time()
    trainer.train(path)
    tagger = pycrfsuite.Tagger()
    tagger.open(path)
    return SimpleNamespace(
        tag=lambda sentences: [tagger.tag(features(words)) for words in sentences],
        seconds=time.process_time() - begin,
    )


def scored(model: SimpleNamespace, sentences: Sentences) -> TaggingScores:
    words = [words for words, _ in sentences]
    return tagging_scores([tags for _, tags in sentences], model.tag(words), words)


def line(name: str, scores: TaggingScores, more: str = "") -> str:
    views = "".join(f"  {title} {100 * view.f1:.2f}" for title, view in scores.views.items())
    rates = f"P {100 * scores.precision:5.2f}  R {100 * scores.recall:5.2f}  F1 {100 * scores.f1:5.2f}"
    return f"{name:40} {rates}{views}{more}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("runs", nargs="*")
    given = parser.parse_args()
    print(machine.stamp(), flush=True)
    train, validation, test = (read(given.corpus, split) for split in ("train", "validation", "test"))
    with tempfile.TemporaryDirectory() as folder:
        tried = [
            (l1, l2, crfsuite(train, l1, l2, str(Path(folder) / f"{i}")))
            for i, (l1, l2) in enumerate(PENALTIES)
        ]
        l1, l2, best = max(tried, key=lambda each: scored(each[2], validation).f1)
        print(
            line(f"CRFsuite, c1 {l1}, c2 {l2}", scored(best, test), f"  trained in {best.seconds:.0f} s"),
            flush=True,
        )
    for run in given.runs:
        from regard.models.folder import load

        print(line(run, scored(load(run), test)), flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
