"""Word alignment by the attention of translators trained on Europarl, scored against gold links.

    python -m benchmarks.align fr      Hansards, English-French
    python -m benchmarks.align de      Europarl, English-German

One command per language: it writes Europarl in the spelling of the gold text, trains a translator in each
direction, both at the same time, chooses layers, steps and the way to join on the trial set, trains alignment
heads on links of the chosen attention, one for each direction (SHIFT-AET, Chen et al. 2020) and one that sees
the states of both translators (joint_alignment.py), chooses again, scores the test set, and writes
benchmarks/results/align-LANGUAGE.json. Everything finished is kept in the folder: run the command again to
resume. benchmarks/README.md has the minutes on an H200; `--tiny` is a small run on a CPU that checks every
part and aligns nothing well. The weights between the words of trial and test set are stored in weights.npz;
`--weights NPZ` chooses and scores them again without a model.

The gold text without its links is part of the training text, as it is for the published aligners (the scripts
of lilt/alignment-scripts train on "plustest"): an aligner is given the pairs that it aligns. `--without-gold`
leaves it out.

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

import numpy as np
import torch

import regard
from benchmarks.peers import machine
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
from regard.pipelines.joint_alignment import JointAlignmentHead, train_joint_head
from regard.pipelines.word_links import Links, flipped
from regard.version import __version__

RESULTS = Path(__file__).parent / "results"
WORKERS = min(8, os.cpu_count() or 1)
MAX_WORDS = 100
COPIES = 5  # of the gold text in the training text: 0.4 % of the pairs
HEAD, JOINT, MEAN = "learned head", "joint head", "mean of attention and heads"  # names of weights
KINDS = {"attention": None, "heads": HEAD, "joint head": JOINT, "attention and heads": MEAN}

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


def write_text(task: Task, folder: Path, limit: int | None, copies: int = COPIES) -> None:
    """Write Europarl's training and development text in the spelling of the gold text, unless it is there.

    The training text starts with copies of the gold text, without links, and has no pair of more than
    MAX_WORDS words.
    """
    if (folder / f"dev.{task.language}").is_file():  # the last one
        return
    for split in ("train", "dev"):
        say(f"writing {folder / split}")
        columns = []
        for language in ("en", task.language):
            blocks = lines(corpus_folder(task.corpus) / f"{split}.{language}.xz")
            rows = islice((line for block in blocks for line in block), limit)
            columns.append(all_as_in_gold(rows, language, task.language))
        pairs = list(zip(*columns, strict=True))
        if split == "train":
            pairs = [pair for pair in pairs if all(0 < len(line.split()) <= MAX_WORDS for line in pair)]
            pairs = gold_pairs(task) * copies + pairs
        for language, column in zip(("en", task.language), zip(*pairs, strict=True), strict=True):
            write_file(folder / f"{split}.{language}", "".join(f"{line}\n" for line in column))


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
    """The texts of the trial and the test set, lower-cased as the training text."""
    splits = ("test",) if task.trial is None else (task.trial, "test")
    texts = [task.read(split)[:2] for split in splits]
    return [(english.lower(), other.lower()) for pair in texts for english, other in zip(*pair, strict=True)]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def is_finished(run: Path) -> bool:
    """Whether training came to its end; an interrupted run is resumed."""
    report = run / "report.json"
    return report.is_file() and json.loads(report.read_text(encoding="utf-8"))["finished"]


def train_both(task: Task, folder: Path, minutes: float, changes: Sequence[str]) -> list[Path]:
    """Train or resume a translator in each direction, at the same time; return their run folders."""
    runs, processes = [], []
    for source, target in (("en", task.language), (task.language, "en")):
        run = folder / f"{source}-{target}"
        runs.append(run)
        if is_finished(run):
            say(f"{run} is trained")
            continue
        command = [sys.executable, "-m", "regard", "resume", str(run)]
        if not (run / "recipe.yaml").is_file():
            files = {key: [[str(folder / f"{name}.{x}") for x in (source, target)]] for key, name in
                     (("train", "train"), ("validation", "dev"))}  # fmt: skip
            command = [sys.executable, "-m", "regard", "train", "europarl-en-fr", "--run", str(run)]
            command += [f"data.source={source}", f"data.target={target}", "data.corpus=null"]
            command += [f"data.{key}={json.dumps(value)}" for key, value in files.items()]
            command += [
                "tokenizer.lowercase=true",
                f"training.minutes={minutes}",
                "decoding.beam=1",
                *changes,
            ]
        say(f"training {source}-{target}, log in {run}.log")
        log = run.with_suffix(".log").open("ab")
        processes.append((run, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)))
    while any(process.poll() is None for _, process in processes):
        time.sleep(0.5 if changes else 10)
        for run, _ in processes:
            written = run.with_suffix(".log").read_text(encoding="utf-8", errors="replace").splitlines()
            say(f"{run.name}: {written[-1] if written else 'starting'}")
    for run, process in processes:
        if process.returncode:
            raise RegardError(f"training in {run} ended with code {process.returncode}; see {run}.log")
    return runs


Named = tuple[dict[str, Weights], dict[str, Weights]]  # weights of both directions by name


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
            weights[HEAD] = [by_head[i].weights for i in range(len(sources))]
        return weights


@dataclass(frozen=True)
class Aligner:
    """Both directions, English to the other language first.

    Attributes:
        joint: the head that sees both.
        attention: the names of the weights that the heads learned from, for each direction.
    """

    directions: tuple[Direction, Direction]
    joint: JointAlignmentHead | None = None
    attention: tuple[str, str] = ("", "")

    @property
    def models(self) -> tuple[Translator, Translator]:
        return self.directions[0].model, self.directions[1].model

    def weights(self, texts: Sequence[list[str]]) -> Named:
        """The weights of each direction by name."""
        weights = self.directions[0].weights(texts), self.directions[1].weights(texts)
        if self.joint is not None:
            by_pair = {i: pair for i, *pair in self.joint.align_words(texts[0], texts[1], *self.models)}
            for side, attention in enumerate(self.attention):
                weights[side][JOINT] = [by_pair[i][side] for i in range(len(texts[0]))]
                parts = zip(*(weights[side][name] for name in (attention, HEAD, JOINT)), strict=True)
                weights[side][MEAN] = [torch.stack(part).mean(0) for part in parts]
        return weights


def train_heads(aligner: Aligner, choice: AlignmentChoice, folder: Path, pairs: int, steps: int) -> Aligner:
    """Align training pairs by the chosen attention and train the heads on these links, or load those of an
    earlier run; return the aligner with its heads.
    """
    files = [folder / f"{name}.safetensors" for name in ("head-forward", "head-backward", "head-joint")]
    if not all(file.is_file() for file in files):
        texts, options = _short_sentences(folder, pairs), HeadTraining(steps)
        links = _links(aligner, choice, texts)
        if not files[2].is_file():
            say("training head-joint")
            train_joint_head(*aligner.models, *texts, links, options, _report).save(files[2])
        for direction, file in zip(aligner.directions, files, strict=False):
            if not file.is_file():
                say(f"training {file.stem}")
                own = links if direction.source == 0 else [flipped(pair) for pair in links]
                sides = direction.sides(texts)
                train_alignment_head(direction.model, *sides, own, options, _report).save(file)
    first, second = (
        Direction(d.model, d.source, AlignmentHead.load(file, d.model))
        for d, file in zip(aligner.directions, files, strict=False)
    )
    joint = JointAlignmentHead.load(files[2], *aligner.models)
    return Aligner((first, second), joint, (choice.forward, choice.backward))


def _links(aligner: Aligner, choice: AlignmentChoice, texts: Sequence[list[str]]) -> list[Links]:
    """Links by the attention that was chosen."""
    say(f"aligning {len(texts[0]):,} training pairs")
    forward, backward = (
        dict(align_words(*direction.sides(texts), direction.model, _view(name)))
        for direction, name in zip(aligner.directions, (choice.forward, choice.backward), strict=True)
    )
    pairs = range(len(texts[0]))
    return [choice.selection.joined(forward[i].weights, backward[i].weights) for i in pairs]


def _report(step: int, loss: float) -> None:
    if step % 100 == 0:
        say(f"step {step}: loss {loss:.3f}")


def _short_sentences(folder: Path, count: int) -> tuple[list[str], list[str]]:
    """The first training pairs with at most 40 words on each side, gold text included: English, other."""
    names = ["en", next(x for x in TASKS if (folder / f"train.{x}").is_file())]
    columns = ((line for block in lines(folder / f"train.{name}") for line in block) for name in names)
    short = (pair for pair in zip(*columns, strict=True) if all(0 < len(line.split()) <= 40 for line in pair))
    english, other = zip(*islice(dict.fromkeys(short), count), strict=True)  # each pair once
    return list(english), list(other)


def _view(name: str) -> View:
    layer, step = re.fullmatch(r"layer (\d+), (\w+)", name).groups()  # type: ignore[union-attr]
    return View(int(layer), shift=step == "reads")


def chosen_from(weights: Named, kind: str) -> Named:
    """The weights of one of KINDS."""
    learned = KINDS[kind]
    is_chosen = lambda name: name == learned if learned else name not in KINDS.values()  # noqa: E731
    forward, backward = ({name: w for name, w in side.items() if is_chosen(name)} for side in weights)
    return forward, backward


def part(weights: Named, rows: slice) -> Named:
    forward, backward = ({name: w[rows] for name, w in side.items()} for side in weights)
    return forward, backward


@dataclass(frozen=True)
class Scored:
    """A test score, the error on the pairs that the choice was made on, and the choice in words."""

    name: str
    score: AlignmentScore
    trial_aer: float
    choice: str


def all_weights(task: Task, aligner: Aligner) -> dict[str, Named]:
    """The weights of the test set, and of the trial set if there is one, by split."""
    splits = ("test",) if task.trial is None else (task.trial, "test")
    return {split: aligner.weights(_lower(task.read(split)[:2])) for split in splits}


def save_weights(path: Path, weights: dict[str, Named]) -> None:
    """Store weights in half precision, the matrices of a set one after the other."""
    arrays = {
        f"{split}|{side}|{name}": torch.cat([w.flatten() for w in matrices]).numpy().astype(np.float16)
        for split, sides in weights.items()
        for side, by_name in enumerate(sides)
        for name, matrices in by_name.items()
    }
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_weights(path: Path, task: Task) -> dict[str, Named]:
    """Read weights of `save_weights`; the words of the gold text give the sizes."""
    weights: dict[str, Named] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            split, side, name = key.split("|")
            english, other, _ = task.read(split)
            sizes = [(len(b.split()), len(a.split())) for a, b in zip(english, other, strict=True)]
            flat = torch.from_numpy(arrays[key]).double()
            parts = flat.split([rows * columns for rows, columns in sizes])
            shapes = [size if side == "0" else size[::-1] for size in sizes]
            both = weights.setdefault(split, ({}, {}))
            both[int(side)][name] = [w.view(shape) for w, shape in zip(parts, shapes, strict=True)]
    return weights


def evaluate(task: Task, weights: dict[str, Named]) -> list[Scored]:
    """Choose for each kind of weights on the trial set, and score the test set."""
    test, gold = weights["test"], task.read("test")[2]
    kinds = [kind for kind in KINDS if chosen_from(test, kind)[0]]
    if task.trial is None:
        return [_score_halves(kind, chosen_from(test, kind), gold) for kind in kinds]
    trial, trial_gold = weights[task.trial], task.read(task.trial)[2]
    choices = {kind: choose_alignment(*chosen_from(trial, kind), trial_gold) for kind in kinds}
    return [
        Scored(kind, score(choice.links(*test), gold), choice.score.aer, str(choice))
        for kind, choice in choices.items()
    ]


def _score_halves(kind: str, weights: Named, gold: list[Gold]) -> Scored:
    """Every pair is scored by a choice on the other half."""
    half = len(gold) // 2
    links: list[Links] = []
    choices = []
    for chosen_on, scored in ((slice(half, None), slice(0, half)), (slice(0, half), slice(half, None))):
        choices.append(choose_alignment(*part(weights, chosen_on), gold[chosen_on]))
        links += choices[-1].links(*part(weights, scored))
    trial = sum(choice.score.aer for choice in choices) / 2
    return Scored(kind, score(links, gold), trial, "; ".join(map(str, choices)))


def choose_attention(task: Task, aligner: Aligner) -> AlignmentChoice:
    """The attention on the trial set that heads learn from; without one, on the first half of the test set.

    No gold link reaches a head, only a layer, a step and a way to join.
    """
    english, other, gold = task.read(task.trial or "test")
    count = len(gold) if task.trial else len(gold) // 2
    weights = aligner.weights(_lower((english[:count], other[:count])))
    return choose_alignment(*chosen_from(weights, "attention"), gold[:count])


def _lower(texts: Sequence[list[str]]) -> list[list[str]]:
    return [[line.lower() for line in column] for column in texts]


def run(task: Task, options: argparse.Namespace) -> str:
    """Do everything that is not done; write the log and return it as a table."""
    if options.weights is not None:
        return table(evaluate(task, load_weights(options.weights, task)))
    folder = options.folder / task.language
    folder.mkdir(parents=True, exist_ok=True)
    limit = 600 if options.tiny else options.limit
    write_text(task, folder, limit, 0 if options.without_gold else COPIES)
    runs = train_both(task, folder, options.minutes, TINY if options.tiny else ())
    device = pick_device("cpu" if options.tiny else "auto")
    first, second = (Direction(regard.load(path, device), i) for i, path in enumerate(runs))
    aligner = Aligner((first, second))
    say("choosing layers")
    pairs, steps = (50, 10) if options.tiny else (options.pairs, options.steps)
    aligner = train_heads(aligner, choose_attention(task, aligner), folder, pairs, steps)
    weights = all_weights(task, aligner)
    save_weights(folder / "weights.npz", weights)
    rows = evaluate(task, weights)
    log = {
        "command": f"python -m benchmarks.align {' '.join(options.arguments)}", "regard": __version__,
        "date": machine.today(), "device": device_name(), "seed": 1, "gold": task.gold,
        "pairs": sum(len(block) for block in lines(folder / "train.en")), "head_pairs": pairs,
        "head_steps": steps, "translators": [translator(path) for path in runs],
        "rows": [
            {"links": row.name, "trial_aer": row.trial_aer, "chosen": row.choice, **row.score.as_dict()}
            for row in rows
        ],
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(options.out, json.dumps(log, indent=1, ensure_ascii=False) + "\n")
    return table(rows)


def translator(run: Path) -> dict[str, Any]:
    """Direction, steps, minutes and validation BLEU of a run."""
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return {"direction": run.name, **{key: report[key] for key in ("steps", "seconds", "flops", "scores")}}


def table(rows: list[Scored]) -> str:
    """The scores in per cent. The row of the test score is that with the lowest trial error."""
    best = min(rows, key=lambda row: row.trial_aer)
    text = [
        "| links by | AER on the trial set | AER | precision | recall | chosen |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = (row.trial_aer, row.score.aer, row.score.precision, row.score.recall)
        name = f"**{row.name}**" if row is best else row.name
        scores = " | ".join(f"{100 * x:.1f}" for x in numbers)
        text.append(f"| {name} | {scores} | {row.choice} |")
    return "\n".join(text)


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else machine.cpu_name()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.align", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("language", choices=list(TASKS), help="fr: Hansards; de: Europarl")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/align"), help="folder of texts, runs and result"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="training of both directions")
    parser.add_argument("--limit", type=int, help="training pairs of the translators; default: all")
    parser.add_argument("--pairs", type=int, default=30_000, help="training pairs of the alignment heads")
    parser.add_argument("--steps", type=int, default=1000, help="training steps of each alignment head")
    parser.add_argument("--without-gold", action="store_true", help="leave the gold text out of training")
    parser.add_argument("--weights", type=Path, metavar="NPZ", help="choose and score stored weights, only")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/align-LANGUAGE.json")
    parser.add_argument("--tiny", action="store_true", help="a small run on a CPU that checks every part")
    arguments = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(arguments, argparse.Namespace(arguments=arguments))
    name = f"align-{options.language}.json"
    options.out = options.out or (options.folder / name if options.tiny else RESULTS / name)
    print(machine.stamp(), flush=True)
    try:
        print(run(TASKS[options.language], options))
    except RegardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
