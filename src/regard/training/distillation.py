"""Sequence-level knowledge distillation (Kim & Rush 2016): a teacher translates the training sources.

A small student scores better when it learns the teacher's translations instead of the references: the
translations of one model vary less than those of many people. Each distinct source is translated once by beam
search. The translations are cached by teacher, sources and search options, so a second run reuses them; an
interrupted run resumes after the last complete chunk of lines.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.datasets import split_rows
from regard.data.distilled_rows import (
    META,
    DistilledRows,
    TeacherTranslations,
    text_hashes,
    write_translations,
)
from regard.data.prepare import Hashes, Report, usable
from regard.data.prepared_cache import hold
from regard.data.readers import Rows
from regard.data.text_files import is_unreadable
from regard.data.tokenizer import split_language
from regard.decoding.beam import Beam
from regard.decoding.limits import Limits
from regard.errors import DataError, FolderError, RecipeError
from regard.files.atomic import atomic_path, disk_errors
from regard.files.cache import CACHE_HINT, cache_folder
from regard.files.lock import open_locked
from regard.files.progress import track
from regard.models import folder as model_folder
from regard.models.target_language import language_of
from regard.pipelines.input import Field, Source
from regard.pipelines.job import Outputs, fingerprint, open_output, run_job
from regard.pipelines.long_lines import max_source_length
from regard.pipelines.ray import run_on_ray
from regard.pipelines.translate_file import TranslateJob, TranslateOptions, make_job
from regard.recipe.schema import Recipe
from regard.tasks import get_task
from regard.training.display import Display

VERSION = 1  # of the folder in the cache and of everything here that determines the translations
SOURCES, TRANSLATIONS = "sources.jsonl", "translations.jsonl"  # removed when the folder is complete
DISK_FACTOR = 5  # bytes of disk space per byte of the sources, at most
GPU_LINES = 1 << 15  # sources per chunk on a GPU, which needs thousands of sentences at once
LANGUAGE_TOKEN = re.compile(r">>\S+<< ")


class DistillationStopped(KeyboardInterrupt):
    """Ctrl-C while the teacher translates; the message says how to resume."""


def distilled_rows(recipe: Recipe, device: torch.device, display: Display) -> DistilledRows | None:
    """Return the training rows with the teacher's translations, made now or from the cache.

    None if the recipe has no teacher.
    """
    if recipe.distillation.teacher is None:
        return None
    rows = split_rows(recipe.data, "train", get_task(recipe.task).row_format)
    rows.check()
    teacher = Teacher.check(recipe)
    key = _cache_key(recipe, rows)
    while True:
        translations = _Translating(recipe, rows, teacher, key, device, display).run()
        if hold(translations, f"translations by {teacher.folder}, recipe {recipe.name}"):
            break  # else another process removed them meanwhile
    display.print(_summary(teacher, translations.counts))
    distillation = recipe.distillation
    return DistilledRows(rows, translations, distillation.targets == "both", recipe.data.limit)


def write_distilled(recipe: Recipe, path: Path, device: torch.device, display: Display) -> int:
    """Write the distilled training set as tab-separated source and translation; return the number of rows.

    Tabs and line ends inside a text become spaces.
    """
    rows = distilled_rows(recipe, device, display)
    assert rows is not None
    written = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for block in rows.blocks():
            for pair in zip(*block, strict=True):
                if all(text.strip() and not is_unreadable(text) for text in pair):
                    file.write("\t".join(" ".join(re.split(r"[\t\r\n]+", text)) for text in pair) + "\n")
                    written += 1
    return written


@dataclass(frozen=True)
class Teacher:
    """A translator folder that was checked against a recipe."""

    folder: Path
    languages: tuple[str, ...]  # codes of the language tokens of a multilingual model
    to: str | None  # the language of rows without a language token

    @classmethod
    def check(cls, recipe: Recipe) -> Teacher:
        """Check that the teacher is a translator whose languages are those of the recipe."""
        assert recipe.distillation.teacher is not None
        folder, to = Path(recipe.distillation.teacher), recipe.distillation.to
        if not folder.is_dir():
            raise FolderError(
                f"distillation.teacher: there is no folder {folder}; give the folder of a trained translator"
            )
        place = model_folder.model_in(folder)
        kind = model_folder.read_config(place)["kind"]
        if kind != "translator":
            raise FolderError(
                f"distillation.teacher: {folder} is a {kind.replace('-', ' ')}, and a teacher is a "
                "translator; give the folder of one"
            )
        languages = model_folder.read_tokenizers(place)[0].languages
        if to is not None and to not in languages:
            known = f"translates into {', '.join(languages)}" if languages else "has no language tokens"
            raise RecipeError(
                f"distillation.to is {to!r}, and the teacher {folder} {known}; "
                + ("choose one of these" if languages else "leave distillation.to out")
            )
        if not languages:
            cls._check_pair(recipe, folder, place)
        return cls(folder, languages, to)

    @staticmethod
    def _check_pair(recipe: Recipe, folder: Path, place: Path) -> None:
        """Compare the languages of the teacher's training data, where both are known, with the recipe's."""
        has_card = (place / "card.json").is_file()
        card = model_folder.read_json(place / "card.json") if has_card else {}
        for side in ("source", "target"):
            own, other = language_of({"recipe": recipe.model_dump()}, side), language_of(card, side)
            if own is not None and other is not None and own.lower() != other.lower():
                raise RecipeError(
                    f"data.{side} is {own!r}, and the {side} language of the teacher {folder} is "
                    f"{other!r}; choose a teacher of the same languages"
                )

    def input(self, text: str) -> str:
        """Return what the teacher translates for a source; raise ValueError if its language is unclear."""
        code, _ = split_language(text, self.languages)
        if code is not None:
            return text
        known = f"the teacher {self.folder} knows {', '.join(self.languages) or 'no language tokens'}"
        if LANGUAGE_TOKEN.match(text):
            raise ValueError(
                f"the row begins with {text.split(' ', 1)[0]}, and {known}; choose another teacher"
            )
        if not self.languages:
            return text
        if self.to is None:
            raise ValueError(
                f"the row begins with no language token, and {known}; set distillation.to, "
                f"or begin the rows with one, as >>{self.languages[0]}<<"
            )
        return f">>{self.to}<< {text}"


def _cache_key(recipe: Recipe, rows: Rows) -> str:
    """A hash of everything that determines the translations."""
    distillation = recipe.distillation
    assert distillation.teacher is not None
    identity = {
        "version": VERSION,
        "teacher": fingerprint([Path(distillation.teacher)]),
        "files": Hashes().of(rows.files),
        "layout": rows.layout(),
        "limit": recipe.data.limit,
        "to": distillation.to,
        "beam": distillation.beam,
        "length_penalty": distillation.length_penalty,
        "precision": distillation.precision,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _summary(teacher: Teacher, counts: dict[str, int]) -> str:
    names = {
        "empty": "empty",
        "truncated": "cut off at the maximum length",
        "long": "longer than the teacher's training sentences",
    }
    dropped = ", ".join(f"{counts[key]:,} {name}" for key, name in names.items() if counts[key])
    return (
        f"distillation: {counts['kept']:,} translations of {counts['sources']:,} distinct sources by "
        f"{teacher.folder}" + (f"; dropped: {dropped}" if dropped else "")
    )


@dataclass
class _Translating:
    """The translation of all distinct sources by the teacher, in one folder of the cache."""

    recipe: Recipe
    rows: Rows
    teacher: Teacher
    key: str
    device: torch.device
    display: Display

    @property
    def folder(self) -> Path:
        return cache_folder() / "distilled" / self.key[:32]

    def run(self) -> TeacherTranslations:
        """Return the translations; if another process is making them, wait for it."""
        if not self._is_complete():
            with disk_errors(self.folder.parent, CACHE_HINT):
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = open_locked(self.folder.with_name(f"{self.folder.name}.lock"))
                with lock or contextlib.nullcontext():
                    if not self._is_complete():
                        self._make()
        return TeacherTranslations(self.folder)

    def _is_complete(self) -> bool:
        return (self.folder / META).is_file()

    def _make(self) -> None:
        options, sources = self._options(), self.folder / SOURCES
        job = make_job([self.teacher.folder], options, self.device)
        if not sources.is_file():
            self._write_sources(sources, job)
        self._translate(job, options)
        del job
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the student needs the memory
        counts = {"sources": 0, "kept": 0, "empty": 0, "truncated": 0, "long": 0}
        write_translations(self.folder, self._kept(counts), counts)
        for name in (SOURCES, TRANSLATIONS):
            (self.folder / name).unlink()

    def _options(self) -> TranslateOptions:
        distillation = self.recipe.distillation
        return TranslateOptions(
            strategy=Beam(distillation.beam, distillation.length_penalty),
            limits=Limits(batch_tokens=distillation.batch_tokens),
            split=False,
            output_format="json",
            field="input",
            output=str(self.folder / TRANSLATIONS),
            precision=distillation.precision,
        )

    def _write_sources(self, path: Path, job: TranslateJob) -> None:
        """Write every distinct source once, and check that the translations fit on the disk."""
        with atomic_path(path, CACHE_HINT) as temporary, temporary.open("w", encoding="utf-8") as file:
            for record in self._sources(job):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        needed, free = DISK_FACTOR * path.stat().st_size, shutil.disk_usage(self.folder).free
        if free < needed:
            path.unlink()
            raise DataError(
                f"{self.folder} has {free / 1e6:,.1f} MB free and the translations need about "
                f"{needed / 1e6:,.1f} MB; {CACHE_HINT}"
            )

    def _sources(self, job: TranslateJob) -> Iterator[dict[str, str]]:
        """Yield a record for every distinct source: `input` for the teacher, empty if it is too long.

        `source` is included if it differs from the input.
        """
        limit = self.recipe.data.limit
        is_first = iter(_first_occurrences(self.rows, limit))
        longest, tokenizer = max_source_length(job.model), job.model.source_tokenizer
        assert tokenizer is not None
        for (sources, _), numbers in usable(self.rows, limit, Report()):
            for source, number in zip(sources, numbers, strict=True):
                if not next(is_first):
                    continue
                try:
                    text = self.teacher.input(source)
                except ValueError as error:
                    raise DataError(f"{self.rows.place(int(number), 0)}: {error}") from None
                # A token has at least one byte, so most texts need not be counted.
                too_long = longest is not None and len(text.encode()) > longest < len(tokenizer.encode(text))
                teacher_input = "" if too_long else text
                yield {"input": teacher_input} | ({"source": source} if source != teacher_input else {})

    def _translate(self, job: TranslateJob, options: TranslateOptions) -> None:
        """Run what remains of the translation job."""
        chunk_lines = GPU_LINES if self.device.type == "cuda" else None
        source = Source((self.folder / SOURCES,), layout=Field("input"), chunk_lines=chunk_lines)
        outputs = Outputs([open_output(self.folder / TRANSLATIONS)], {"key": self.key})
        total, _ = source.count_lines()
        if outputs.lines:
            self.display.print(f"resuming the teacher after {outputs.lines:,} of {total:,} sources")
        use_ray, teacher = self.recipe.distillation.ray, self.teacher.folder
        distribute = run_on_ray([teacher], options, self.device.type) if use_ray else None
        progress = not self.display.quiet
        try:
            run_job(source, outputs, job, total, name="teacher", progress=progress, distribute=distribute)
        except KeyboardInterrupt:
            raise DistillationStopped(
                f"the teacher stopped after {outputs.lines:,} of {total:,} sources, which are kept; "
                "rerun the same command to resume"
            ) from None

    def _kept(self, counts: dict[str, int]) -> Iterator[tuple[str, str]]:
        """Yield the usable translations; count all of them."""
        with (self.folder / TRANSLATIONS).open(encoding="utf-8", newline="\n") as file:
            for record in map(json.loads, file):
                counts["sources"] += 1
                reason = _why_dropped(record)
                counts[reason or "kept"] += 1
                if reason is None:
                    yield record.get("source", record["input"]), record["translation"]
        if not counts["kept"]:
            raise DataError(
                f"the teacher {self.teacher.folder} gave no usable translation of {counts['sources']:,} "
                "sources: "
                f"{counts['empty']:,} are empty, {counts['truncated']:,} were cut off at the maximum length, "
                f"{counts['long']:,} sources are too long; choose a better teacher"
            )


def _why_dropped(record: dict[str, Any]) -> str | None:
    """Why a translation is not used: "long", "truncated" or "empty"; None if it is used."""
    if not record["input"]:
        return "long"
    if record.get("truncated"):
        return "truncated"
    return None if record["translation"].strip() else "empty"


def _first_occurrences(rows: Rows, limit: int | None) -> NDArray[np.bool_]:
    """For each usable row, True if its source did not occur before; 8 bytes of memory per row."""
    with track(sum(path.stat().st_size for path in rows.files), "reading", "bytes") as progress:
        blocks = [text_hashes(block[0]) for block, _ in usable(rows, limit, Report(), progress.advance)]
    hashes = np.concatenate([*blocks, np.zeros(0, np.uint64)])
    first = np.zeros(len(hashes), bool)
    first[np.unique(hashes, return_index=True)[1]] = True
    return first
