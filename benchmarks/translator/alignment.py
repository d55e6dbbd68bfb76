"""Alignment error of the bundled translator by how links are selected, on the trial set and on the test sets.

The layer, head and step are those of the model's card, which were chosen without gold links. The selection
with the lowest error on the 37 pairs of the Hansards trial set is scored on the Hansards test set. The German
gold has no trial set: it is scored with the defaults of `regard align`. REGARD_DATA must name the folder of
align-hansards-en-fr and align-europarl-de-en.

    python -m benchmarks.translator.alignment           # the trial set only
    python -m benchmarks.translator.alignment --test    # and the test sets, once; writes the results

`--training build/translator/data` also counts the gold sentences among the training pairs of prepare.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

import regard
from benchmarks.align import TASKS
from benchmarks.peers.command import command_line
from benchmarks.translator import prepare
from regard.errors import RegardError
from regard.evaluation.alignment import AlignmentScore, Gold, score
from regard.files.atomic import write_file
from regard.models.target_language import add_target
from regard.pipelines.align import align_words
from regard.pipelines.word_links import (
    NEIGHBOUR_WEIGHT,
    SYMMETRIZATIONS,
    Links,
    LinkSelection,
    at_least,
    flipped,
    grown,
    mutual,
)

MODEL = "tatoeba-en-de-fr"
RESULTS = Path(__file__).parent.parent / "results" / "translator" / "symmetrization.json"
THRESHOLDS = (None, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
NEIGHBOUR_WEIGHTS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
Select = Callable[[Tensor, Tensor], Links]  # weights (target, source) and (source, target)


def options_of(selection: LinkSelection) -> str:
    """The options of `regard align` that give a selection."""
    words = [] if selection.symmetrize is None else [f"--symmetrize {selection.symmetrize}"]
    words += ["--mutual"] if selection.mutual else []
    words += [] if selection.threshold is None else [f"--threshold {selection.threshold:g}"]
    return " ".join(words) or "(default)"


def selections() -> list[LinkSelection]:
    """What `regard align` can do, from one direction to joined weights with a threshold."""
    methods = ("none", *SYMMETRIZATIONS)
    plain = [LinkSelection(None, strict, method) for method, strict in product(methods, (False, True))]
    joined = [LinkSelection(threshold, strict) for strict, threshold in product((True, False), THRESHOLDS)]
    return plain + joined


def neighbour_weights() -> Iterator[tuple[str, Select]]:
    """Joined weights with other constants than NEIGHBOUR_WEIGHT, each with and without a threshold."""
    for weight, threshold in product(NEIGHBOUR_WEIGHTS, (None, 0.1, 0.15, 0.2)):

        def select(
            forward: Tensor, backward: Tensor, weight: float = weight, floor: Any = threshold
        ) -> Links:
            mean = (forward * backward.T).sqrt()
            return grown(mutual(mean, floor), at_least(mean, max(weight, floor or 0)))

        yield f"neighbours of at least {weight:g}, threshold {threshold}", select


def both_weights(
    english: Sequence[str], other: Sequence[str], language: str, model: Any
) -> list[tuple[Tensor, Tensor]]:
    """The weights between words of each pair, from English and into English."""
    forward = dict(align_words(add_target(english, model, language), other, model))
    backward = dict(align_words(add_target(other, model, "en"), english, model))
    return [(forward[i].weights, backward[i].weights) for i in range(len(english))]


def error(select: Select, weights: list[tuple[Tensor, Tensor]], gold: list[Gold]) -> dict[str, float]:
    return percent(score([select(*pair) for pair in weights], gold))


def percent(result: AlignmentScore) -> dict[str, float]:
    return {key: round(100 * getattr(result, key), 2) for key in ("aer", "precision", "recall")}


def trial(model: Any) -> tuple[LinkSelection, dict[str, dict[str, float]]]:
    """The selection with the lowest error on the trial set, the first of equals, and the error of each."""
    english, french, gold = TASKS["fr"].read("dev")
    weights = both_weights(english, french, "fr", model)
    found = {options_of(s): (s, error(s.joined, weights, gold)) for s in selections()}
    into_english = [(backward, forward) for forward, backward in weights]
    swapped = [Gold(flipped(g.sure), flipped(g.possible)) for g in gold]
    rows = {name: scores for name, (_, scores) in found.items()}
    for strict in (False, True):
        selection = LinkSelection(mutual=strict, symmetrize="none")
        rows[f"{options_of(selection)}, into English"] = error(selection.joined, into_english, swapped)
    rows |= {name: error(select, weights, gold) for name, select in neighbour_weights()}
    best, _ = min(found.values(), key=lambda pair: pair[1]["aer"])
    return best, rows


def test(model: Any, best: LinkSelection) -> dict[str, dict[str, float]]:
    """The error of `regard.align` on the test sets.

    Hansards by the selection chosen on its trial set; German, which has none, by the defaults.
    """
    rows = {}
    for language, task in TASKS.items():
        english, other, gold = task.read("test")
        selection = best if task.trial else LinkSelection()
        links = regard.align(english, other, model, to=language, **vars(selection))
        rows[f"{task.gold}, {options_of(selection)}"] = percent(score(links, gold))
    return rows


def in_training(folder: Path) -> dict[str, dict[str, int]]:
    """How many English sentences of each gold set are among the training pairs that `prepare` wrote."""
    counts = {}
    for language, task in TASKS.items():
        paths = sorted(folder.glob(f"*.en-{language}.train.tsv.xz"))
        known = {_letters(english) for path in paths for english, _ in prepare.read_pairs(path)}
        english, _, _ = task.read("test")
        counts[task.gold] = {"sentences": len(english), "known": sum(_letters(x) in known for x in english)}
    return counts


def _letters(text: str) -> str:
    """What tokenization does not change."""
    return prepare.comparable(text).replace(" ", "")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.translator.alignment", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default=MODEL, help="a name of `regard models`, or a folder")
    parser.add_argument("--test", action="store_true", help="score the test sets; write the results")
    parser.add_argument(
        "--training", type=Path, metavar="FOLDER", help="with --test: count gold sentences among these pairs"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="with --test: where they are written")
    options = parser.parse_args(argv)
    try:
        model = regard.load(options.model)
        best, rows = trial(model)
        tables = {"trial": rows, "test": test(model, best) if options.test else {}}
    except RegardError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(f"chosen on the trial set: {options_of(best)}; neighbours of at least {NEIGHBOUR_WEIGHT:g}")
    for name, table in tables.items():
        for what, scores in table.items():
            print(f"{name:6}{scores['aer']:7.2f}{scores['precision']:7.1f}{scores['recall']:7.1f}  {what}")
    if options.test:
        record = {
            "command": command_line("benchmarks.translator.alignment", argv or sys.argv[1:]),
            "regard": regard.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "chosen": options_of(best),
            **tables,
            **({"in training": in_training(options.training)} if options.training else {}),
        }
        write_file(options.output, json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
