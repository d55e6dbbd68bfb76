"""Size and quality of the bundled translator: python -m benchmarks.translator.curve [STEP …] --minutes M

Trains smaller students of the bundled translator (narrower, fewer layers, fewer tokens) on its translations
(Kim & Rush 2016), each for the same steps, and a separate model for each language pair that has half its
bytes, for half the steps: each direction is trained as much in all of them. A training ends after --minutes
in any case. Then stores them in int8 and scores BLEU on the validation sets, beside the bundled model. Writes
benchmarks/results/translator/curve-LR.json. `--jobs 7` runs seven processes side by side on one GPU. Wide and
deep models need a lower peak learning rate (--lr) and a longer warm-up.

Steps; all of them without arguments except sizes:
    sizes     print the bytes of each model with random weights: CPU
    prepare   tokenizers and encoded rows: CPU cores only
    train     train or resume, store in int8, score

`python -m benchmarks.translator.prepare build/translator/data` and the translations of diversify.py come
first. A model that is done is skipped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.peers import command, machine
from benchmarks.peers.tables import NONE, grouped, markdown_table
from benchmarks.translator import diversify, score
from benchmarks.translator.session import ROOT, START, TINY, TINY_RUN, Session, scoring_options
from regard.data.datasets import load_corpus
from regard.files.atomic import write_file
from regard.interchange.quantize import quantize_folder
from regard.models import folder as model_folder
from regard.models.build import build
from regard.recipe.loading import Recipe, load_recipe
from regard.training.trainer import resume, train

RECIPE = "tatoeba-en-de-fr"
# How often a file is read in an epoch: references, translations by the bundled model, long sentences.
ROWS = {"tatoeba": 2, "forward": 3, "europarl": 1}
RESULTS = Path("benchmarks/results/translator")
STEPS = ("sizes", "prepare", "train")
CORPORA = ("tatoeba", "europarl")  # that have validation sets
KEPT = ("parameters", "steps", "ended_by", "tokens", "flops", "seconds")  # of a report
LIMIT = 1000  # rows of each validation set
BUNDLED_VOCABULARY = 12_000


@dataclass(frozen=True)
class Student:
    """What differs from the bundled model. Heads have 64 dimensions, the decoder two layers."""

    mebibytes: float  # of the int8 folder, at most
    dim: int
    layers: int  # of the encoder
    vocabulary: int
    languages: tuple[str, ...] = ("de", "fr")  # beside English

    @property
    def share(self) -> float:
        """Of the steps: a model for one pair of languages takes half of them."""
        return len(self.languages) / 2

    @property
    def directions(self) -> list[str]:
        return [pair for language in self.languages for pair in (f"en-{language}", f"{language}-en")]

    def overrides(self) -> list[str]:
        """Changes to the recipe; a vocabulary as large as the bundled one is the bundled one."""
        sizes = f"heads: {self.dim // 64}, inner: {4 * self.dim}, norm: pre"
        languages = ", ".join(sorted(("en", *self.languages)))
        tokenizer = f"{{kind: bpe, size: {self.vocabulary}, joint: true, languages: [{languages}]}}"
        if self.vocabulary == BUNDLED_VOCABULARY:
            tokenizer = f"{{load: {json.dumps(str(START))}}}"
        return [
            f"model.dim={self.dim}",
            f"model.encoder={{kind: transformer, layers: {self.layers}, {sizes}}}",
            f"model.decoder={{kind: transformer, layers: 2, {sizes}}}",
            f"tokenizer={tokenizer}",
            "batch.multiple=4",  # fewer shapes to capture
        ]


STUDENTS = {
    "4MiB": Student(4, 192, 4, 4000),
    "8MiB": Student(8, 256, 6, 4000),
    "16MiB": Student(16, 320, 7, BUNDLED_VOCABULARY),
    "23MiB": Student(23.3, 384, 8, BUNDLED_VOCABULARY),  # the bundled one, for the same steps
    "en-de": Student(11.7, 320, 5, 7000, ("de",)),  # the two together: the bytes of the bundled one
    "en-fr": Student(11.7, 320, 5, 7000, ("fr",)),
}
BUNDLED = "bundled"  # scored as it is


@dataclass(frozen=True)
class Curve:
    """The models of the curve; records, runs and int8 folders are in the session's work folder."""

    session: Session
    steps: int  # of the models of both pairs of languages
    minutes: float  # of each training, at most
    lr: float  # at the end of the warm-up; 0 at the last step
    warmup: int

    @property
    def folder(self) -> Path:
        return self.session.work / f"curve-{self.lr:g}"

    def record(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    # Data and recipe

    def recipe(self, name: str) -> Recipe:
        return load_recipe(RECIPE, self.overrides(name))

    def overrides(self, name: str) -> list[str]:
        student, tiny = STUDENTS[name], self.session.tiny
        changed = [*self._files(student), *student.overrides(), f"training.minutes={self.minutes}"]
        changed += [f"training.steps={round(self.steps * student.share)}", "training.validate_every=6000"]
        changed += [f"optimizer.lr={self.lr}", f"schedule={{kind: cosine, warmup: {self.warmup}}}"]
        if tiny:
            changed += [*TINY, *TINY_RUN, "schedule.warmup=10"]
            changed += [] if student.vocabulary == BUNDLED_VOCABULARY else ["tokenizer.size=400"]
        return changed

    def _files(self, student: Student) -> list[str]:
        """The `data:` keys: files and validation rows in the student's directions."""
        train = [
            self.session.directions / f"{rows}.{direction}.train.tsv"
            for rows, times in ROWS.items()
            for direction in student.directions * times
        ]
        keys = {"train": train, "validation": [self._validation(student)]}
        return [
            f"data.{key}={json.dumps([str(path.absolute()) for path in paths])}"
            for key, paths in keys.items()
        ]

    def _validation(self, student: Student) -> Path:
        """The rows of validation.tsv that are in the student's directions."""
        files = self.session.directions
        if len(student.languages) > 1:
            return files / "validation.tsv"
        path = files / f"validation.{'.'.join(student.languages)}.tsv"
        if not path.is_file():
            own: set[str] = set()
            for corpus in CORPORA:
                for direction in student.directions:
                    own.update(_lines(files / f"{corpus}.{direction}.validation.tsv"))
            write_file(path, "".join(line for line in _lines(files / "validation.tsv") if line in own))
        return path

    # Steps

    def write_files(self) -> None:
        """Write the files per direction."""
        self.session.prepare()
        if not list(self.session.directions.glob("forward.*-*.train.tsv")):
            if self.session.tiny:
                self.session.diversify()
            diversify.write_forward_rows(self.session.directions, self.session.translations)

    def prepare(self, name: str) -> bool:
        """Fill the cache with the tokenizer and the encoded rows of a model."""
        if name != BUNDLED:
            recipe = self.recipe(name)
            corpus = load_corpus(recipe.data, recipe.tokenizer, task="translate", seed=recipe.seed)
            print(f"{name}: {corpus.train.rows:,} rows, {len(corpus.target_tokenizer):,} tokens", flush=True)
        return True

    def finish(self, name: str) -> bool:
        """Train a model or resume it, store it in int8, score it; False if it was interrupted."""
        if name == BUNDLED:
            card = json.loads((START / "card.json").read_text(encoding="utf-8"))
            kept = {key: card.get(key) for key in KEPT}
            self._write(name, START, list(score.DIRECTIONS), kept)
            return True
        run = self.session.run(f"{self.folder.name}-{name}")
        if (run / "recipe.yaml").is_file():
            result = resume(run, overrides=[f"training.minutes={self.minutes}"])
        else:
            result = train(RECIPE, folder=run, overrides=self.overrides(name))
        if result.finished:
            stored = self.folder / name
            print(f"{name}: {quantize_folder(run, stored, overwrite=True, publish=True)}", flush=True)
            kept = {key: result.report[key] for key in KEPT}
            self._write(name, stored, STUDENTS[name].directions, kept)
        return result.finished

    def _write(self, name: str, stored: Path, directions: list[str], values: dict[str, Any]) -> None:
        """Score a model on the validation sets and write its record."""
        log = self.record(name).with_suffix(".scores.json")
        log.parent.mkdir(parents=True, exist_ok=True)
        options = [*scoring_options(20 if self.session.tiny else LIMIT), "--directions", *directions]
        score.main([str(stored), str(self.session.directions), *options, "--log", str(log)])
        scores = json.loads(log.read_text(encoding="utf-8"))
        bleu = {f"{s['corpus']} {s['direction']}": s["bleu"] for s in scores["scores"]}
        record = {"bytes": _bytes(stored), **values, "bleu": bleu, "signature": scores["signatures"]["bleu"]}
        write_file(self.record(name), json.dumps(record, indent=1) + "\n")


def sizes() -> dict[str, int]:
    """Bytes of the int8 folder of each student, with random weights.

    The tokenizer is the bundled one; its bytes are counted in proportion to the vocabulary.
    """
    found, tokenizer = {}, regard.load(START).source_tokenizer
    for name, student in STUDENTS.items():
        config = load_recipe(RECIPE, student.overrides()).model.model_dump()
        model: Any = build(config, student.vocabulary, student.vocabulary)
        with tempfile.TemporaryDirectory() as place:
            model_folder.save(Path(place), model, config, tokenizer, tokenizer, {}, "int8")
            unused = 1 - student.vocabulary / BUNDLED_VOCABULARY
            found[name] = _bytes(Path(place)) - round(
                unused * (Path(place) / "tokenizer.json").stat().st_size
            )
    return found


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return list(file)


def run_step(step: str, curve: Curve, options: argparse.Namespace) -> bool:
    """Prepare or train the models that are not done, --jobs processes at a time; False if one failed.

    With several processes, the log is written after each model.
    """
    todo, lock = [name for name in options.models if not curve.record(name).is_file()], threading.Lock()
    if options.jobs == 1:
        return all((curve.prepare if step == "prepare" else curve.finish)(name) for name in todo)

    def run(name: str) -> int:
        arguments = [step, "--models", name, *(["--tiny"] if options.tiny else [])]
        for key in ("train_steps", "minutes", "lr", "warmup", "data", "work"):
            arguments += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
        program = [sys.executable, "-m", "benchmarks.translator.curve", *arguments, "--part"]
        log = curve.record(name).with_suffix(".txt")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            code = subprocess.run(program, stdout=file, stderr=file, check=False).returncode
        if step == "train":
            with lock:
                write_log(curve, options)
        return code

    with ThreadPoolExecutor(options.jobs) as pool:
        codes = dict(zip(todo, pool.map(run, todo), strict=True))
    for name in (name for name, code in codes.items() if code):
        print(f"{name}: {step} failed, see {curve.record(name).with_suffix('.txt')}", flush=True)
    return not any(codes.values())


def write_log(curve: Curve, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Write what is done; return the records."""
    models = {
        name: json.loads(curve.record(name).read_text(encoding="utf-8"))
        for name in options.models
        if curve.record(name).is_file()
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else machine.cpu_name()
    log = {
        "command": command.command_line("benchmarks.translator.curve", options.arguments),
        "regard": regard.__version__, "date": machine.today(), "device": device, "jobs": options.jobs,
        "steps": curve.steps, "minutes": curve.minutes, "lr": curve.lr, "warmup": curve.warmup,
        "rows": LIMIT, "beam": 4, "models": models,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(options.out, json.dumps(log, indent=1, ensure_ascii=False) + "\n")
    return models


def table(models: dict[str, dict[str, Any]]) -> str:
    """A row for each model: size, training, BLEU by direction on Tatoeba and Europarl."""
    header = ["model", "MiB", "parameters", "steps", "target tokens"]
    header += [f"{corpus} {direction}" for corpus in CORPORA for direction in score.DIRECTIONS]
    rows = [
        [
            name,
            f"{record['bytes'] / 2**20:.1f}",
            *(grouped(record[key]) for key in ("parameters", "steps", "tokens")),
            *(f"{record['bleu'][key]:.1f}" if key in record["bleu"] else NONE for key in header[5:]),
        ]
        for name, record in models.items()
    ]
    return "\n".join(markdown_table(header, rows))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.curve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*STUDENTS, BUNDLED]
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)}")
    parser.add_argument("--train-steps", type=int, default=22_440, help="of a training (default 22440)")
    parser.add_argument("--minutes", type=float, default=60.0, help="of a training, at most (default 60)")
    parser.add_argument("--lr", type=float, default=0.001, help="peak learning rate (default 0.001)")
    parser.add_argument("--warmup", type=int, default=1500, help="steps (default 1500)")
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--jobs", type=int, default=1, help="models that are trained at the same time")
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="folder of prepare.py")
    parser.add_argument("--work", type=Path, default=ROOT / "work", help="folder of the runs")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/translator/curve-LR.json")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, 500 rows of each file")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)  # a process of --jobs: no log
    arguments = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(arguments, argparse.Namespace(arguments=arguments))
    for step in options.steps:
        if step not in STEPS:
            parser.error(f"STEP must be one of {', '.join(STEPS)}, got {step!r}")
    session = Session(options.data, options.work, options.tiny)
    curve = Curve(session, options.train_steps, options.minutes, options.lr, options.warmup)
    options.out = options.out or RESULTS / f"{curve.folder.name}.json"
    for step in options.steps or STEPS[1:]:
        if step == "sizes":
            for name, size in sizes().items():
                print(f"{name}: {size / 2**20:.2f} MiB of {STUDENTS[name].mebibytes}")
            continue
        curve.write_files()
        start = time.monotonic()
        done = run_step(step, curve, options)
        if step == "train" and not options.part:
            print(table(write_log(curve, options)))
        print(f"step {step}: {time.monotonic() - start:.0f} s", flush=True)
        if not done:
            return 1
    return 0


if __name__ == "__main__":
    command.run(main)
