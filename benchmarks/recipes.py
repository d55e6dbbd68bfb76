"""Train recipes with several seeds or folds, evaluate them, and print the table of their scores.

    python -m benchmarks.recipes                                   # all that need no GPU, a process per core
    python -m benchmarks.recipes gpu --jobs 8                      # the others, side by side on one GPU
    python -m benchmarks.recipes trec wnut17 --jobs 2 --out FOLDER
    python -m benchmarks.recipes trec --out runs/try --set training.epochs=1      # a trial
    python -m benchmarks.recipes multi30k-en-de --choose decoding.length_penalty=0.6,1,1.5,2,2.5
    python -m benchmarks.recipes --out FOLDER --table              # only the table of what is finished

Every run is a process with one thread: `python -m regard train NAME seed=N --run FOLDER/NAME-N`, then `regard
evaluate` on the validation and test set. FOLDER/NAME-N.json has its scores, FOLDER/NAME-N.log its output. The
same command resumes what was stopped, and tries again what failed. FOLDER/results.md is the table,
FOLDER/results.json has all figures; both are written after each run.

`--choose KEY=VALUE,VALUE,…` chooses decoding settings of translators on the validation set: after the
trainings, each model is evaluated there with each value, the value with the best mean over the seeds is
chosen, and the test sets are evaluated with it, once. FOLDER/NAME.choice.json has the mean of each value and
the choice, which later runs of the command keep. Give it twice for combinations of two settings.

Needs the corpora of the recipes under $REGARD_DATA; embed-tatoeba also
cranfield and stsb-en-de-fr.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import decoding_choice
from benchmarks.decoding_choice import Setting
from benchmarks.peers import command, machine
from benchmarks.peers.process import ROOT, log
from benchmarks.peers.tables import NONE, markdown_table
from regard.errors import OptionError
from regard.files.atomic import write_file
from regard.files.lock import RunLock

REPORT_EVERY = 60.0  # seconds between two reports of progress
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class Figure:
    """A figure of the table: its name, the keys of the scores that lead to it, and how it is written."""

    name: str
    keys: tuple[str, ...]
    scale: float = 100.0
    digits: int = 2

    def value(self, scores: Any) -> float | None:
        """The figure in the scores of one evaluation; None if they do not have it."""
        for key in self.keys:
            scores = scores.get(key) if isinstance(scores, dict) else None
        return None if scores is None else self.scale * scores


ACCURACY = (Figure("accuracy", ("accuracy",)),)
F1 = (Figure("F1", ("micro", "f1")),)
MENTIONS = (
    Figure("F1, a mention as one span", ("views", '"@ name" as one', "f1")),
    Figure("F1 without mentions", ("views", "without mentions", "f1")),
)
LOSS = (Figure("loss, nats per character", ("bits_per_character",), math.log(2), 3),)
PERPLEXITY = (Figure("perplexity", ("perplexity",), 1, 1),)
CAPTIONS = {"test 2017": "test_2017_flickr", "COCO": "test_2017_mscoco"}  # test sets beside that of 2016
BLEU = (  # of the tokens as they are
    Figure("BLEU", ("none", "bleu"), 1),
    *(Figure(f"BLEU, {name}", (split, "none", "bleu"), 1) for name, split in CAPTIONS.items()),
)
SEARCH = (
    Figure("MRR", ("mrr",), 1, 3),
    *(Figure(f"STS-B, Spearman, {x}", ("stsb", x), 1, 4) for x in ("en", "de", "fr")),
    *(
        Figure(f"Cranfield, {metric}, {label}", ("cranfield", method, metric.lower()), 1, 4)
        for method, label in (("vectors", "alone"), ("hybrid", "with BM25"))
        for metric in ("nDCG@10", "MAP", "recall@100")
    ),
)


@dataclass(frozen=True)
class Recipe:
    """A recipe to train: its seeds or folds, what is reported, and about how many minutes it takes."""

    name: str
    numbers: Sequence[int]
    figures: tuple[Figure, ...]
    minutes: float  # the longest are started first
    key: str = "seed"  # of the recipe: takes the numbers
    evaluations: tuple[str, ...] = ("validation", "test")
    group: str = "cpu"  # or gpu

    @property
    def searches(self) -> bool:
        """Whether its scores depend on decoding settings."""
        return self.figures[0].name == "BLEU"


RECIPES = (
    Recipe("sst2-transformer", range(1, 4), ACCURACY, 0.4),
    Recipe("polarity", range(1, 11), ACCURACY, 0.2, key="data.fold"),
    Recipe("trec", range(1, 6), ACCURACY, 0.3, evaluations=("test",)),  # learns from all training rows
    Recipe("trec-ngrams", range(1, 6), ACCURACY, 0.3, evaluations=("test",)),
    Recipe("wnut17", range(1, 4), F1, 4),
    Recipe("wnut17-convolutional", range(1, 4), F1, 5),
    Recipe("wnut17-transformer", range(1, 4), F1, 4.5),
    Recipe("broad-twitter", range(1, 4), F1 + MENTIONS, 6),
    Recipe("embed-tatoeba", range(1, 4), ACCURACY + SEARCH, 2, evaluations=("validation", "test", "search")),
    Recipe("shakespeare-cpu", (1,), LOSS, 3, evaluations=("validation",)),
    *(
        Recipe(
            name, range(1, 4), BLEU, 2, evaluations=("validation", "test", *CAPTIONS.values()), group="gpu"
        )
        for name in ("multi30k-en-de", "multi30k-en-fr")
    ),
    Recipe("wikitext-2", (1,), PERPLEXITY, 7, group="gpu"),
    Recipe("shakespeare", (1,), LOSS, 2.5, evaluations=("validation",), group="gpu"),
)


class Stopped(Exception):
    """The runs are being stopped."""


class CommandError(Exception):
    """A command failed; the message is the last line of the log."""


class Run:
    """A recipe with one seed or fold, and its files in the folder of all runs."""

    def __init__(
        self, recipe: Recipe, number: int, folder: Path, overrides: Sequence[str], device: str | None = None
    ) -> None:
        self.recipe, self.number = recipe, number
        self.device = device or ("cuda" if recipe.group == "gpu" else "cpu")
        self.name = f"{recipe.name}-{number}"
        self.folder, self.log, self.file = (folder / f"{self.name}{end}" for end in ("", ".log", ".json"))
        self.record: dict[str, Any] = {
            "recipe": recipe.name, "number": number, "overrides": list(overrides),
            "cpu_seconds": 0.0, "evaluations": {}, "compared": {}, "decoding": {}, "failure": None,
        }  # fmt: skip
        if self.file.is_file():
            self.record |= json.loads(self.file.read_text(encoding="utf-8"))

    @property
    def missing(self) -> list[str]:
        """The evaluations that are not done yet; none for a finished run."""
        return [split for split in self.recipe.evaluations if split not in self.record["evaluations"]]

    @property
    def is_trained(self) -> bool:
        return (self.folder / "report.json").is_file()

    def scores(self, column: str) -> dict[str, Any]:
        """The scores of a column; other test sets and the search benchmark belong to the column test."""
        evaluations = self.record["evaluations"]
        if column != "test":
            return evaluations.get(column, {})
        others = {split: scores for split, scores in evaluations.items() if split.startswith("test_")}
        return evaluations.get("test", {}) | evaluations.get("search", {}) | others

    def save(self, **changes: Any) -> None:
        self.record |= changes
        write_file(self.file, json.dumps(self.record, indent=1) + "\n")

    def last_line(self) -> str:
        """The last line of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        return (text.strip() or "no output").split("\n")[-1].strip()[:200]

    def training_command(self) -> list[str]:
        """The arguments that train the run, or resume it if it has a checkpoint."""
        if any((self.folder / "checkpoints").glob("step-*")):
            return ["regard", "resume", str(self.folder)]
        values = [f"{self.recipe.key}={self.number}", "training.threads=1"]
        values.append(f"training.device={self.device}")
        values += self.record["overrides"]
        return ["regard", "train", self.recipe.name, *values, "--run", str(self.folder), "--overwrite"]


