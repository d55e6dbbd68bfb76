"""A job that tags: lines of text or sentences of a CoNLL file in, bytes out, in order; what is written depends on them alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Protocol, cast, overload

from torch.nn import Module

from regard.arguments import integer, quoted
from regard.data.conll_reader import Parser, Sentence
from regard.data.spelled_tokenizer import SpelledTokenizer
from regard.data.tag_schemes import Span, scheme, spans
from regard.data.text_files import lines
from regard.data.word_splitter import Word, WordSplitter, split_at_spaces
from regard.decoding.limits import max_positions
from regard.errors import FolderError, OptionError
from regard.files.progress import track
from regard.models.default import as_model
from regard.models.folder import load
from regard.models.tagger import BATCH_TOKENS, Tagger
from regard.pipelines.input import Chunk, Row, parsed
from regard.pipelines.job import job_settings
from regard.pipelines.packing import packing

LONGEST = 1000  # words that are read at once; a longer line is tagged in parts


@dataclass(frozen=True)
class Entity:
    """A labelled span: text[start:end] of a text, words start … end − 1 of a list of words."""

    text: str
    label: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.text} ({self.label})"


class Tagged(list[Entity]):
    """The spans of one sentence, in order, with its words and the tag of each. `str` marks the spans in the text."""

    def __init__(self, spans: Iterable[Entity], words: Sequence[str], tags: Sequence[str], text: str) -> None:
        super().__init__(spans)
        self.words, self.tags, self.text = list(words), list(tags), text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return list.__repr__(self)


@overload
def tag(texts: str, model: Any = None, *, batch_tokens: int = BATCH_TOKENS) -> Tagged: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def tag(
    texts: Sequence[str | Sequence[str]], model: Any = None, *, batch_tokens: int = BATCH_TOKENS
) -> list[Tagged]: ...


def tag(
    texts: str | Sequence[str | Sequence[str]], model: Any = None, *, batch_tokens: int = BATCH_TOKENS
) -> Tagged | list[Tagged]:
    """Find the labelled spans of one text, or of each of a list.

    >>> regard.tag("Ada met Bob.", "runs/wnut17")
    [Entity(text='Ada', label='PER', start=0, end=3), Entity(text='Bob', label='PER', start=8, end=11)]
    >>> regard.tag([["Ada", "met", "Bob"]], model)[0].tags
    ['B-PER', 'O', 'B-PER']

    `model` is a folder, a loaded tagger, or left out for the default (the folder in REGARD_MODEL). A text is cut into words as
    `regard tag` cuts it; a list of words within the list is taken as it is, and its spans count words.
    """
    given, one = ([texts], True) if isinstance(texts, str) else (_listed(texts), False)
    rows = [_given(text) for text in given]
    model = as_model(model, "tag")
    if not isinstance(model, Tagger):
        what = getattr(model, "what", None)
        raise OptionError(
            f"tag takes a tagger, as regard.load gives it, got {what or type(model).__name__}; train one with task: tag"
        )
    if not hasattr(model, "source_tokenizer"):
        raise OptionError(
            "tag takes a tagger with its tokenizers, as regard.load gives it; this one has none"
        )
    integer("batch_tokens", batch_tokens)
    cut = _cutter(model)
    words = [
        cut(row) if isinstance(row, str) else [Word(word, at, at + 1) for at, word in enumerate(row)]
        for row in rows
    ]
    tags = _tag_words(model, [[word.text for word in each] for each in words], batch_tokens)
    found = [_found(*each) for each in zip(rows, words, tags, strict=True)]
    return found[0] if one else found


def _found(row: str | list[str], words: list[Word], tags: list[str]) -> Tagged:
    texts = [word.text for word in words]
    line = row if isinstance(row, str) else " ".join(row)
    found: list[Entity] = []
    for span in spans(tags):
        start, end = words[span.start].start, words[span.stop - 1].stop
        text = line[start:end] if isinstance(row, str) else " ".join(texts[start:end])
        found.append(Entity(text, span.type, start, end))
    if not isinstance(row, str):  # places of the words in the line that is shown
        ends = [len(word) + 1 for word in texts]
        words = [
            Word(word, at, at + len(word))
            for word, at in zip(texts, accumulate(ends, initial=0), strict=False)
        ]
    answer = Result(Row(line, line), words, tags)
    return Tagged(found, texts, tags, Marked().write(answer)[:-1])


def _listed(texts: object) -> list[object]:
    if isinstance(texts, Module) or not isinstance(texts, Iterable):
        raise OptionError(
            f"texts is a text, or a list of texts or of lists of words, got {quoted(texts)}; the model comes second"
        )
    return list(texts)


def _given(sentence: object) -> str | list[str]:
    """A text, or a list of words."""
    if isinstance(sentence, str):
        return sentence
    words = list(sentence) if isinstance(sentence, Sequence) else [None]
    if not all(isinstance(word, str) for word in words):
        raise OptionError(f"a sentence is a text or a list of words, got {quoted(sentence)}")
    return cast("list[str]", words)


def _cutter(model: Tagger) -> Callable[[str], list[Word]]:
    source = model.source_tokenizer
    return WordSplitter.like(
        source.words.vocabulary if isinstance(source, SpelledTokenizer) else source.vocabulary
    )


def _tag_words(model: Tagger, sentences: list[list[str]], batch_tokens: int) -> list[list[str]]:
    """The tags of each sentence; one that is longer than the model reads is tagged in parts."""
    room = min(LONGEST, max_positions(model.encoder) or LONGEST)
    parts = [[words[at : at + room] for at in range(0, len(words), room)] for words in sentences]
    found = iter(model.tag([part for each in parts for part in each], batch_tokens))
    return [list(chain.from_iterable(next(found) for _ in each)) for each in parts]


@dataclass(frozen=True)
class TagOptions:
    """Everything but the model and the text that decides what is written."""

    form: str = "text"  # text, conll or json
    conll: bool = False  # what comes in is CoNLL
    spaced: bool = False  # words of a text stand apart by spaces already
    column: int = 1  # of a CoNLL file, the words
    field: str | None = None
    scheme: str | None = None
    batch_tokens: int = BATCH_TOKENS
    output: str = "-"

    def about(self, fingerprint: str) -> dict[str, Any]:
        """What a job must have in common with the one it goes on with."""
        return job_settings(self, fingerprint)


@dataclass(frozen=True)
class Result:
    """A line of text, or a sentence of a CoNLL file, with its words and their tags. A text's words have places in it."""

    row: Row
    words: Sequence[Word]
    tags: Sequence[str]
    sentence: Sentence | None = None

    def found(self) -> Iterator[tuple[Span, str, int, int]]:
        """Each span with its text: where it begins and ends in the line; of a CoNLL sentence, which words."""
        for span in spans(self.tags):
            if self.sentence is not None:
                yield (
                    span,
                    " ".join(word.text for word in self.words[span.start : span.stop]),
                    span.start,
                    span.stop,
                )
            else:
                start, stop = self.words[span.start].start, self.words[span.stop - 1].stop
                yield span, self.row.text[start:stop], start, stop


