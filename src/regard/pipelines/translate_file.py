"""A translation job: chunks of lines in, bytes for every output out, in order, and a stop at any moment costs one chunk at most.

What is done to a chunk depends on nothing but the chunk and the settings. So it may run here or on another machine, now or
after the job was stopped, and the output is the same.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from dataclasses import field as made
from pathlib import Path
from typing import Any, cast

import torch

from regard.data.tokenizer import EOS
from regard.decoding.engine import fast
from regard.decoding.engine.shortlist import NAME as SHORTLIST
from regard.decoding.engine.shortlist import load as load_shortlist
from regard.decoding.ensemble import Ensemble
from regard.decoding.sampling import Sample
from regard.errors import FolderError, OptionError
from regard.files.checksums import file_sha256
from regard.files.progress import track
from regard.models.folder import load
from regard.models.translator import Translator
from regard.pipelines.input import Chunk, Column, Reader, Source, WholeLine
from regard.pipelines.long_lines import LongLineSplitter, longest
from regard.pipelines.output import Outputs, packing
from regard.pipelines.result_lines import Alignment, Json, Look, Nbest, OutputFormat, Result, Table, Text
from regard.pipelines.table import split_row
from regard.pipelines.translate import translate
from regard.version import __version__

LOOKED = 32  # lines whose attention is in memory at once
Work = Callable[[Chunk], list[bytes]]
Over = Callable[[Work, Iterator[Chunk]], Iterable[tuple[Chunk, list[bytes]]]]


@dataclass(frozen=True)
class TranslateOptions:
    """Everything but the model and the text that decides what is written; plain values, to be told to other machines."""

    search: dict[str, Any] = made(default_factory=dict)  # arguments of `translate`
    sample: dict[str, Any] | None = None  # of `Sample`, when words are drawn
    prefix: str = ""
    required: list[str] = made(default_factory=list)
    split: bool = True
    form: str = "text"  # text, table, csv or json
    to: str | None = None  # the language to translate into
    column: str | None = None  # of a table that the text is in
    separator: str | None = None  # of its columns; None where lines are no rows of a table
    quotes: bool = False  # around its cells
    names: list[str] = made(default_factory=list)  # of its columns
    field: str | None = None  # of a JSON object
    nbest: int = 1
    align: bool = False  # word alignments are wanted
    aligned: str = ""  # the file they go to; beside the text unless given
    attention: str = ""  # the file attention goes to
    output: str = ""
    precision: str = "auto"
    shortlist: bool = False  # only words that the model's shortlist names

    @property
    def paths(self) -> list[str]:
        """The files beside standard output or in its place, in the order of what a chunk gives."""
        return [self.output, *(path for path in (self.aligned, self.attention) if path)]

    def arguments(self) -> dict[str, Any]:
        """What `translate` is told about every line."""
        sample = None if self.sample is None else Sample(count=self.nbest, **self.sample)
        return {"to": self.to, "nbest": self.nbest, "sample": sample, **self.search}

    def about(self, fingerprint: str) -> dict[str, Any]:
        """What a job must have in common with the one it goes on with."""
        return in_common(self.search | asdict(self), fingerprint, ("search", "output", "workers"))


def in_common(
    settings: dict[str, Any], fingerprint: str, left_out: Sequence[str] = ("output",)
) -> dict[str, Any]:
    """What one job must share with another to go on with it: the version, the model and the settings but for some."""
    given = {"version": __version__, "model": fingerprint} | settings
    return {key.replace("_", " "): value for key, value in given.items() if key not in left_out}


class TranslateJob:
    """What is done to a chunk, with the model at hand."""

    def __init__(
        self, model: Translator, writer: Any, settings: TranslateOptions, form: OutputFormat | None = None
    ) -> None:
        self.model, self.writer, self.settings = model, writer, settings
        self._forms = [form or _form(settings)] + [Alignment()] * bool(settings.aligned)
        self.cut = LongLineSplitter(model, longest(model) if settings.split else None)
        self._packings = [packing(Path(path)) for path in settings.paths]

    def __call__(self, chunk: Chunk) -> list[bytes]:
        answers = self.answers(chunk)
        top = chunk.first == 0
        data = [
            (form.begin() * top + "".join(map(form.write, answers))).encode("utf-8") for form in self._forms
        ]
        if self.settings.attention:
            data.append(self._attention(answers))
        return [packing.pack(each) for packing, each in zip(self._packings, data, strict=True)]

    def answers(self, chunk: Chunk) -> list[Result]:
        """Each line's parts, translated all together and dealt out again."""
        cut = self.cut([row.text for row in chunk.rows])
        flat = [piece.text for line in cut for piece in line]
        first = [
            i == 0 for line in cut for i in range(len(line))
        ]  # what a line must begin with and hold is up to its first part
        more: dict[str, Any] = {}
        if self.settings.prefix:
            more["prefixes"] = [self.settings.prefix if leads else "" for leads in first]
        if self.settings.required:
            more["required"] = [self.settings.required if leads else [] for leads in first]
        found = iter(translate(flat, self.writer, **more, **self.settings.arguments()))
        answers = [
            Result(chunk.first + i, row, line, [next(found) for _ in line])
            for i, (row, line) in enumerate(zip(chunk.rows, cut, strict=True))
        ]
        if self.settings.align:
            self._look(answers)
        return answers

    def _look(self, answers: list[Result]) -> None:
        """Where the words of each best translation looked."""
        from regard.pipelines.align import Words, word_weights

        tokenizers: Any = self.model.source_tokenizer, self.model.target_tokenizer
        for answer, seen in self._looked(answers, ("cross",), 1):
            found = []
            for piece, part, attentions in zip(answer.pieces, answer.parts, seen, strict=True):
                tokens = part.hypotheses[0].tokens if attentions else []
                source, target = (
                    Words.of_text(tokenizers[0], piece.text),
                    Words.of_tokens(tokenizers[1], tokens),
                )
                weights = (
                    word_weights(attentions[0].cross(), source, target)
                    if attentions
                    else torch.zeros(0, len(source.words))
                )
                found.append(Look(weights, source.words, target.words))
            answer.looks = found

    def _attention(self, answers: list[Result]) -> bytes:
        from regard.decoding.attention import KINDS
        from regard.pipelines.attention_file import AttentionArchive, AttentionLines

        archive = Path(self.settings.attention).suffix == ".npz"
        held, text = io.BytesIO(), io.StringIO(newline="\n")
        file: Any = AttentionArchive(held) if archive else AttentionLines(text)
        for answer, seen in self._looked(answers, KINDS, self.settings.nbest):
            for i, (part, attentions) in enumerate(zip(answer.parts, seen, strict=True)):
                line = answer.number if len(answer.parts) == 1 else f"{answer.number}.{i}"  # a part of a line
                for rank, attention in enumerate(attentions):
                    file.add(line, rank, attention, part.hypotheses[rank].score)
        if archive:
            file.close()
        return held.getvalue() if archive else text.getvalue().encode("utf-8")

    def _looked(
        self, answers: list[Result], kinds: Sequence[str], most: int
    ) -> Iterator[tuple[Result, list[list[Any]]]]:
        """Each answer with the attention of its parts' hypotheses; a few lines at a time, since matrices are large."""
        from regard.decoding.attention import attention_maps

        for start in range(0, len(answers), LOOKED):
            few = answers[start : start + LOOKED]
            flat = [(part, h) for answer in few for part in answer.parts for h in part.hypotheses[:most]]
            sources, targets = [part.source_tokens for part, _ in flat], [h.whole for _, h in flat]
            found = iter(attention_maps(sources, targets, self.model, kinds) if flat else [])
            for answer in few:
                yield answer, [[next(found) for _ in part.hypotheses[:most]] for part in answer.parts]


