"""Train the bundled translator on one GPU in half an hour, in steps that can be resumed.

    python -m benchmarks.translator.session gather              here: what the GPU machine lacks
    python -m benchmarks.translator.session check               all steps with a tiny model, anywhere
    python -m benchmarks.translator.session student --minutes 8 on the GPU: train or resume, 8 minutes in all
                                                                (gpu/schedule.py runs all steps in turn)
    python -m benchmarks.translator.session unpack FOLDER       here: join the pieces that came back

`python -m benchmarks.translator.prepare build/translator/data` comes first. README.md has the plan: commands,
minutes and bytes. Every step can be repeated: it resumes, or finds its result and returns at once.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

import regard
from benchmarks.peers import command
from benchmarks.translator import diversify, everyday, prepare, score, transfer
from regard.models.catalog import BUNDLED

ROOT = Path("build/translator")  # ignored by git
RECIPE = Path("recipes/tatoeba-en-de-fr-sampled.yaml")
START = BUNDLED / "tatoeba-en-de-fr"  # training continues from it
STUDENT_STEPS = 64  # steps a second on one H200: 70 between validations and epochs
TINY = (
    "model.dim=32",
    "model.encoder={kind: transformer, layers: 1, heads: 2, inner: 64, norm: pre}",
    "model.decoder={kind: transformer, layers: 1, heads: 2, inner: 64, norm: pre}",
)
COMPANIONS = {  # trained on CPU cores beside the GPU: threads of each
    "tweet-names": 2,
    "shakespeare-small": 2,
    "tatoeba-en-de-bahdanau": 3,
    "tatoeba-fr-en-bahdanau": 3,
}
TINY_RUN = (
    *("training.validate_every=20", "training.save_every=20", "batch.tokens=2000", "decoding.beam=2"),
    "optimizer.lr=0.002",  # a tiny model that has hardly learned never ends a translation
)


@dataclass(frozen=True)
class Session:
    """The folders of one session; `tiny` makes every step a matter of seconds."""

    data: Path  # pairs of prepare.py
    work: Path  # files per direction, runs, translations
    tiny: bool = False

    @property
    def directions(self) -> Path:
        return self.work / "directions"

    def run(self, name: str) -> Path:
        return self.work / "runs" / name

    def prepare(self) -> None:
        """Write the files per direction."""
        if not (self.directions / "validation.tsv").is_file():
            prepare.write_directions(self.data, self.directions, 500 if self.tiny else None)

    # Training

    def prepare_student(self) -> None:
        """Write the student's rows and start, and fill the cache with its training set: CPU cores only."""
        from regard.data.datasets import load_corpus
        from regard.recipe.loading import load_recipe

        if not (self.start / "config.json").is_file():
            everyday.write_rows(self.directions, seed=1, count=200 if self.tiny else everyday.CHANGED)
            if self.tiny:
                self.diversify()
            diversify.write_rows(self.directions, self.translations)
            everyday.add_characters(regard.load(START), self.start)
        recipe = load_recipe(RECIPE, self._student_options())
        tokens = regard.load(self.start).source_tokenizer
        load_corpus(recipe.data, recipe.tokenizer, seed=recipe.seed, given=(tokens, tokens))

    def student(self, minutes: float) -> None:
        """Continue the bundled translator; the learning rate is 0 after the steps that fit in the minutes."""
        from regard.training.trainer import resume, train

        folder, limit = self.run("student"), f"training.minutes={minutes}"
        if (folder / "recipe.yaml").is_file():  # the learning rate depends on the steps, so they stay
            resume(folder, overrides=[limit])
            return
        steps = 5 if self.tiny else round(60 * minutes * STUDENT_STEPS)
        options = [limit, f"training.steps={steps}"]
        options += ["schedule.warmup=2", *TINY_RUN] if self.tiny else []
        train(RECIPE, folder=folder, overrides=[*self._student_options(), *options])

    def _student_options(self) -> list[str]:
        return [*self._files(self.files_of(RECIPE)), f"training.start={json.dumps(str(self.start))}"]

    @property
    def translations(self) -> Path:
        """The folder of diversify.py."""
        return self.work / "diversified" if self.tiny else self.work.parent / "diversified"

    def diversify(self) -> None:
        """What diversify.py and `regard translate` do before a session, for few sentences."""
        diversify.main(["sources", str(self.directions), str(self.translations)])
        sources = (self.translations / "sources.txt").read_text(encoding="utf-8").splitlines()
        outputs = "".join(f"{text}\n" for text in regard.translate(sources, regard.load(START)))
        for name in (diversify.TRANSLATIONS, "samples-1.txt.xz", "samples-2.txt.xz"):
            with lzma.open(self.translations / name, "wt", encoding="utf-8") as file:
                file.write(outputs)

    @property
    def start(self) -> Path:
        """The bundled translator with tokens for more characters."""
        return self.work / "start"

    def files_of(self, recipe: Path) -> list[Path]:
        """The training files of a recipe, each as often as it is read in an epoch."""
        names = yaml.safe_load(recipe.read_text(encoding="utf-8"))["data"]["train"]
        return [self.directions / Path(name).name for name in names]

    # What comes back

    def finish(self, out: Path) -> None:
        """Store the student in int8, score it on the validation sets and write what comes back."""
        from regard.interchange.quantize import quantize_folder

        stored = self.work / "int8" / "student"
        print(quantize_folder(self.run("student"), stored, overwrite=True, publish=True), flush=True)
        transfer.pack(stored, out)
        for log in (self.work / "runs").glob("*/log.jsonl"):
            shutil.copy(log, out / f"{log.parent.name}.log.jsonl")
        score.main([str(stored), str(self.directions), *scoring_options(20 if self.tiny else 1000)])

    # Small models on CPU cores

    def companions(self) -> None:
        """Start to train the small models, or resume their runs, in processes that outlive this one."""
        (self.work / "runs").mkdir(parents=True, exist_ok=True)
        for name, threads in COMPANIONS.items():
            folder = self.run(name)
            if (folder / "recipe.yaml").is_file():
                arguments = ["resume", str(folder)]
            else:
                arguments = ["train", name, "--run", str(folder)]
                arguments += ["training.device=cpu", f"training.threads={threads}", *self._pairs_of(name)]
            with (self.work / "runs" / f"{name}.txt").open("w") as log:
                environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads)}
                subprocess.Popen(
                    [sys.executable, "-m", "regard", *arguments],
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )

    def _pairs_of(self, name: str) -> list[str]:
        """The files of a recurrent translator: pairs with English first."""
        if not name.startswith("tatoeba"):
            return []
        source, target = name.split("-")[1:3]
        languages = f"en-{source if target == 'en' else target}"
        columns = (1, 2) if source == "en" else (2, 1)
        files = {
            split: self.data / f"tatoeba.{languages}.{split}.tsv.xz" for split in ("train", "validation")
        }
        return [f"data.{split}={json.dumps([str(path.absolute())])}" for split, path in files.items()] + [
            "data.corpus=null",
            f"data.source='{columns[0]}'",
            f"data.target='{columns[1]}'",
        ]

    def finish_companions(self, out: Path) -> None:
        """Store the small models that are trained in int8, and write them in one archive."""
        from regard.interchange.quantize import quantize_folder

        stored = self.work / "companions"
        for name in COMPANIONS:
            folder = self.run(name)
            if (folder / "model").is_dir():
                print(name, quantize_folder(folder, stored / name, overwrite=True, publish=True), flush=True)
            else:
                lines = (self.work / "runs" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
                print(f"{name} is not finished: {lines[-1] if lines else 'no output yet'}", flush=True)
        transfer.pack(stored, out)

    def _files(self, train: list[Path]) -> list[str]:
        """The `data:` keys of a run."""
        files = {"train": train, "validation": [self.directions / "validation.tsv"]}
        return [
            f"data.{split}={json.dumps([str(path.absolute()) for path in paths])}"
            for split, paths in files.items()
        ]


def scoring_options(limit: int | str) -> list[str]:
    """Arguments of `score`: beam 4, on a GPU if there is one, the first rows of each set."""
    import torch

    return ["--beam", "4", "--device", "cuda" if torch.cuda.is_available() else "cpu", "--limit", str(limit)]


def check(data: Path) -> None:
    """Run every step with a tiny model and 500 rows of each file."""
    session = Session(data, ROOT / "check" / "work", tiny=True)
    shutil.rmtree(ROOT / "check", ignore_errors=True)
    for step in ("prepare-student", "student", "student", "finish"):  # the second time it is resumed
        run_step(session, step, 1, session.work / "out")
    transfer.unpack(session.work / "out", ROOT / "check" / "models")
    print("check: all steps work", flush=True)


def run_step(session: Session, step: str, minutes: float, out: Path) -> None:
    """Run a step by name and print its seconds."""
    start = time.monotonic()
    session.prepare()
    method = getattr(session, step.replace("-", "_"))
    if step == "student":
        method(minutes)
    elif step.startswith("finish"):
        method(out)
    else:
        method()
    print(f"step {step}: {time.monotonic() - start:.0f} s", flush=True)


STEPS = (
    "gather", "check", "prepare-student", "student", "finish", "companions", "finish-companions", "unpack",
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.session",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("folder", type=Path, nargs="?", help="unpack: the folder of the pieces")
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="of training in all, also of a resumed run"
    )
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="folder of prepare.py")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, 500 rows of each file")
    options = parser.parse_args(argv)
    if options.step == "gather":
        transfer.gather(ROOT)
    elif options.step == "check":
        check(options.data)
    elif options.step == "unpack":
        transfer.unpack(options.folder or ROOT / "out", ROOT / "models")
    else:
        out = Path(os.environ.get("OUT", ROOT / "out"))
        session = Session(options.data, ROOT / ("tiny" if options.tiny else "work"), options.tiny)
        run_step(session, options.step, options.minutes, out)
    return 0


if __name__ == "__main__":
    command.run(main)
