"""Classification speed on SST-2 on a CPU: regard beside scikit-learn's linear models and fastText.

The parts are in benchmarks/classify_peers.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import regard
from benchmarks.classify_peers.systems import ENVIRONMENTS
from benchmarks.peers import command, machine
from benchmarks.peers.environments import Environment, own_environment, peer_environment
from benchmarks.peers.process import WorkerError, WorkerProcess, log
from benchmarks.peers.tables import NONE, markdown_table
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
    """The measurements of one system; `failure` is why there are none."""

    name: str
    seconds: list[float] = field(default_factory=list)  # of each round over all texts
    # CPU seconds of each round, which other processes on the machine lengthen less.
    busy: list[float] = field(default_factory=list)
    texts: int = 0
    accuracy: float | None = None
    training: float | None = None
    one: float | None = None  # median latency of one text, in seconds
    peak: int | None = None
    about: str = ""
    version: str = ""
    failure: str = ""

    @property
    def rate(self) -> float | None:
        """Texts per second, at the median of the rounds."""
        return self.texts / statistics.median(self.seconds) if self.seconds else None

    def cells(self) -> list[str]:
        """One row of the table, in the order of HEADER."""
        if self.rate is None:
            return [self.name, *[NONE] * 7, self.failure]

        def cell(number: float | None, form: str) -> str:
            return NONE if number is None else format(number, form)

        spread = f"{self.texts / max(self.seconds):,.0f} – {self.texts / min(self.seconds):,.0f}"
        cpu_rate = self.texts / statistics.median(self.busy)
        mib = None if self.peak is None else self.peak / 2**20
        return [
            self.name, f"{self.rate:,.0f}", spread, f"{cpu_rate:,.0f}", cell(self.accuracy, ".4f"),
            cell(self.training, ".2f"), cell(self.one and self.one * 1000, ".2f"),
            cell(mib, ",.0f"), self.about,
        ]  # fmt: skip


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = command.make_parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument(
        "models",
        type=Path,
        nargs="*",
        metavar="MODEL",
        help="run folders of classifiers trained on SST-2",
    )
    parser.add_argument(
        "--systems",
        nargs="*",
        choices=tuple(ENVIRONMENTS),
        default=list(ENVIRONMENTS),
        metavar="PEER",
        help="peers to measure (default all): " + ", ".join(ENVIRONMENTS),
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each system classifies all texts (default 5)"
    )
    return command.parse_options(parser, argv, rounds=1)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    try:
        splits = {split: read_split(split) for split in ("train", "validation", "test")}
        labels = set(splits["train"][1])
        models = {_name(path): str(_check_model(path, labels)) for path in options.models}
    except RegardError as error:
        log(f"error: {error}")
        return 2
    load = command.load_average()
    rows, finished = measure(models, splits, options)
    if any(row.seconds for row in rows):
        table = markdown(rows, argv, load)
        print(table)
        command.save_results(
            options,
            json=json.dumps([asdict(row) | {"rate": row.rate} for row in rows], indent=1),
            markdown=table,
        )
    return 130 if not finished else int(any(row.failure for row in rows if row.name in models))


def _check_model(path: Path, labels: set[str]) -> Path:
    """Return the path of an SST-2 classifier; raise an OptionError for any other model."""
    model = regard.load(path)
    if not isinstance(model, Classifier) or set(model.labels) != labels:
        raise OptionError(
            f"{path} is not a classifier with SST-2's labels {' and '.join(sorted(labels))}; "
            "give one that was trained on SST-2"
        )
    return path


def _name(path: Path) -> str:
    """The name of a model in the table: that of its run."""
    return f"regard {path.parent.name if path.name == 'model' else path.name}"


def read_split(split: str) -> tuple[list[str], list[str]]:
    """The texts and labels of a split of SST-2."""
    corpus = corpora.find("sst2")
    rows = list(corpus.rows(corpus.roles[split]))
    return [text for text, _ in rows], [label for _, label in rows]


def measure(models: dict[str, str], splits: dict, options: argparse.Namespace) -> tuple[list[Row], bool]:
    """Return all rows, and whether the run was complete.

    All systems train first, then classify in turns, so that noise affects all alike.
    """
    names = [*models, *options.systems]
    rows = {name: Row(name) for name in names}
    workers: dict[str, WorkerProcess] = {}
    with tempfile.TemporaryDirectory(prefix="regard-classify-speed-") as folder:
        (Path(folder) / "inputs.json").write_text(
            json.dumps({"splits": splits, "models": models}), encoding="utf-8"
        )
        try:
            for name in names:
                environment = own_environment() if name in models else peer_environment(ENVIRONMENTS[name])
                _try(rows[name], lambda row: workers.update({row.name: _train(row, environment, folder)}))
            for number in range(options.rounds):
                log(f"round {number + 1} of {options.rounds}")
                for name, process in workers.items():
                    _try(rows[name], lambda row: _time_classification(row, process))
            for name, process in workers.items():
                _try(rows[name], lambda row: _score(row, process, splits["test"][1]))
        except KeyboardInterrupt:
            log("stopped")
            return list(rows.values()), False
        finally:
            for process in workers.values():
                process.close()
    return list(rows.values()), True


def _try(row: Row, step: Callable[[Row], None]) -> None:
    """Run one step of a system, unless it failed before; keep the reason if it fails now."""
    if not row.failure:
        try:
            step(row)
        except WorkerError as error:
            row.failure = str(error)


def _train(row: Row, environment: Environment, folder: str) -> WorkerProcess:
    """Start a worker and train its system, or load regard's model."""
    log(f"{row.name}: training, or loading a trained model")
    worker = "benchmarks.classify_peers.worker"
    process = WorkerProcess(worker, [row.name], environment, Path(folder), threads=1)
    answer = process.call("train")
    row.training, row.about, row.version = answer["seconds"], answer["about"], answer["version"]
    return process


def _time_classification(row: Row, process: WorkerProcess) -> None:
    """One round over all texts."""
    answer = process.call("classify_all")
    row.seconds.append(answer["seconds"])
    row.busy.append(answer["busy"])
    row.texts = answer["texts"]


def _score(row: Row, process: WorkerProcess, gold: list[str]) -> None:
    """Latency of single texts, accuracy and peak memory, after the rounds."""
    row.one = statistics.median(process.call("latency", count=200)["seconds"])
    answer = process.call("test_labels")
    row.accuracy, row.peak = accuracy(gold, answer["labels"]), answer["peak"]


def markdown(rows: list[Row], argv: list[str], load: float | None) -> str:
    """The page: the command, the machine, the table and what its columns mean."""
    versions = ", ".join(dict.fromkeys(row.version for row in rows if row.version))
    texts = max(row.texts for row in rows)
    lines = ["# Classification speed", "", f"`{command.command_line(NAME, argv)}`", ""]
    lines.append(
        f"SST-2: {texts:,} texts from raw text to label, one thread; accuracy on the test set. "
        f"{machine.cpu_text(machine.cpu_facts(load))}; {versions}, "
        f"Python {platform.python_version()}; {machine.today()}."
    )
    lines += ["", *markdown_table(HEADER, [row.cells() for row in rows])]
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