def make_job(
    folders: Sequence[Path], settings: TranslateOptions, device: Any = "cpu", form: OutputFormat | None = None
) -> TranslateJob:
    """Load a model, or several that translate together, and get ready; what is wrong with them or the settings is said now."""
    models = [load(folder, device) for folder in folders]
    for folder, model in zip(folders, models, strict=True):
        if not isinstance(model, Translator):
            raise FolderError(
                f"{folder} is {model.what}, and translating takes a translator; `{model.command}` uses it"
            )
    if settings.shortlist and len(models) > 1:
        raise OptionError("a shortlist is for one model; leave out --with, or --shortlist")
    shortlist = load_shortlist(folders[0]) if settings.shortlist else None
    writers = [fast(model, settings.precision, shortlist) for model in models]
    made = TranslateJob(
        cast(Translator, models[0]), writers[0] if len(writers) == 1 else Ensemble(writers), settings, form
    )
    translate([], made.writer, **settings.arguments())  # nothing to do, so this only looks at the options
    if settings.align or settings.attention:
        _check_looks(models)
    return made


def _check_looks(models: Sequence[Any]) -> None:
    from regard.decoding.attention import attention_maps

    if len(models) > 1:
        raise OptionError(
            "several models have no attention in common; ask for it from one of them, without --with"
        )
    seen = attention_maps([[EOS]], [[EOS]], models[0], ("cross",))
    if not seen[0].names("cross"):
        raise OptionError(
            "this model's decoder does not look at the source, so there is no alignment to show"
        )