class Runner:
    """Trains and evaluates runs in processes of their own, some at a time; calls `report` after each."""

    def __init__(self, jobs: int, report: Callable[[], object] = lambda: None) -> None:
        self.jobs, self.report, self.stopping = jobs, report, False
        self.processes: dict[Run, int] = {}  # process ids
        self.lock = threading.Lock()

    def run_all(self, runs: Sequence[Run], settings: Sequence[Setting] = ()) -> bool:
        """`run` all, the longest first; False if Ctrl-C or SIGTERM stopped it."""
        ordered = sorted(runs, key=lambda run: -run.recipe.minutes)
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = {pool.submit(self.run, run, settings) for run in ordered}
            try:
                self._report_progress(futures)
            except KeyboardInterrupt:
                log("stopping: training saves a checkpoint first; Ctrl-C again to end at once")
                self.stop(signal.SIGINT)
                try:
                    wait(futures)
                except KeyboardInterrupt:
                    self.stop(signal.SIGKILL)
        for future in futures:
            future.result()  # raises errors of this script
        return not self.stopping

    def _report_progress(self, futures: set[Future[None]]) -> None:
        """Wait for all, and log the state of the running ones every minute."""
        while not_done := wait(futures, REPORT_EVERY).not_done:
            log(f"{len(futures) - len(not_done)} of {len(futures)} runs done; running:")
            for run in list(self.processes):
                log(f"  {run.name}: {run.last_line()}")

    def stop(self, with_signal: signal.Signals) -> None:
        """Send a signal to all processes and start no more."""
        with self.lock:
            self.stopping = True
            for process in self.processes.values():
                with suppress(ProcessLookupError):
                    os.kill(process, with_signal)

    def run(self, run: Run, settings: Sequence[Setting] = ()) -> None:
        """Train and evaluate one run as far as that is not done, and store its scores or its failure.

        With settings, it is only evaluated on the validation set, once with each of them.
        """
        try:
            run.save(failure=None)
            self._train(run)
            if settings:
                self._compare(run, settings)
                return
            for split in run.missing:
                scores = self._evaluate(run, split, run.record["decoding"])
                run.save(evaluations=run.record["evaluations"] | {split: scores})
            log(f"{run.name}: finished, {run.record['cpu_seconds'] / 60:.1f} CPU minutes of training")
        except CommandError as error:
            run.save(failure=str(error))
            log(f"{run.name}: failed: {error}")
        except Stopped:
            pass
        finally:
            with self.lock:
                self.report()

    def _compare(self, run: Run, settings: Sequence[Setting]) -> None:
        for setting in settings:
            name = decoding_choice.label(setting)
            if name not in run.record["compared"]:
                scores = self._evaluate(run, "validation", setting)
                run.save(compared=run.record["compared"] | {name: scores})
        log(f"{run.name}: {len(settings)} settings compared on the validation set")

    def _train(self, run: Run) -> None:
        if not run.is_trained:
            log(f"{run.name}: training")
            self._call(run, run.training_command(), count_time=True)
        report = json.loads((run.folder / "report.json").read_text(encoding="utf-8"))
        facts = {key: report[key] for key in ("versions", "parameters", "steps", "seconds", "flops")}
        run.save(**facts, date=run.record.get("date") or machine.today())

    def _evaluate(self, run: Run, split: str, setting: Setting) -> dict[str, Any]:
        if split != "search":
            options = ["--split", split, "--device", run.device, "--json"]
            options += decoding_choice.evaluate_options(setting)
            return json.loads(self._call(run, ["regard", "evaluate", str(run.folder), *options]))["scores"]
        with tempfile.TemporaryDirectory() as folder:
            scores = Path(folder) / "scores.json"
            self._call(run, ["benchmarks.search_quality", "--model", str(run.folder), "--json", str(scores)])
            return json.loads(scores.read_text(encoding="utf-8"))

    def _call(self, run: Run, arguments: list[str], count_time: bool = False) -> str:
        """Run `python -m` with arguments, standard error to the log of the run; return standard output."""
        with run.log.open("ab") as errors, tempfile.TemporaryFile() as output:
            code, seconds = self._wait(run, [sys.executable, "-m", *arguments], output, errors)
            if count_time:
                run.save(cpu_seconds=round(run.record["cpu_seconds"] + seconds, 1))
            if self.stopping and code:
                raise Stopped
            if code:
                raise CommandError(f"{run.last_line()} (exit code {code})")
            output.seek(0)
            return output.read().decode()

    def _wait(self, run: Run, line: list[str], output: Any, errors: Any) -> tuple[int, float]:
        """Start a process and wait for it; return its exit code and processor time in seconds.

        It has a session of its own, so that Ctrl-C reaches it through `stop` only.
        """
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.lock:
            if self.stopping:
                raise Stopped
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True,
                env=os.environ | SINGLE_THREADED | {"PYTHONPATH": paths},
            )  # fmt: skip
            self.processes[run] = process.pid
        _, status, usage = os.wait4(process.pid, 0)
        with self.lock:
            del self.processes[run]
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, usage.ru_utime + usage.ru_stime


