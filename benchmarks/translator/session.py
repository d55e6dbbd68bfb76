"""Train the bundled translator on one GPU in half an hour, in steps that can be resumed.

    python -m benchmarks.translator.session gather              here: what the GPU machine lacks
    python -m benchmarks.translator.session check               all steps with a tiny model, anywhere
    python -m benchmarks.translator.session teacher --minutes 8 on the GPU: train or resume, 8 minutes in all
                                                                (gpu/schedule.py runs all steps in turn)
    python -m benchmarks.translator.session unpack FOLDER       here: join the pieces that came back

`python -m benchmarks.translator.prepare build/translator/data` comes first. README.md has the plan: commands,
minutes and bytes. Every step can be repeated: it resumes, or finds its result and returns at once.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import regard
from benchmarks.peers import command
from benchmarks.translator import diversify, everyday, prepare, score, transfer
from regard.models.catalog import BUNDLED

ROOT = Path("build/translator")  # ignored by git
RECIPES = Path(__file__).with_name("recipes")
TATOEBA = ("tatoeba.en-de", "tatoeba.en-fr", "tatoeba.de-en", "tatoeba.fr-en")
INTO_OTHERS = TATOEBA[:2]  # the harder directions are repeated more often
START = BUNDLED / "tatoeba-en-de-fr"  # training continues from it
TOKENIZER = (f"tokenizer.load={json.dumps(str(START))}",)  # the teacher has the student's tokens
STUDENT_STEPS = (
    55  # steps a second on one H200: 66 between validations, less what captures and validations take
)
PROCESSES = 3  # that distill at the same time
PACKED = "distilled.tsv.gz"
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

    def prepare_teacher(self) -> None:
        """Fill the cache with the teacher's training set: CPU cores only, before `teacher`."""
        from regard.data.datasets import load_corpus
        from regard.recipe.loading import load_recipe

        files, overrides = self.references(), (*TOKENIZER, *(TINY if self.tiny else ()))
        recipe = load_recipe(RECIPES / "teacher.yaml", [*self._files(files), *overrides])
        load_corpus(recipe.data, recipe.tokenizer, task="translate", seed=recipe.seed)

    def teacher(self, minutes: float) -> None:
        """Train the teacher on the data of the recipe tatoeba-en-de-fr."""
        limit = ("training.steps=40", "schedule.warmup=10") if self.tiny else (f"training.minutes={minutes}",)
        tiny = (*TINY, *TINY_RUN) if self.tiny else ()
        self._train_or_resume("teacher", self.references(), limit, (*TOKENIZER, *tiny))

    def prepare_student(self) -> None:
        """Write the student's rows and start, and fill the cache with its training set: CPU cores only."""
        from regard.data.datasets import load_corpus
        from regard.recipe.loading import load_recipe

        if not (self.start / "config.json").is_file():
            everyday.write_rows(self.directions, seed=1, count=200 if self.tiny else everyday.CHANGED)
            if self.tiny:
                self._diversify()
            diversify.write_rows(self.directions, self.translations)
            everyday.add_characters(regard.load(START), self.start)
        recipe = load_recipe(RECIPES / "student.yaml", self._files(self._student_files()))
        tokens = regard.load(self.start).source_tokenizer
        load_corpus(recipe.data, recipe.tokenizer, seed=recipe.seed, given=(tokens, tokens))

    def student(self, minutes: float) -> None:
        """Continue the bundled translator; the learning rate is 0 after the steps that fit in the minutes."""
        steps = 5 if self.tiny else round(60 * minutes * STUDENT_STEPS)
        limits = (f"training.steps={steps}", f"training.minutes={minutes}")
        tiny = ("schedule.warmup=2", *TINY_RUN) if self.tiny else ()
        start = f"training.start={json.dumps(str(self.start))}"
        self._train_or_resume("student", self._student_files(), limits, (start, *tiny))

    @property
    def translations(self) -> Path:
        """The folder of diversify.py."""
        return self.work / "diversified" if self.tiny else self.work.parent / "diversified"

    def _diversify(self) -> None:
        """What diversify.py and `regard translate` do before a session, for few sentences."""
        diversify.main(["sources", str(self.directions), str(self.translations)])
        sources = (self.translations / "sources.txt").read_text(encoding="utf-8").splitlines()
        outputs = "".join(f"{text}\n" for text in regard.translate(sources, regard.load(START)))
        with lzma.open(self.translations / diversify.TRANSLATIONS, "wt", encoding="utf-8") as file:
            file.write(outputs)

    @property
    def start(self) -> Path:
        """The bundled translator with tokens for more characters."""
        return self.work / "start"

    def _student_files(self) -> list[Path]:
        """The student's training files, each as often as it is read in an epoch."""
        self.unpack_distilled()
        made = [self.directions / f"{kind}.train.tsv" for kind in diversify.KINDS]
        made += [path for path in (self.distilled, self.back_translated) if path.is_file()]
        ways = [
            self.directions / f"{name}.{direction}.train.tsv"
            for name in ("everyday", "short")
            for direction in score.DIRECTIONS
        ]
        twice = [*map(self._train, (*TATOEBA * 2, *INTO_OTHERS)), *made, *ways]
        return [*twice * 2, *self._europarl()]

    def references(self) -> list[Path]:
        """The training files of the bundled translator, each as often as it is read in an epoch."""
        return [*map(self._train, (*TATOEBA * 3, *INTO_OTHERS)), *self._europarl()]

    def _train_or_resume(
        self, name: str, files: list[Path], limits: tuple[str, ...], overrides: tuple[str, ...]
    ) -> None:
        from regard.training.trainer import resume, train

        folder = self.run(name)
        if (folder / "recipe.yaml").is_file():
            # The learning rate of the student depends on its steps, so they stay.
            resume(folder, overrides=[limit for limit in limits if "minutes" in limit or name == "teacher"])
            return
        train(RECIPES / f"{name}.yaml", folder=folder, overrides=[*self._files(files), *limits, *overrides])

    # The teacher's translations

    def distill(self) -> None:
        """Let the teacher translate all sentences of Tatoeba, the English ones into German and French.

        Several processes share the GPU: while one reads and writes text, another searches.
        """
        out = self.distilled
        if out.is_file():
            return
        rows = self._sources()
        parts = [self.work / f"sources.{i}.tsv" for i in range(1 if self.tiny else PROCESSES)]
        for i, part in enumerate(parts):
            if not part.is_file():
                part.write_text("".join(rows[i :: len(parts)]), encoding="utf-8", newline="\n")
        if len(parts) == 1:
            self.distill_part(parts[0])
        else:
            program = [sys.executable, "-m", "benchmarks.translator.session", "distill-part"]
            running = [subprocess.Popen([*program, str(part), "--data", str(self.data)]) for part in parts]
            codes = [process.wait() for process in running]
            if any(codes):
                raise SystemExit("distill: a process failed, see above; repeat the step to resume")
        translated = [self._translated(part) for part in parts]
        out.write_text(
            "".join(path.read_text(encoding="utf-8") for path in translated), encoding="utf-8", newline="\n"
        )
        self._write_back_translated()

    def pack_distilled(self, out: Path) -> None:
        """Write the teacher's translations, compressed, in pieces that come back: for another session."""
        folder = self.work / "distilled"
        folder.mkdir(parents=True, exist_ok=True)
        with self.distilled.open("rb") as source, gzip.open(folder / PACKED, "wb", 6) as target:
            shutil.copyfileobj(source, target)
        transfer.pack(folder, out)

    def unpack_distilled(self) -> None:
        """Take the translations of an earlier session (`unpack`), if this one has made none."""
        packed = self.work.parent / "models" / "distilled" / PACKED
        if self.distilled.is_file() or not packed.is_file():
            return
        with gzip.open(packed) as source, self.distilled.open("wb") as target:
            shutil.copyfileobj(source, target)
        self._write_back_translated()

    def _write_back_translated(self) -> None:
        text = "".join(self._back_translated(self.distilled))
        self.back_translated.write_text(text, encoding="utf-8", newline="\n")

    def distill_part(self, sources: Path) -> None:
        """Let the teacher translate a file of sources."""
        import torch

        from regard.recipe.loading import load_recipe
        from regard.training.display import Display
        from regard.training.distillation import write_distilled

        teacher = self.run("teacher")
        overrides = [
            *self._files([sources]),
            f"distillation.teacher={json.dumps(str(teacher.absolute()))}",
            "distillation.beam=4",
            # Buffers of all batch shapes then fit into a third of the GPU memory, so their graphs are kept.
            "distillation.batch_tokens=32768",
        ]
        device, out = torch.device("cuda" if torch.cuda.is_available() else "cpu"), self._translated(sources)
        count = write_distilled(load_recipe(RECIPES / "student.yaml", overrides), out, device, Display())
        print(f"{out.name}: {count:,} translations by {teacher.name}", flush=True)

    def _translated(self, sources: Path) -> Path:
        return sources.with_name(sources.name.replace("sources", "translated"))

    def _back_translated(self, distilled: Path) -> list[str]:
        """The teacher's translations as sources and the people's sentences as targets.

        An English sentence has translations into German and French, which both become sources of it.
        """
        languages = {}  # of the sources that are not English
        for path in self.data.glob("tatoeba.en-*.train.tsv.xz"):
            for _, other in prepare.read_pairs(path, 500 if self.tiny else None):
                languages[other] = path.name.split(".")[1][3:]
        rows = []
        for line in distilled.read_text(encoding="utf-8").splitlines():
            source, translation = line.split("\t")
            code, text = source.split(" ", 1)
            language = languages.get(text) if code == ">>en<<" else "en"
            if language is not None:  # else the text was changed while it was read
                rows.append(prepare.row(translation, text, language))
        return rows

    def _sources(self) -> list[str]:
        """Distinct sources with their language token; the second column is not used."""
        rows: dict[str, None] = {}
        for path in sorted(self.data.glob("tatoeba.en-*.train.tsv.xz")):
            for english, other in prepare.read_pairs(path, 500 if self.tiny else None):
                rows |= dict.fromkeys(prepare.row(english, "-", target) for target in ("de", "fr"))
                rows[prepare.row(other, "-", "en")] = None
        return list(rows)

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

    def score_teacher(self, out: Path) -> None:
        """Score the teacher on all sets, for the size-quality curve; test scores go to a file only."""
        folder = self.run("teacher")
        out.mkdir(parents=True, exist_ok=True)
        for split, limit in (("validation", "1000"), ("test", "100000")):
            with (out / f"teacher-{split}.txt").open("w", encoding="utf-8") as file, redirect_stdout(file):
                score.main(
                    [
                        *map(str, (folder, self.directions)),
                        *scoring_options(20 if self.tiny else limit),
                        "--split",
                        split,
                    ]
                )
        print((out / "teacher-validation.txt").read_text(encoding="utf-8"), flush=True)

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

    def _train(self, name: str) -> Path:
        return self.directions / f"{name}.train.tsv"

    def _europarl(self) -> list[Path]:
        return sorted(self.directions.glob("europarl.*.train.tsv"))

    @property
    def distilled(self) -> Path:
        return self.work / "distilled.tsv"

    @property
    def back_translated(self) -> Path:
        return self.work / "back-translated.tsv"


