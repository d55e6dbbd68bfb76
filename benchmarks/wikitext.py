"""Settings of the recipe wikitext-2 side by side on one GPU: python -m benchmarks.wikitext [NAME …]

    python -m benchmarks.wikitext                                      # all of CANDIDATES
    python -m benchmarks.wikitext onecycle penalties --steps 4000      # a shorter comparison of two
    python -m benchmarks.wikitext --table                              # train nothing, print the table
    python -m benchmarks.wikitext onecycle --test                      # test perplexity of the chosen one

Every candidate is a process, `regard train wikitext-2 KEY=VALUE … --run OUT/NAME`; its output is in
OUT/NAME.log. Training and validation text are given as files, so training does not read the test set; only
--test does. The table has validation perplexities. Ctrl-C and SIGTERM save the runs, and the same command
resumes them. Without CUDA MPS (`nvidia-cuda-mps-control -d`), processes take turns on a GPU. --tiny trains
tiny models on made-up text, on the CPU in some seconds. Needs wikitext-2 in the folder REGARD_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import command, machine
from benchmarks.peers.process import ROOT, log
from benchmarks.peers.tables import NONE, markdown_table
from regard.data import corpora
from regard.errors import OptionError
from regard.files.atomic import write_file
from regard.files.lock import RunLock
from regard.training.run_log import read_log
from regard.version import __version__

REPORT_EVERY = 60.0  # seconds between two reports of progress
STEPS = 13000  # 70 epochs, 7.2 minutes alone on an H200
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Candidate:
    """A setting: what changes in the recipe, and the share of the steps that is warmup."""

    about: str
    overrides: tuple[str, ...]
    warmup: float | None = None  # None: as the recipe

    def arguments(self, steps: int) -> list[str]:
        """The overrides of `regard train wikitext-2` for a run of this length."""
        warmup = [] if self.warmup is None else [f"schedule.warmup={max(1, round(self.warmup * steps))}"]
        return [f"training.steps={steps}", *warmup, *self.overrides]


# One cycle (Smith & Topin 2019): a long warmup, then cosine to almost 0; with strong weight decay.
ONE_CYCLE = (
    "optimizer.lr=0.005",
    "optimizer.betas=[0.8, 0.99]",
    "optimizer.weight_decay=0.1",
    "schedule.floor=0.00000005",
)
TABLE = ("optimizer.decay_embeddings=true",)  # the table is also the output layer
PENALTIES = ("model.decoder.activation_penalty=2.0", "model.decoder.temporal_penalty=1.0")
# AWD-LSTM's dropouts, where they differ from the recipe's.
AWD_DROPOUTS = ("model.decoder.dropout_input=0.65", "model.decoder.dropout_weight=0.5")
FLOAT32 = ("training.precision=float32",)  # an LSTM keeps its cells in the precision of its weights
CANDIDATES = {  # the most promising first
    "onecycle": Candidate("one cycle, weight decay of all matrices", (*ONE_CYCLE, *TABLE), 0.28),
    "float32": Candidate("the same in float32", (*ONE_CYCLE, *TABLE, *FLOAT32), 0.28),
    "awd": Candidate(
        "float32, penalties, AWD-LSTM's dropouts",
        (*ONE_CYCLE, *TABLE, *FLOAT32, *PENALTIES, *AWD_DROPOUTS),
        0.28,
    ),
    "penalties": Candidate("one cycle, penalties", (*ONE_CYCLE, *TABLE, *PENALTIES), 0.28),
    "matrices": Candidate("one cycle, no weight decay of the table", ONE_CYCLE, 0.28),
}
TINY_STEPS = 4
TINY = (
    "training.device=cpu", "training.precision=float32", "training.validate_every=2", "training.log_every=1",
    "schedule.warmup=1", "model.dim=8", "model.decoder.width=8", "model.decoder.last_width=8",
    "batch.length=5", "batch.sentences=4",
)  # fmt: skip


class Run:
    """A candidate and the files of its training."""

    def __init__(self, name: str, out: Path, overrides: list[str]) -> None:
        self.name, self.candidate, self.overrides = name, CANDIDATES[name], overrides
        self.folder, self.output = out / name, out / f"{name}.log"
        self.report, self.scores = self.folder / "report.json", out / f"{name}-test.json"

    def arguments(self, text: dict[str, Path]) -> list[str]:
        """The arguments of `regard` that train the run, or resume it if it has a checkpoint."""
        if any((self.folder / "checkpoints").glob("step-*")):
            return ["resume", str(self.folder)]
        files = [f"data.{split}=[{text[split]}]" for split in ("train", "validation")]
        overrides = ["data.corpus=null", *files, *self.overrides]
        return ["train", "wikitext-2", *overrides, "--run", str(self.folder), "--overwrite"]

    def entries(self, event: str) -> list[dict[str, Any]]:
        """The lines of the training log of one kind."""
        return [entry for entry in read_log(self.folder / "log.jsonl") if entry["event"] == event]

    def last_line(self) -> str:
        """The last line of the output."""
        text = self.output.read_text(encoding="utf-8", errors="replace") if self.output.is_file() else ""
        return (text.strip() or "no output").split("\n")[-1].strip()[:200]

    def row(self) -> list[str]:
        """The line of the table."""
        training, validations = self.entries("train"), self.entries("validation")
        losses = [f"{training[-1][key]:.2f}" for key in ("loss", "nll")] if training else [NONE, NONE]
        scores = [entry["perplexity"] for entry in validations]
        shown = [f"{min(scores):.2f}", f"{scores[-1]:.2f}"] if scores else [NONE, NONE]
        last = max([*training, *validations], key=lambda entry: entry["step"], default={})
        minutes = f"{last['seconds'] / 60:.1f}" if last else NONE
        test = json.loads(self.scores.read_text(encoding="utf-8"))["perplexity"] if self.is_tested else None
        return [
            f"`{self.name}`", self.candidate.about, f"{last.get('step', 0):,}", *losses, *shown,
            NONE if test is None else f"{test:.2f}", minutes,
        ]  # fmt: skip

    @property
    def is_tested(self) -> bool:
        return self.scores.is_file()


def table(runs: Sequence[Run]) -> str:
    """All runs; loss is that of training with dropout and penalties, nll without the penalties."""
    header = ["candidate", "setting", "steps", "training loss", "nll"]
    header += ["validation perplexity, best", "last", "test", "minutes"]
    return "\n".join(markdown_table(header, [run.row() for run in runs])) + "\n"


def start(run: Run, arguments: list[str], stdout: int | None = None) -> subprocess.Popen[bytes]:
    """Start `regard` in a session of its own, so that Ctrl-C reaches it through this process only."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with run.output.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "regard", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": paths},
        )