def summary(values: list[float]) -> dict[str, Any] | None:
    """Mean, standard deviation (None for one value) and the values themselves."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "sd": deviation, "values": values}


def summarize(recipe: Recipe, runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """The figures of the finished runs of a recipe, and which runs are finished, failed or missing."""
    finished = [run for run in runs if not run.missing]
    figures = {}
    for figure in recipe.figures:
        columns = {
            column: [value for run in finished if (value := figure.value(run.scores(column))) is not None]
            for column in ("validation", "test")
        }
        figures[figure.name] = {column: summary(values) for column, values in columns.items()}
    choice = choice_file(folder, recipe)
    return {
        "key": recipe.key,
        "choice": json.loads(choice.read_text(encoding="utf-8")) if choice.is_file() else None,
        "finished": [run.number for run in finished],
        "missing": [run.number for run in runs if run.missing and not run.record["failure"]],
        "failed": {run.name: run.record["failure"] for run in runs if run.record["failure"]},
        "figures": figures,
        "cpu_minutes": summary([run.record["cpu_seconds"] / 60 for run in finished]),
        "versions": sorted({run.record["versions"]["regard"] for run in finished}),
        "date": max((run.record["date"] for run in finished), default=None),
    }


def numbers_text(numbers: list[int]) -> str:
    """1, 2, 3, 5 as 1–3, 5."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)


