"""Tag files: lines of text or sentences of a CoNLL file in, bytes out, in order and resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.conll_reader import Parser, Sentence
from regard.data.tag_schemes import Span, scheme, spans
from regard.data.text_files import lines
from regard.data.word_splitter import Word, split_at_spaces
from regard.decoding.attention_weights import AttentionMaps
from regard.errors import OptionError
from regard.files.progress import track
from regard.models.tagger import BATCH_TOKENS, Tagger
from regard.pipelines.input import Chunk, Row, parsed
from regard.pipelines.job import job_settings, load_kind
from regard.pipelines.output_formats import OutputFormat, WithoutHeader, json_line
from regard.pipelines.packing import packing
from regard.pipelines.tag import frame_words, mark_spans, tag, tag_words, word_splitter


@dataclass(frozen=True)
class TagOptions:
    """Everything except the model and the input that determines the output of a tagging job.

    Attributes:
        output_format: text, conll or json.
        conll: the input is a CoNLL file.
        spaced: the words of a text are separated by spaces.
        column: the column of the words in a CoNLL file, from 1.
        field: name of the field of JSON lines.
        scheme: tag scheme of the output; by default that of the model.
        batch_tokens: maximum size of a batch.
        output: the output file; `-` is standard output.
    """

    output_format: str = "text"
    conll: bool = False
    spaced: bool = False
    column: int = 1
    field: str | None = None
    scheme: str | None = None
    batch_tokens: int = BATCH_TOKENS
    output: str = "-"

    def about(self, fingerprint: str) -> dict[str, Any]:
        """The settings that an interrupted job must share with the one that resumes it."""
        return job_settings(self, fingerprint)


@dataclass(frozen=True)
class TaggedLine:
    """A line of text, or a sentence of a CoNLL file, with its words and their tags."""

    row: Row
    words: Sequence[Word]
    tags: Sequence[str]
    sentence: Sentence | None = None
    frames: bool = False  # the words are the frame indices of a sequence

    def spans(self) -> Iterator[tuple[Span, str, int, int]]:
        """Yield each span with its text, start and end: characters of a line, words of a CoNLL sentence,
        frames of a sequence.
        """
        for span in spans(self.tags):
            words = self.words[span.start : span.stop]
            if self.frames:
                yield span, f"{span.start}-{span.stop - 1}", span.start, span.stop
            elif self.sentence is not None:
                yield span, " ".join(word.text for word in words), span.start, span.stop
            else:
                start, stop = words[0].start, words[-1].stop
                yield span, self.row.text[start:stop], start, stop


@dataclass(frozen=True)
class MarkedFormat(WithoutHeader):
    """The line with its spans marked: [PER Ada Lovelace] was born in [LOC London]. For a sequence of numbers,
    its file and the frames of each span: a.npy TAB 12-19 rising.
    """

    mark: Callable[[str, str], str] | None = None

    def write(self, result: TaggedLine) -> str:
        line, words = result.row.text, result.words
        if result.frames:
            spans = [f"{text} {span.type}" for span, text, _, _ in result.spans()]
            return "\t".join([line, *spans]) + "\n"
        if result.sentence is not None:
            line = " ".join(word.text for word in words)
            words = split_at_spaces(line)
        return mark_spans(line, words, result.tags, self.mark) + "\n"


@dataclass(frozen=True)
class ConllFormat(WithoutHeader):
    """CoNLL: the lines of the input with the tags as one more column; for a text, word and tag."""

    def write(self, result: TaggedLine) -> str:
        if result.sentence is None:
            rows = [f"{word.text}\t{tag}\n" for word, tag in zip(result.words, result.tags, strict=True)]
            return "".join(rows) + "\n"
        tags = dict(zip(result.sentence.numbers, result.tags, strict=True))
        separator = result.sentence.separator
        lines_of_row = [line.rstrip("\r") for line in result.row.line.split("\n")]
        written = [
            f"{line}{separator}{tags[i]}" if i in tags else line for i, line in enumerate(lines_of_row, 1)
        ]
        # The last sentence may lack its blank line.
        return "\n".join(written) + ("\n\n" if written[-1].strip() else "\n")


@dataclass(frozen=True)
class JsonFormat(WithoutHeader):
    """One object per line: that of the input, or the text, with its spans; words and tags of a CoNLL
    sentence.
    """

    objects: bool = False  # the input lines are JSON objects

    def write(self, result: TaggedLine) -> str:
        record: dict[str, Any] = {"text": result.row.text}
        if result.sentence is not None:
            record = {"words": [word.text for word in result.words], "tags": list(result.tags)}
        elif self.objects:
            record = parsed(result.row.line) if result.row.line.strip() else {}
        record["spans"] = [
            {"start": start, "end": stop, "type": span.type, "text": text}
            for span, text, start, stop in result.spans()
        ]
        return json_line(record)


class TagJob:
    """Tag a chunk of lines; the result depends on the chunk and the options only."""

    def __init__(self, model: Tagger, options: TagOptions, output_format: OutputFormat[TaggedLine]) -> None:
        self.model, self.options, self.output_format = model, options, output_format
        self._packing = packing(Path(options.output))
        self._frames = model.source_tokenizer.kind == "frames"
        self._split = split_at_spaces if options.spaced or self._frames else word_splitter(model)

    def __call__(self, chunk: Chunk) -> list[bytes]:
        text = "".join(map(self.output_format.write, self.results(chunk)))
        return [self._packing.pack(text.encode("utf-8", "replace"))]

    def results(self, chunk: Chunk) -> list[TaggedLine]:
        """Tag the words of all rows in one call."""
        if self._frames:
            return self._sequences(chunk.rows)
        sentences = [self._sentence(row) if self.options.conll else None for row in chunk.rows]
        words = [self._words(row, sentence) for row, sentence in zip(chunk.rows, sentences, strict=True)]
        texts = [[word.text for word in of_row] for of_row in words]
        tags = tag_words(self.model, texts, self.options.batch_tokens)
        if self.options.scheme is not None:
            tags = [scheme(self.options.scheme).convert(of_row) for of_row in tags]
        return [TaggedLine(*line) for line in zip(chunk.rows, words, tags, sentences, strict=True)]

    def _sequences(self, rows: Sequence[Row]) -> list[TaggedLine]:
        """Tag the sequences that the rows name."""
        named = [i for i, row in enumerate(rows) if row.text.strip()]
        tags = self.model.tag([rows[i].text for i in named], self.options.batch_tokens)
        of_row = dict(zip(named, tags, strict=True))
        return [
            TaggedLine(row, frame_words(of_row.get(i, [])), of_row.get(i, []), frames=True)
            for i, row in enumerate(rows)
        ]

    def attention(self, lines: Sequence[str]) -> list[AttentionMaps | None]:
        """Return the attention maps of lines of text; None for a line without words."""
        if self._frames:
            return [tagged.attention for tagged in tag(lines, self.model, attention=True)]
        words = [[word.text for word in self._split(line)] for line in lines]
        return [tagged.attention for tagged in tag(words, self.model, attention=True)]

    def _sentence(self, row: Row) -> Sentence:
        lines_of_row = (line.rstrip("\r") for line in row.line.split("\n"))
        return next(Parser("this sentence", self.options.column, None).sentences(lines_of_row), Sentence())

    def _words(self, row: Row, sentence: Sentence | None) -> list[Word]:
        if sentence is None:
            return self._split(row.text)
        return [Word(word, 0, 0) for word in sentence.words(self.options.column)]


def make_job(
    folder: Path,
    options: TagOptions,
    device: Any = "cpu",
    output_format: OutputFormat[TaggedLine] | None = None,
) -> TagJob:
    """Load the tagger, and check it and the options before the job starts."""
    model = load_kind(folder, device, Tagger, "tagging takes a tagger")
    if model.source_tokenizer.kind == "frames" and (options.conll or options.spaced or options.scheme):
        raise OptionError(
            "CoNLL input, --spaced and --scheme are for words, and this tagger reads sequences of numbers; "
            "leave them out"
        )
    if options.scheme is not None:
        scheme(options.scheme)
    formats: dict[str, OutputFormat[TaggedLine]] = {
        "text": MarkedFormat(),
        "conll": ConllFormat(),
        "json": JsonFormat(options.field is not None),
    }
    return TagJob(model, options, output_format or formats[options.output_format])


def check_conll(files: Sequence[Path], column: int) -> None:
    """Parse CoNLL files before the job starts; errors name line and column."""
    if column < 1:
        raise OptionError(f"--column is counted from 1, got {column}")
    for path in files:
        if path.is_file() and path.stat().st_size:
            with track(path.stat().st_size, f"checking {path.name}", "bytes") as bar:
                lines_of_row = (line for block in lines(path, advance=bar.advance) for line in block)
                for _ in Parser(str(path), column, None).sentences(lines_of_row):
                    pass