class OutputFormat(Protocol):
    """How an answer is written; always whole lines."""

    def write(self, answer: Result) -> str: ...


@dataclass(frozen=True)
class Marked:
    """The line with its spans marked: [PER Ada Lovelace] was born in [LOC London]."""

    mark: Callable[[str, str], str] = lambda text, kind: f"[{kind} {text}]"

    def write(self, answer: Result) -> str:
        line, done, parts = answer.row.text, 0, []
        if answer.sentence is not None:
            line = " ".join(word.text for word in answer.words)
            answer = Result(Row(line, line), split_at_spaces(line), answer.tags)
        for span, text, start, stop in answer.found():
            parts += [line[done:start], self.mark(text, span.type)]
            done = stop
        return "".join([*parts, line[done:]]) + "\n"


@dataclass(frozen=True)
class Columns:
    """CoNLL: the lines as they came with the tags as one more column; of a text, word and tag."""

    def write(self, answer: Result) -> str:
        if answer.sentence is None:
            rows = [f"{word.text}\t{tag}\n" for word, tag in zip(answer.words, answer.tags, strict=True)]
            return "".join(rows) + "\n"
        tags = dict(zip(answer.sentence.numbers, answer.tags, strict=True))
        rows = enumerate((line.rstrip("\r") for line in answer.row.line.split("\n")), 1)
        kept = [
            f"{line}{answer.sentence.separator}{tags[number]}" if number in tags else line
            for number, line in rows
        ]
        return "\n".join(kept) + "\n" * (
            2 if kept[-1].strip() else 1
        )  # the last sentence may lack its blank line


