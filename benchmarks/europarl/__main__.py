"""Transformer base on Europarl en-de beside Hugging Face Marian: python -m benchmarks.europarl [STEP …]

Trains the recipe transformer-base with regard and a MarianMTModel of the same size with Hugging Face's
Seq2SeqTrainer, each for the same minutes on one GPU, with the same tokenizer, rows, batches, learning rate
and label smoothing. Then scores cased BLEU on the test set of Europarl, newstest2013 and newstest2014 with
the same beam, tests the differences, and writes benchmarks/results/europarl-base.json with steps, tokens and
training FLOPs. `scores.COUNTED` says what counts as training time; tokenizing does not.

Steps, each of less than 10 minutes by default; all of them without arguments:
    prepare   train the tokenizer and encode the rows
    regard    train or resume regard
    marian    train or resume Marian
    score     translate, score and compare what is trained

A finished step returns at once. `--tiny` runs everything with a tiny model on a bundled corpus: a minute on a
CPU. Needs europarl-en-de and wmt-newstest in REGARD_DATA, and transformers and accelerate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.europarl import marian, scores
from benchmarks.europarl.experiment import RECIPE, Experiment
from benchmarks.peers import command, machine
from regard.attention.devices import pick_device
from regard.files.atomic import write_file
from regard.training.trainer import resume, train
from regard.version import __version__

RESULTS = Path(__file__).parents[1] / "results"
STEPS = ("prepare", "regard", "marian", "score")
RECORDED = (
    *("steps", "tokens", "source_tokens", "sentences", "flops", "seconds", "tokens_per_second"),
    *("parameters", "peak_memory", "averaged_steps"),
)


def train_regard(experiment: Experiment) -> bool:
    """Train by the recipe, or resume; False if it was interrupted."""
    folder = experiment.folder / "regard"
    if (folder / "recipe.yaml").is_file():
        result = resume(folder, overrides=[f"training.minutes={experiment.minutes}"])
    else:
        result = train(RECIPE, folder=folder, overrides=experiment.overrides)
    if result.finished:
        record = {key: result.report[key] for key in RECORDED}
        experiment.write("regard", {"name": f"regard {__version__}", **record})
    return result.finished


def run_step(step: str, experiment: Experiment, options: argparse.Namespace) -> bool:
    """Run a step; False if it was interrupted."""
    if step in ("regard", "marian") and experiment.read(step) is not None:
        return True
    if step == "prepare":
        corpus = experiment.corpus
        print(f"{corpus.train.rows:,} pairs, {experiment.vocabulary:,} tokens", flush=True)
    elif step == "regard":
        return train_regard(experiment)
    elif step == "marian":
        experiment.write("marian", marian.train(experiment, options.compile and not experiment.tiny))
    else:
        write_log(experiment, options)
    return True


def write_log(experiment: Experiment, options: argparse.Namespace) -> None:
    """Score, write the log and the translations, print the table."""
    is_cuda = pick_device(experiment.recipe.training.device).type == "cuda"
    device = torch.cuda.get_device_name() if is_cuda else machine.cpu_name()
    log: dict[str, Any] = {
        "command": command.command_line("benchmarks.europarl", options.arguments),
        "regard": __version__, "torch": torch.__version__, "date": machine.today(), "device": device,
        "recipe": RECIPE, "overrides": experiment.overrides, "minutes": experiment.minutes,
        **scores.score(experiment, device),
    }  # fmt: skip
    write_file(options.out, json.dumps(log, indent=1, ensure_ascii=False) + "\n")
    scores.keep_translations(experiment, log, options.out.with_suffix(".tsv.xz"))
    print("\n" + scores.markdown(log), flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.europarl", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)}; default: all")
    parser.add_argument("--minutes", type=float, help="of training for each system (default 9, --tiny 0.05)")
    parser.add_argument("--lines", type=int, help="first lines of each test set; default: all")
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="Marian without torch.compile"
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of the recipe, for both systems"
    )
    parser.add_argument("--runs", type=Path, default=Path("build/europarl"), help="folder of the models")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/europarl-base.json")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU; the log is in --runs")
    arguments = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(arguments, argparse.Namespace(arguments=arguments))
    for step in options.steps:
        if step not in STEPS:
            parser.error(f"STEP must be one of {', '.join(STEPS)}, got {step!r}")
    if options.minutes is None:
        options.minutes = 0.05 if options.tiny else 9.0
    options.runs = options.runs / "tiny" if options.tiny else options.runs
    options.out = options.out or (options.runs if options.tiny else RESULTS) / "europarl-base.json"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.runs.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(options.runs, options.minutes, options.tiny, options.lines, tuple(options.set))
    for step in options.steps or STEPS:
        start = time.monotonic()
        if not run_step(step, experiment, options):
            print(f"step {step}: interrupted; run the command again to resume", flush=True)
            return 1
        print(f"step {step}: {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    command.run(main)
