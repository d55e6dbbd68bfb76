"""Word alignment by the attention of translators trained on Europarl, scored against gold links.

    python -m benchmarks.align fr --folder runs/align      Hansards, English-French
    python -m benchmarks.align de --folder runs/align      Europarl, English-German

One command per language: it writes Europarl in the spelling of the gold text, trains a translator in each
direction, both at the same time, chooses layers, steps and the way to join on the trial set, trains an
alignment head for each direction on links of the chosen attention (SHIFT-AET, Chen et al. 2020), chooses
again, and scores the choice once on the test set. Everything finished is kept in the folder: run the command
again to resume. About eight minutes on an H200 with the defaults; `--tiny` is a small run on a CPU that
checks every part and aligns nothing well.

The English-German gold has no trial set. The command chooses on each half of its 100 pairs and scores the
other half, so every pair is scored by a choice that did not see it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import regard
from benchmarks.peers import command, machine
from regard.attention.devices import pick_device
from regard.data.corpora import data_folder
from regard.data.text_files import lines
from regard.errors import DataError, RegardError
from regard.evaluation.alignment import AlignmentScore, Gold, read_gold, score
from regard.evaluation.alignment_choice import AlignmentChoice, Weights, choose_alignment, layer_weights
from regard.files.atomic import atomic_path, write_file
from regard.models.translator import Translator
from regard.pipelines.align import View, align_words
from regard.pipelines.alignment_head import AlignmentHead, HeadTraining, train_alignment_head
from regard.pipelines.word_links import Links, flipped

WORKERS = min(8, os.cpu_count() or 1)
TOKENS = re.compile(
    r"\d+(?:[.,]\d+)+|\b(?:mr|mrs|ms|dr|hon|st|m)\.|aujourd'|'s\b|\w+|--|\.\.\.|[^\w\s]", re.IGNORECASE
)
HYPHENATED = re.compile(r"'s\b|\w+(?:-\w+)*|[^\w\s]")  # the English-German gold keeps eu-haushalts
FRENCH = (
    (re.compile(r"\bs'(?=ils?\b)", re.IGNORECASE), "si "),
    (re.compile(r"\b((?:jus|lors|puis|quoi|quel)?qu|[cdjlmnst])'(?=\w)", re.IGNORECASE), r"\1e "),
    (re.compile(r"\bdu\b", re.IGNORECASE), "de le"),
    (re.compile(r"\bdes\b", re.IGNORECASE), "de les"),
    (re.compile(r"\bau\b", re.IGNORECASE), "à le"),
    (re.compile(r"\baux\b", re.IGNORECASE), "à les"),
)
TINY = (
    "model.dim=32", "model.encoder.layers=2", "model.decoder.layers=2", "model.encoder.heads=2",
    "model.decoder.heads=2", "model.encoder.inner=64", "model.decoder.inner=64", "data.limit=300",
    "data.max_length=24", "tokenizer.size=400", "batch.tokens=1024", "training.steps=8", "schedule.warmup=4",
    "training.minutes=null", "training.validate_every=8", "training.save_every=8", "training.graph=false",
    "training.precision=float32", "training.device=cpu", "decoding.beam=1", "decoding.max_length=4",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A language pair: English and another language."""

    language: str
    corpus: str
    gold: str
    trial: str | None  # name of the trial set's files; None: halves of the test set
    links: str  # ending of the files of gold links
    base: int
    flip: bool  # gold links have the English word second

    def read(self, split: str) -> tuple[list[str], list[str], list[Gold]]:
        """English texts, the others, and gold links (English word, other word)."""
        folder = corpus_folder(self.gold)
        english, other = (
            [line for block in lines(folder / f"{split}.{x}.gz") for line in block]
            for x in ("en", self.language)
        )
        gold = read_gold(folder / f"{split}.{self.links}.gz", base=self.base, flip=self.flip)
        return english, other, gold


TASKS = {
    "fr": Task("fr", "europarl-en-fr", "align-hansards-en-fr", "dev", "talp", 1, False),
    "de": Task("de", "europarl-en-de", "align-europarl-de-en", None, "de-en.wa", 0, True),
}


def as_in_gold(text: str, language: str, task: str) -> str:
    """A sentence in the spelling and tokenisation of the gold text of a task."""
    text = text.replace("’", "'")
    for pattern, replacement in FRENCH if language == "fr" else ():
        text = pattern.sub(replacement, text)
    return " ".join((HYPHENATED if task == "de" else TOKENS).findall(text))


def corpus_folder(name: str) -> Path:
    folder = data_folder() / name
    if not folder.is_dir():
        raise DataError(
            f"there is no {name} in {data_folder()}; let REGARD_DATA name the folder of the corpora"
        )
    return folder


def write_text(task: Task, folder: Path, limit: int | None) -> None:
    """Write Europarl's training and development text in the spelling of the gold text, unless it is there."""
    for split in ("train", "dev"):
        for language in ("en", task.language):
            path = folder / f"{split}.{language}"
            if path.is_file():
                continue
            say(f"writing {path}")
            with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
                written = 0
                for block in lines(corpus_folder(task.corpus) / f"{split}.{language}.xz"):
                    block = block if limit is None else block[: limit - written]
                    file.writelines(f"{as_in_gold(line, language, task.language)}\n" for line in block)
                    written += len(block)
                    if written == limit:
                        break