def mean_text(values: dict[str, Any] | None, digits: int) -> str:
    """A mean ± standard deviation."""
    if values is None:
        return NONE
    deviation = "" if values["sd"] is None else f" ± {values['sd']:.{digits}f}"
    return f"{values['mean']:.{digits}f}{deviation}"


def table(recipes: Sequence[Recipe], summaries: dict[str, dict[str, Any]]) -> str:
    """The Markdown table, and below it the failed and missing runs and the chosen settings."""
    rows, notes = [], []
    for recipe in recipes:
        found = summaries[recipe.name]
        runs = f"{recipe.key.removeprefix('data.')} {numbers_text(found['finished'])}"
        minutes = found["cpu_minutes"]["mean"] if found["finished"] else 0.0
        about = [f"{minutes:.1f}", ", ".join(found["versions"]), found["date"]]
        for figure in recipe.figures if found["finished"] else ():
            columns = found["figures"][figure.name]
            scores = [mean_text(columns[column], figure.digits) for column in ("validation", "test")]
            rows.append([f"`{recipe.name}`", figure.name, runs, *scores, *about])
        notes += [f"- {name} failed: {reason}" for name, reason in found["failed"].items()]
        if found["missing"]:
            notes.append(f"- {recipe.name}: {recipe.key} {numbers_text(found['missing'])} not finished")
        if found["choice"]:
            notes.append(f"- {recipe.name}: {decoding_choice.choice_text(found['choice'])}")
    header = ["recipe", "figure", "runs", "validation", "test", "CPU minutes of one", "regard", "date"]
    return "\n".join([*markdown_table(header, rows), *([""] if notes else []), *notes]) + "\n"


def write_results(folder: Path, runs: Sequence[Run]) -> str:
    """Write results.json and results.md, and return the table."""
    recipes = list(dict.fromkeys(run.recipe for run in runs))
    summaries = {
        recipe.name: summarize(recipe, [run for run in runs if run.recipe is recipe], folder)
        for recipe in recipes
    }
    results = {
        "command": command.command_line("benchmarks.recipes", sys.argv[1:]),
        **machine.cpu_facts(machine.load_average()),
        "recipes": summaries,
        "runs": {run.name: run.record for run in runs},
    }
    text = table(recipes, summaries)
    write_file(folder / "results.json", json.dumps(results, indent=1) + "\n")
    write_file(folder / "results.md", text)
    return text


def check_overrides(runs: Sequence[Run], overrides: list[str]) -> None:
    """Raise OptionError if a run in the folder was made with other values of --set."""
    for run in runs:
        if run.record["overrides"] != overrides:
            made = " ".join(f"--set {value}" for value in run.record["overrides"]) or "no --set"
            raise OptionError(f"{run.folder} was trained with {made}; give the same, or another --out")