def scoring_options(limit: int | str) -> list[str]:
    """Arguments of `score`: beam 4, on a GPU if there is one, the first rows of each set."""
    import torch

    return ["--beam", "4", "--device", "cuda" if torch.cuda.is_available() else "cpu", "--limit", str(limit)]


def check(data: Path) -> None:
    """Run every step with a tiny model and 500 rows of each file."""
    session = Session(data, ROOT / "check" / "work", tiny=True)
    shutil.rmtree(ROOT / "check", ignore_errors=True)
    for step in (
        *("prepare-teacher", "teacher", "teacher"),  # the second time it is resumed
        *("distill", "pack-distilled", "score-teacher", "prepare-student", "student", "finish"),
    ):
        run_step(session, step, 1, session.work / "out")
    transfer.unpack(session.work / "out", ROOT / "check" / "models")
    made = session.distilled.read_bytes(), session.back_translated.read_bytes()
    session.distilled.unlink()
    session.unpack_distilled()  # as in a session of the student alone
    if made != (session.distilled.read_bytes(), session.back_translated.read_bytes()):
        raise SystemExit("check: the teacher's translations have changed on their way")
    print("check: all steps work", flush=True)


def run_step(session: Session, step: str, minutes: float, out: Path, part: Path | None = None) -> None:
    """Run a step by name and print its seconds."""
    start = time.monotonic()
    session.prepare()
    if step == "distill-part":
        assert part is not None
        session.distill_part(part)
    elif step == "distill":
        session.distill()
    elif step in ("prepare-teacher", "prepare-student", "companions"):
        getattr(session, step.replace("-", "_"))()
    elif step == "finish":
        session.finish(out)
    elif step in ("score-teacher", "pack-distilled"):
        getattr(session, step.replace("-", "_"))(out)
    elif step == "finish-companions":
        session.finish_companions(out)
    else:
        getattr(session, step.replace("-", "_"))(minutes)
    print(f"step {step}: {time.monotonic() - start:.0f} s", flush=True)


STEPS = (
    *("gather", "check", "prepare-teacher", "teacher", "distill", "distill-part", "pack-distilled"),
    *("score-teacher", "prepare-student", "student", "finish", "companions", "finish-companions", "unpack"),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.session",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", choices=STEPS)
    parser.add_argument(
        "folder", type=Path, nargs="?", help="unpack: the folder of the pieces; distill-part: sources"
    )
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
        run_step(session, options.step, options.minutes, out, options.folder)
    return 0


if __name__ == "__main__":
    command.run(main)