def all_as_in_gold(rows: Iterable[str], language: str, task: str) -> list[str]:
    """Sentences in the spelling of the gold text, lower-cased, by several processes."""
    rows = iter(rows)
    blocks = iter(lambda: list(islice(rows, 10_000)), [])
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        return [
            line
            for block in pool.map(partial(_spell, language=language, task=task), blocks)
            for line in block
        ]


def _spell(block: list[str], language: str, task: str) -> list[str]:
    return [as_in_gold(line, language, task).lower() for line in block]


def gold_pairs(task: Task) -> list[tuple[str, str]]:
    """The texts of the trial and the test set, lower-cased."""
    splits = ("test",) if task.trial is None else (task.trial, "test")
    texts = [task.read(split)[:2] for split in splits]
    return [(english.lower(), other.lower()) for pair in texts for english, other in zip(*pair, strict=True)]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def train_both(task: Task, folder: Path, minutes: float, changes: Sequence[str]) -> list[Path]:
    """Train or resume a translator in each direction, at the same time; return their run folders."""
    runs, processes = [], []
    for source, target in (("en", task.language), (task.language, "en")):
        run = folder / f"{source}-{target}"
        runs.append(run)
        if (run / "model" / "config.json").is_file():
            say(f"{run} is trained")
            continue
        arguments = [sys.executable, "-m", "regard", "resume", str(run)]
        if not (run / "recipe.yaml").is_file():
            files = {key: [[str(folder / f"{name}.{x}") for x in (source, target)]] for key, name in
                     (("train", "train"), ("validation", "dev"))}  # fmt: skip
            arguments = [sys.executable, "-m", "regard", "train", "europarl-en-fr", "--run", str(run)]
            arguments += [f"data.source={source}", f"data.target={target}", "data.corpus=null"]
            arguments += [f"data.{key}={json.dumps(value)}" for key, value in files.items()]
            arguments += [
                "tokenizer.lowercase=true",
                f"training.minutes={minutes}",
                "decoding.beam=1",
                *changes,
            ]
        say(f"training {source}-{target}, log in {run}.log")
        log = run.with_suffix(".log").open("ab")
        processes.append((run, subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT)))
    while any(process.poll() is None for _, process in processes):
        time.sleep(10)
        for run, _ in processes:
            written = run.with_suffix(".log").read_text(encoding="utf-8", errors="replace").splitlines()
            say(f"{run.name}: {written[-1] if written else 'starting'}")
    for run, process in processes:
        if process.returncode:
            raise RegardError(f"training in {run} ended with code {process.returncode}; see {run}.log")
    return runs


@dataclass(frozen=True)
class Direction:
    """A translator, and the sides of its texts: 0 is English, 1 the other language."""

    model: Translator
    source: int
    head: AlignmentHead | None = None

    def sides(self, texts: Sequence[list[str]]) -> tuple[list[str], list[str]]:
        return texts[self.source], texts[1 - self.source]

    def weights(self, texts: Sequence[list[str]]) -> dict[str, Weights]:
        """The weights between words by every layer and step, and by the learned head."""
        sources, targets = self.sides(texts)
        weights = layer_weights(sources, targets, self.model)
        if self.head is not None:
            by_head = dict(self.head.align_words(sources, targets, self.model))
            weights["learned head"] = [by_head[i].weights for i in range(len(sources))]
        return weights


def train_heads(
    directions: list[Direction], choice: AlignmentChoice, folder: Path, pairs: int, steps: int
) -> list[Direction]:
    """Align training pairs by the chosen attention, train a head for each direction on these links, or load
    the heads of an earlier run; return the directions with their heads.
    """
    files = [folder / f"{direction.source}.head.safetensors" for direction in directions]
    if not all(file.is_file() for file in files):
        english, other = (_short_sentences(folder, language, pairs) for language in _languages(folder))
        say(f"aligning {len(english):,} training pairs")
        views = [_view(choice.forward), _view(choice.backward)]
        weights = [
            dict(align_words(*direction.sides((english, other)), direction.model, view))
            for direction, view in zip(directions, views, strict=True)
        ]
        links = [
            choice.selection.joined(weights[0][i].weights, weights[1][i].weights) for i in range(len(english))
        ]
        for direction, file in zip(directions, files, strict=True):
            own = links if direction.source == 0 else [flipped(pair) for pair in links]
            _train_head(direction, (english, other), own, steps, file)
    heads = [
        AlignmentHead.load(file, direction.model) for file, direction in zip(files, directions, strict=True)
    ]
    return [Direction(d.model, d.source, head) for d, head in zip(directions, heads, strict=True)]


def _train_head(
    direction: Direction, texts: Sequence[list[str]], links: list[Links], steps: int, file: Path
) -> None:
    say(f"training the head of the translator {'from' if direction.source == 0 else 'into'} English")
    report = lambda step, loss: say(f"head, step {step}: loss {loss:.3f}") if step % 100 == 0 else None  # noqa: E731
    head = train_alignment_head(direction.model, *direction.sides(texts), links, HeadTraining(steps), report)
    head.save(file)