def parse(argv: list[str]) -> argparse.Namespace:
    names = [recipe.name for recipe in RECIPES]
    parser = argparse.ArgumentParser(
        "python -m benchmarks.recipes",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", default=["cpu"],
        help=f"cpu (the default), gpu, or some of {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/recipes"), help="default: runs/recipes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipes")
    parser.add_argument(
        "--choose", action="append", default=[], metavar="KEY=VALUE,VALUE,…",
        help=f"choose on the validation set: {', '.join(decoding_choice.OPTIONS)}",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda for the group gpu, else cpu")
    parser.add_argument("--table", action="store_true", help="train nothing, print the table")
    options = parser.parse_args(argv)
    if unknown := sorted(set(options.names) - {*names, "cpu", "gpu"}):
        parser.error(f"no recipe {unknown[0]} here; choose from cpu, gpu, {', '.join(names)}")
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    options.settings = decoding_choice.parse_settings(options.choose)
    return options


def every_run(folder: Path, options: argparse.Namespace) -> list[Run]:
    return [
        Run(recipe, number, folder, options.set, options.device)
        for recipe in RECIPES
        for number in recipe.numbers
    ]


def chosen(folder: Path, options: argparse.Namespace) -> list[Run]:
    """The runs whose recipe or group is named."""
    names = set(options.names)
    return [run for run in every_run(folder, options) if {run.recipe.name, run.recipe.group} & names]


def choice_file(folder: Path, recipe: Recipe) -> Path:
    return folder / f"{recipe.name}.choice.json"


def check_choices(folder: Path, runs: Sequence[Run], settings: Sequence[Setting]) -> None:
    """Raise OptionError if --choose does not suit a recipe, or what is in the folder."""
    for run in runs:
        if settings and not run.recipe.searches:
            raise OptionError(f"--choose applies to translators, and {run.recipe.name} is none; leave it out")
        choice = decoding_choice.read_choice(choice_file(folder, run.recipe), settings)
        if settings and choice is None and run.record["evaluations"]:
            raise OptionError(f"{run.folder} was evaluated without --choose; leave it out, or another --out")


def choose_settings(folder: Path, runs: Sequence[Run], settings: Sequence[Setting]) -> None:
    """Choose the setting of each recipe, if that is not done, and note it in its runs."""
    for recipe in dict.fromkeys(run.recipe for run in runs):
        own = [run for run in runs if run.recipe is recipe and not run.record["failure"]]
        figure, path = recipe.figures[0], choice_file(folder, recipe)
        choice = decoding_choice.read_choice(path, settings)
        if choice is None:
            values = {run.name: compared_values(run, figure) for run in own}
            scores = {name: by_setting for name, by_setting in values.items() if by_setting}
            if not scores:
                continue  # all runs failed
            choice = decoding_choice.choose(settings, scores, figure.name)
            decoding_choice.write_choice(path, choice)
            log(f"{recipe.name}: {decoding_choice.choice_text(choice)}")
        for run in own:
            validation = run.record["compared"][decoding_choice.label(choice["chosen"])]
            evaluations = run.record["evaluations"] | {"validation": validation}
            run.save(decoding=choice["chosen"], evaluations=evaluations)


def compared_values(run: Run, figure: Figure) -> dict[str, float]:
    """The figure of a run on the validation set, by the label of a setting."""
    values = {name: figure.value(scores) for name, scores in run.record["compared"].items()}
    return {name: value for name, value in values.items() if value is not None}


def train_all(folder: Path, runs: Sequence[Run], options: argparse.Namespace) -> bool:
    """Train and evaluate what is not finished; False if it was stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` stops it as Ctrl-C does
    lock = RunLock(folder)
    lock.acquire()
    try:
        runner = Runner(options.jobs, lambda: write_table(folder, options, runs))
        todo = [run for run in runs if run.missing]
        if options.settings:
            if not runner.run_all(todo, options.settings):
                return False
            choose_settings(folder, todo, options.settings)
            todo = [run for run in todo if not run.record["failure"]]
        return runner.run_all(todo)
    finally:
        lock.release()


def write_table(folder: Path, options: argparse.Namespace, runs: Sequence[Run]) -> str:
    """Write the results of these recipes and of all others that are in the folder; return the table."""
    all_runs = every_run(folder, options)  # their records as they are now
    shown = {run.recipe for run in runs} | {run.recipe for run in all_runs if run.file.is_file()}
    return write_results(folder, [run for run in all_runs if run.recipe in shown])


def main(argv: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv)
    folder = options.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    runs = chosen(folder, options)
    completed = True
    if not options.table:
        check_overrides(runs, options.set)
        check_choices(folder, runs, options.settings)
        completed = train_all(folder, runs, options)
    print(write_table(folder, options, runs), end="")
    return 130 if not completed else int(any(run.record["failure"] for run in runs))


if __name__ == "__main__":
    command.run(main)
