"""Classification speed on SST-2 on a CPU: regard beside scikit-learn's linear models and fastText.

The parts are in benchmarks/classify_peers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import regard
from benchmarks.classify_peers.systems import PLACE
from benchmarks.peers import command, machine
from benchmarks.peers.environments import Place, here, peer
from benchmarks.peers.process import Failed, Process, say
from regard.data import corpora
from regard.errors import OptionError, RegardError
from regard.evaluation.classification import accuracy
from regard.models.classifier import Classifier

NAME = "benchmarks.classify_speed"
ABOUT = """\
Texts per second, accuracy, peak memory, latency of one text and training time of classifiers of SST-2: model
folders of regard that were trained before, and scikit-learn (TF-IDF, hashing) and fastText, which are trained
here and tuned on the validation set. From raw text to label, one thread each, taking turns. Each peer has a
virtual environment in the cache, made with pip on the first run; one that cannot be installed or fails is
named below the table."""

EXAMPLES = """\
examples:
  python -m benchmarks.classify_speed runs/sst2 runs/sst2-words
  python -m benchmarks.classify_speed runs/sst2 --systems fastText --rounds 3 --json speed.json"""

HEADER = [
    "system",
    "texts/s",
    "spread",
    "per CPU second",
    "accuracy",
    "training, s",
    "one text, ms",
    "peak MiB",
    "what",
]


@dataclass
class Row:
    """What came of one system."""

    name: str
    seconds: list[float] = field(default_factory=list)  # of each round over all texts
    # Seconds of the CPU, which others on the machine do not lengthen much.
    busy: list[float] = field(default_factory=list)
    texts: int = 0
    accuracy: float | None = None
    training: float | None = None
    one: float | None = None  # seconds, the median
    peak: int | None = None
    about: str = ""
    version: str = ""
    trouble: str = ""

    @property
    def rate(self) -> float | None:
        return self.texts / statistics.median(self.seconds) if self.seconds else None

    def cells(self) -> list[str]:
        if self.rate is None:
            return [self.name, *["–"] * 7, self.trouble]
        spread = f"{self.texts / max(self.seconds):,.0f} – {self.texts / min(self.seconds):,.0f}"
        number = lambda x, form: "–" if x is None else format(x, form)  # noqa: E731
        busy = self.texts / statistics.median(self.busy)
        mib = None if self.peak is None else self.peak / 2**20
        return [
            self.name, f"{self.rate:,.0f}", spread, f"{busy:,.0f}", number(self.accuracy, ".4f"),
            number(self.training, ".2f"), number(self.one and self.one * 1000, ".2f"),
            number(mib, ",.0f"), self.about,
        ]  # fmt: skip


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = command.parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument(
        "models",
        type=Path,
        nargs="*",
        metavar="MODEL",
        help="classifiers of SST-2, as `regard train` leaves them",
    )
    parser.add_argument("--systems", nargs="*", choices=tuple(PLACE), default=list(PLACE), metavar="PEER",
                        help="these peers only: " + ", ".join(PLACE))  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, help="times that each labels everything (default 5)")
    return command.parse(parser, argv, rounds=1)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    try:
        models = {_name(path): str(_checked(path)) for path in options.models}
        parts = {split: read(split) for split in ("train", "validation", "test")}
    except RegardError as trouble:
        say(f"error: {trouble}")
        return 2
    load = command.busy()
    rows, finished = measured(models, parts, options)
    if any(row.seconds for row in rows):
        table = markdown(rows, argv, load)
        print(table)
        command.keep(
            options,
            json=json.dumps([asdict(row) | {"rate": row.rate} for row in rows], indent=1),
            markdown=table,
        )
    return 130 if not finished else int(any(row.trouble for row in rows if row.name in models))


def _checked(path: Path) -> Path:
    model = regard.load(path)
    if not isinstance(model, Classifier) or set(model.labels) != {"0", "1"}:
        raise OptionError(
            f"{path} is no classifier of SST-2, which has the labels 0 and 1; give one that was trained on it"
        )
    return path


def _name(path: Path) -> str:
    return f"regard {path.parent.name if path.name == 'model' else path.name}"


def read(split: str) -> tuple[list[str], list[str]]:
    """The texts and labels of a part of SST-2."""
    corpus = corpora.find("sst2")
    rows = list(corpus.rows(corpus.roles[split]))
    return [text for text, _ in rows], [label for _, label in rows]


def measured(models: dict[str, str], parts: dict, options: argparse.Namespace) -> tuple[list[Row], bool]:
    """Return all rows, and whether the run was complete.

    All systems train first, then classify in turns, so that noise affects all alike.
    """
    names = [*models, *options.systems]
    rows = {name: Row(name) for name in names}
    running: dict[str, Process] = {}
    with tempfile.TemporaryDirectory(prefix="regard-classify-speed-") as folder:
        (Path(folder) / "handout.json").write_text(
            json.dumps({"parts": parts, "models": models}), encoding="utf-8"
        )
        try:
            for name in names:
                place = here() if name in models else peer(PLACE[name])
                _try(rows[name], lambda row: running.update({row.name: _begun(row, place, Path(folder))}))
            for at in range(options.rounds):
                say(f"round {at + 1} of {options.rounds}")
                for name, process in running.items():
                    _try(rows[name], lambda row: _labelled(row, process))
            for name, process in running.items():
                _try(rows[name], lambda row: _finished(row, process, parts["test"][1]))
        except KeyboardInterrupt:
            say("stopped")
            return list(rows.values()), False
        finally:
            for process in running.values():
                process.end()
    return list(rows.values()), True


def _try(row: Row, work) -> None:
    if not row.trouble:
        try:
            work(row)
        except Failed as trouble:
            row.trouble = str(trouble)


def _begun(row: Row, place: Place, folder: Path) -> Process:
    if place.python is None:
        raise Failed(place.trouble)
    say(f"{row.name}: learning, or getting ready")
    process = Process("benchmarks.classify_peers.worker", [row.name], place, folder, threads=1)
    found = process.ask("train")
    row.training, row.about, row.version = found["seconds"], found["about"], found["version"]
    return process


def _labelled(row: Row, process: Process) -> None:
    found = process.ask("label")
    row.seconds.append(found["seconds"])
    row.busy.append(found["busy"])
    row.texts = found["texts"]


def _finished(row: Row, process: Process, gold: list[str]) -> None:
    row.one = statistics.median(process.ask("one", count=200)["seconds"])
    found = process.ask("outputs")
    row.accuracy, row.peak = accuracy(gold, found["labels"]), found["peak"]


def markdown(rows: list[Row], argv: list[str], load: float | None) -> str:
    versions = ", ".join(dict.fromkeys(row.version for row in rows if row.version))
    texts = max(row.texts for row in rows)
    lines = ["# Labelling speed", "", f"`{command.line(NAME, argv)}`", ""]
    lines.append(
        f"SST-2: {texts:,} texts from raw text to label, one thread; accuracy on the test set. "
        f"{machine.cpu_name()}, {os.cpu_count()} cores"
        f"{'' if load is None else f', load {load:.1f} at the start'}; {versions}, "
        f"Python {platform.python_version()}; {datetime.now(UTC).strftime('%Y-%m-%d')}."
    )
    lines += ["", "| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    lines += [
        "",
        "- texts/s is the median of the rounds, spread the slowest and the fastest of them.",
        "- training: of a peer the time of fitting the setting it chose; of regard the time on the model's "
        "card.",
        "- peak: the most memory the process held; a peer's includes training, regard's torch and the "
        "library itself.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