def _languages(folder: Path) -> tuple[str, str]:
    return "en", next(
        task.language for task in TASKS.values() if (folder / f"train.{task.language}").is_file()
    )


def _short_sentences(folder: Path, language: str, count: int) -> list[str]:
    """One language of the first training pairs with at most 40 words on each side."""
    columns = []
    for name in _languages(folder):
        block = (line for part in lines(folder / f"train.{name}") for line in part)
        columns.append([line for line, _ in zip(block, range(4 * count), strict=False)])
    keep = [
        i for i, pair in enumerate(zip(*columns, strict=True)) if all(0 < len(x.split()) <= 40 for x in pair)
    ]
    column = columns[_languages(folder).index(language)]
    return [column[i] for i in keep[:count]]


def _view(name: str) -> View:
    layer, step = re.fullmatch(r"layer (\d+), (\w+)", name).groups()  # type: ignore[union-attr]
    return View(int(layer), shift=step == "reads")


def score_halves(texts: Any, gold: list[Gold], directions: list[Direction]) -> tuple[list[Links], list[str]]:
    """The links of every pair by a choice on the other half, and descriptions of the two choices."""
    half = len(gold) // 2
    weights = [direction.weights(texts) for direction in directions]
    links: list[Links] = []
    choices = []
    for chosen_on, scored in ((slice(half, None), slice(0, half)), (slice(0, half), slice(half, None))):
        part = [{name: w[chosen_on] for name, w in side.items()} for side in weights]
        choice = choose_alignment(part[0], part[1], gold[chosen_on])
        choices.append(f"{choice} ({100 * choice.score.aer:.1f} on its half)")
        rest = [{name: w[scored] for name, w in side.items()} for side in weights]
        links += choice.links(rest[0], rest[1])
    return links, choices


def evaluate(task: Task, directions: list[Direction]) -> tuple[AlignmentScore, str]:
    """The score of the test set, and how it was chosen."""
    english, other, gold = task.read("test")
    if task.trial is None:
        links, choices = score_halves((english, other), gold, directions)
        return score(links, gold), "; ".join(choices)
    choice = choose(task, directions)
    weights = [direction.weights((english, other)) for direction in directions]
    return score(
        choice.links(weights[0], weights[1]), gold
    ), f"{choice} ({100 * choice.score.aer:.1f} on the trial set)"


def choose(task: Task, directions: list[Direction], attention_only: bool = False) -> AlignmentChoice:
    """The choice on the trial set; without one, on the first half of the test set."""
    english, other, gold = task.read(task.trial or "test")
    count = len(gold) if task.trial else len(gold) // 2
    texts = (english[:count], other[:count])
    weights = [direction.weights(texts) for direction in directions]
    if attention_only:
        weights = [{name: w for name, w in side.items() if name != "learned head"} for side in weights]
    return choose_alignment(weights[0], weights[1], gold[:count])


def run(task: Task, options: argparse.Namespace) -> str:
    folder = options.folder / task.language
    folder.mkdir(parents=True, exist_ok=True)
    write_text(task, folder, 600 if options.tiny else None)
    runs = train_both(task, folder, options.minutes, TINY if options.tiny else ())
    device = pick_device("cpu" if options.tiny else "auto")
    directions = [Direction(regard.load(path, device), i) for i, path in enumerate(runs)]
    rows = []
    say("choosing layers")
    result, how = evaluate(task, directions)
    rows.append(("attention", result, how))
    # Without a trial set, the attention that a head learns from is chosen on pairs that are scored later. No
    # gold link reaches the head, only a layer and a way to join.
    choice = choose(task, directions, attention_only=True)
    pairs, steps = (50, 10) if options.tiny else (options.pairs, options.steps)
    directions = train_heads(directions, choice, folder, pairs, steps)
    result, how = evaluate(task, directions)
    rows.append(("attention and learned heads", result, how))
    table = ["| links by | AER | precision | recall | chosen |", "|---|---|---|---|---|"]
    for name, result, how in rows:
        scores = " | ".join(f"{100 * x:.1f}" for x in (result.aer, result.precision, result.recall))
        table.append(f"| {name} | {scores} | {how} |")
    text = "\n".join(table)
    write_file(folder / "result.md", text + "\n")
    return text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.align", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("language", choices=list(TASKS), help="fr: Hansards; de: Europarl")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/align"), help="folder of texts, runs and result"
    )
    parser.add_argument("--minutes", type=float, default=4.8, help="training of both directions")
    parser.add_argument("--pairs", type=int, default=10_000, help="training pairs of the alignment heads")
    parser.add_argument("--steps", type=int, default=400, help="training steps of the alignment heads")
    parser.add_argument("--tiny", action="store_true", help="a small run on a CPU that checks every part")
    options = parser.parse_args(argv)
    print(machine.stamp(), flush=True)
    print(run(TASKS[options.language], options))
    return 0


if __name__ == "__main__":
    command.run(main)