def _form(settings: TranslateOptions) -> OutputFormat:
    beside = settings.align and not settings.aligned
    if settings.form == "json":
        return Json(settings.field is not None, settings.nbest > 1, beside)
    if settings.form in ("table", "csv"):
        layout = WholeLine() if settings.separator is None else Column(1, settings.separator, settings.quotes)
        return Table(split_row(layout), beside, settings.form == "csv", tuple(settings.names))
    return Nbest() if settings.nbest > 1 else Text(beside)


def model_files(folder: Path) -> list[Path]:
    """The files that make a model, and its shortlist, of a model folder or the run it is in."""
    folder = folder / "model" if (folder / "model" / "config.json").is_file() else folder
    names = (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "source.json",
        "target.json",
        "card.json",
        SHORTLIST,
    )
    return [folder / name for name in names if (folder / name).is_file()]


def fingerprint(folders: Sequence[Path], shortlist: bool = False) -> str:
    """SHA-256 over the files of all models; over their shortlists only when these are used."""
    files = [
        path for folder in folders for path in model_files(folder) if shortlist or path.name != SHORTLIST
    ]
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()


def run_job(
    source: Source,
    outputs: Outputs,
    work: Work,
    total: int | None,
    *,
    what: str = "translate",
    progress: bool = True,
    over: Over | None = None,
) -> Reader:
    """Do what is left of a job. `over` spreads the chunks over other machines and gives them back in order."""
    reading = Reader(source)
    if outputs.lines and reading.skip(outputs.lines) != outputs.digest:
        raise OptionError(
            f"the first {outputs.lines:,} lines are not those that {outputs.outputs[0].name} was begun with; "
            "give the same text, or start over with --restart"
        )
    chunks = reading.chunks()
    bar = track(None if total is None else total - outputs.lines, what, "lines")
    with bar if progress else nullcontext():
        for chunk, data in over(work, chunks) if over else ((chunk, work(chunk)) for chunk in chunks):
            outputs.commit(data, chunk.first + len(chunk.rows), chunk.digest)
            bar.advance(len(chunk.rows))
    if not outputs.lines:  # an empty text: packed files still need a frame
        outputs.commit(work(Chunk(0, [], "")), 0, reading.skip(0))
    outputs.finish()
    return reading