@dataclass(frozen=True)
class Json:
    """One object a line: the one that came, or the text, with its spans; of a CoNLL sentence its words and tags."""

    objects: bool = False  # lines are objects already

    def write(self, answer: Result) -> str:
        given: dict[str, Any] = {"text": answer.row.text}
        if answer.sentence is not None:
            given = {"words": [word.text for word in answer.words], "tags": list(answer.tags)}
        elif self.objects:
            given = parsed(answer.row.line) if answer.row.line.strip() else {}
        found = [
            {"start": start, "end": stop, "type": span.type, "text": text}
            for span, text, start, stop in answer.found()
        ]
        return (
            json.dumps(given | {"spans": found}, ensure_ascii=False).encode("utf-8", "replace").decode()
            + "\n"
        )


class TagJob:
    """What is done to a chunk, with the model at hand."""

    def __init__(self, model: Tagger, settings: TagOptions, form: OutputFormat) -> None:
        self.model, self.settings, self.form = model, settings, form
        self._packing = packing(Path(settings.output))
        self._cut = split_at_spaces if settings.spaced else _cutter(model)

    def __call__(self, chunk: Chunk) -> list[bytes]:
        return [
            self._packing.pack("".join(map(self.form.write, self.answers(chunk))).encode("utf-8", "replace"))
        ]

    def answers(self, chunk: Chunk) -> list[Result]:
        """Each row's words, tagged all together and dealt out again."""
        sentences = (
            [self._sentence(row) for row in chunk.rows] if self.settings.conll else [None] * len(chunk.rows)
        )
        words = [self._words(row, sentence) for row, sentence in zip(chunk.rows, sentences, strict=True)]
        tags = self._tagged([[word.text for word in each] for each in words])
        return [Result(*each) for each in zip(chunk.rows, words, tags, sentences, strict=True)]

    def _tagged(self, sentences: list[list[str]]) -> list[list[str]]:
        whole, wanted = _tag_words(self.model, sentences, self.settings.batch_tokens), self.settings.scheme
        return whole if wanted is None else [scheme(wanted).convert(tags) for tags in whole]

    def _sentence(self, row: Row) -> Sentence:
        given = (line.rstrip("\r") for line in row.line.split("\n"))
        return next(Parser("this sentence", self.settings.column, None).sentences(given), Sentence())

    def _words(self, row: Row, sentence: Sentence | None) -> list[Word]:
        if sentence is None:
            return self._cut(row.text)
        return [Word(word, 0, 0) for word in sentence.words(self.settings.column)]


def make_job(
    folder: Path, settings: TagOptions, device: Any = "cpu", form: OutputFormat | None = None
) -> TagJob:
    """Load a tagger and get ready."""
    model = load(folder, device)
    if not isinstance(model, Tagger):
        raise FolderError(
            f"{folder} is a {model.kind.replace('-', ' ')}, and tagging takes a tagger; train one with task: tag"
        )
    if settings.scheme is not None:
        scheme(settings.scheme)
    forms: dict[str, OutputFormat] = {
        "text": Marked(),
        "conll": Columns(),
        "json": Json(settings.field is not None),
    }
    return TagJob(model, settings, form or forms[settings.form])


def check_conll(files: Sequence[Path], column: int) -> None:
    """Look through CoNLL files before the work starts; what does not fit is named by line and column."""
    if column < 1:
        raise OptionError(f"--column is counted from 1, got {column}")
    for path in files:
        if path.is_file() and path.stat().st_size:
            with track(path.stat().st_size, f"checking {path.name}", "bytes") as bar:
                given = (line for block in lines(path, advance=bar.advance) for line in block)
                for _ in Parser(str(path), column, None).sentences(given):
                    pass