def train(runs: Sequence[Run], text: dict[str, Path]) -> bool:
    """Train the runs that are not finished, all at once; False if it was stopped."""
    processes = {run: start(run, run.arguments(text)) for run in runs if not run.report.is_file()}
    try:
        reported = time.monotonic()
        while any(process.poll() is None for process in processes.values()):
            time.sleep(0.2)
            if time.monotonic() - reported > REPORT_EVERY:
                reported = time.monotonic()
                log(table(runs))
    except KeyboardInterrupt:
        log("stopping: the runs save a checkpoint first")
        for process in processes.values():
            process.send_signal(signal.SIGINT)
        for process in processes.values():
            process.wait()
        return False
    for run, process in processes.items():
        if process.returncode:
            log(f"{run.name} failed: {run.last_line()} (exit code {process.returncode}; see {run.output})")
    return True


def test(run: Run, text: Path, device: str) -> None:
    """Score a trained run on the test set, once."""
    if not run.report.is_file():
        raise OptionError(f"{run.name} is not trained yet; train it first, without --test")
    if run.is_tested:
        return
    arguments = ["evaluate", str(run.folder), "--data", str(text), "--device", device, "--json"]
    process = start(run, arguments, stdout=subprocess.PIPE)
    output, _ = process.communicate()
    if process.returncode:
        raise OptionError(f"{run.name} could not be scored: {run.last_line()} (see {run.output})")
    write_file(run.scores, json.dumps(json.loads(output)["scores"]) + "\n")


def tiny_text(folder: Path) -> dict[str, Path]:
    """Some lines of random words for each split."""
    draw = random.Random(1)
    paths = {split: folder / f"{split}.txt" for split in SPLITS}
    for path in paths.values():
        lines = (" ".join(draw.choices(["the", "cat", "sat", "on", "a", "mat"], k=8)) for _ in range(30))
        write_file(path, "".join(f"{line}\n" for line in lines))
    return paths


def corpus_text() -> dict[str, Path]:
    """The files of WikiText-2."""
    corpus = corpora.find("wikitext-2")
    return {split: corpus.files(corpus.roles[split])[0] for split in SPLITS}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.wikitext", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CANDIDATES)}; default: all")
    parser.add_argument("--steps", type=int, help=f"steps of each run; default: {STEPS}")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/wikitext"), help="default: runs/wikitext")
    parser.add_argument("--table", action="store_true", help="train nothing, print the table")
    parser.add_argument("--test", action="store_true", help="train nothing, score one run on the test set")
    parser.add_argument("--tiny", action="store_true", help="tiny models on made-up text, on the CPU")
    options = parser.parse_args(argv)
    if unknown := sorted(set(options.names) - set(CANDIDATES)):
        parser.error(f"no candidate {unknown[0]}; choose from {', '.join(CANDIDATES)}")
    if options.test and len(options.names) != 1:
        parser.error("--test scores the candidate that was chosen on the validation set; name one")
    options.steps = options.steps or (TINY_STEPS if options.tiny else STEPS)
    options.names = options.names or list(CANDIDATES)
    return options


def make_runs(options: argparse.Namespace, out: Path) -> list[Run]:
    """The runs of the candidates; raise OptionError if a finished one had other settings."""
    threads = max(1, (os.cpu_count() or 1) // len(CANDIDATES))
    same = [f"seed={options.seed}", f"training.threads={threads}", *(TINY if options.tiny else ())]
    runs = []
    for name in options.names:
        run = Run(name, out, [*CANDIDATES[name].arguments(options.steps), *same])
        steps = json.loads(run.report.read_text(encoding="utf-8"))["steps"] if run.report.is_file() else None
        if steps not in (None, options.steps) and not (options.table or options.test):
            raise OptionError(
                f"{run.folder} was trained for {steps} steps; give --steps {steps}, or another --out"
            )
        runs.append(run)
    return runs


def main(argv: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv)
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    runs, completed = make_runs(options, out), True
    text = tiny_text(out) if options.tiny else corpus_text()
    if options.test:
        test(runs[0], text["test"], "cpu" if options.tiny else "auto")
    elif not options.table:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` stops it as Ctrl-C does
        lock = RunLock(out)
        lock.acquire()
        try:
            completed = train(runs, text)
        finally:
            lock.release()
    print(f"regard {__version__}, {machine.today()}\n\n{table(runs)}", end="")
    return 130 if not completed else int(not all(run.report.is_file() for run in runs))


if __name__ == "__main__":
    command.run(main)
