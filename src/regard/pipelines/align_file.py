"""Align files of sentence pairs in chunks, with one translator or one per direction."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from regard.data.text_files import BAD, LONG
from regard.errors import DataError, OptionError
from regard.files.atomic import replace_file
from regard.models.folder import model_in
from regard.models.frames import require_text
from regard.models.target_language import add_target, check_target, target_of
from regard.models.translator import Translator
from regard.pipelines.align import (
    CHUNK,
    SAMPLE,
    View,
    align_words,
    best_view,
    clearest_view,
    plain_sources,
    reverse_language,
)
from regard.pipelines.alignment_head import HEAD, AlignmentHead, HeadTraining, train_alignment_head
from regard.pipelines.input import Reader, Source
from regard.pipelines.job import convert_write_errors, load_kind
from regard.pipelines.word_links import Links, LinkSelection, flipped

MAX_CHARACTERS = 5000  # per line: the attention maps of longer lines need too much memory


class Pairs(Protocol):
    """Interface of sentence pairs: `TextPairs` in memory, `LinePairs` in two files."""

    @property
    def files(self) -> tuple[Any, ...]: ...

    def __iter__(self) -> Iterator[tuple[str, ...]]: ...

    def blocks(self) -> Iterator[Any]:
        """Yield lists of sources and of targets."""
        ...


@dataclass(frozen=True)
class TextPairs:
    """Pairs in memory, with the interface of `LinePairs`."""

    sources: list[str]
    targets: list[str]
    files = ("the source", "the target")

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return zip(self.sources, self.targets, strict=True)

    def blocks(self) -> Iterator[tuple[list[str], list[str]]]:
        yield self.sources, self.targets


def read_standard_input() -> TextPairs:
    """Read pairs from standard input: a text, a tab and its translation per line."""
    source = Source((Path("-"),))
    rows = [row.line.split("\t") for chunk in Reader(source).chunks() for row in chunk.rows]
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise DataError(
                f"line {number} of standard input has {len(row) - 1} tabs; "
                "put one between a text and its translation"
            )
    return TextPairs([row[0] for row in rows], [row[1] for row in rows])


def count_words(pairs: Pairs) -> list[tuple[int, int]]:
    """Return the number of words of each pair, after checking all lines."""
    counts = []
    for number, row in enumerate(pairs, 1):
        for path, line in zip(pairs.files, row, strict=True):
            if line in (BAD, LONG) or len(line) > MAX_CHARACTERS:
                too_long = f"has more than {MAX_CHARACTERS:,} characters, too many for a sentence"
                problem = "is not UTF-8 text" if line == BAD else too_long
                raise DataError(f"line {number} of {path} {problem}; give one sentence per line")
        counts.append((len(row[0].split()), len(row[1].split())))
    return counts


def chunks(pairs: Pairs, size: int = CHUNK) -> Iterator[tuple[list[str], list[str]]]:
    """Yield `size` pairs at a time, as a list of sources and a list of targets."""
    for sources, targets in pairs.blocks():
        for start in range(0, len(sources), size):
            yield sources[start : start + size], targets[start : start + size]


@dataclass(frozen=True)
class ViewChoice:
    """--layer, --head and --shift as the user wrote them: numbers, "best", or None for the mean of all.

    Without any of them, the view is that of the model's card.
    """

    layer: str | None = None
    head: str | None = None
    shift: bool = False

    def __post_init__(self) -> None:
        if self.head == "best" and self.layer is not None:
            raise OptionError("--head best chooses the layer too; leave --layer out")
        if self.layer == "best" and (self.head is not None or self.shift):
            raise OptionError(
                "--layer best uses all heads and chooses the shift too; leave --head and --shift out"
            )
        for option, value in (("--layer", self.layer), ("--head", self.head)):
            if value not in (None, "best") and not value.removeprefix("-").isdecimal():
                raise OptionError(f"{option} must be an integer from 0, or best, got {value!r}")

    def choose(self, model: Translator, sources: list[str], targets: list[str]) -> View:
        """Return the view; "best" is chosen on these pairs. Raise if the model has no such layer or head."""
        if self.head == "best":
            view = best_view(sources, targets, model, shift=self.shift)
        elif self.layer == "best":
            view = clearest_view(sources, targets, model)
        elif self == ViewChoice():
            view = View.of(model)
        else:
            layer, head = (None if value is None else int(value) for value in (self.layer, self.head))
            view = View(layer, head, self.shift)
        list(align_words(["a"], ["a"], model, view))  # raises for a wrong layer or head
        return view

    @property
    def is_automatic(self) -> bool:
        """Whether the view depends on the model and the data."""
        return "best" in (self.layer, self.head)


class PairAlignment(NamedTuple):
    """The weights (target words, source words) of the forward model, and the links."""

    weights: Tensor
    links: Links


class Aligner:
    """Align pairs with a translator, and join the links of the reverse direction: of a second translator, or
    of the same if it translates both ways.
    """

    def __init__(
        self,
        model: Translator,
        reverse: Translator | None,
        pairs: Pairs,
        choice: ViewChoice,
        selection: LinkSelection,
        to: str | None = None,
        heads: Sequence[AlignmentHead] = (),
    ) -> None:
        """`to` is the language of the targets, for a model of several; by default it is guessed from them.

        `heads` are learned ones, one per model, used instead of the models' attention.
        """
        if reverse is not None and selection.symmetrize == "none":
            raise OptionError("--symmetrize none uses one direction; leave out --reverse")
        if reverse is None and heads and selection.symmetrize not in (None, "none"):
            raise OptionError("--learned aligns in one direction; give --reverse, or leave out --symmetrize")
        sources, targets = next(chunks(pairs, SAMPLE))
        self.model, self.reverse, self.selection = model, reverse, selection
        if to is not None:
            check_target(model, to)
        self._to = target_of(targets, model, to)
        if reverse is not None:
            self._reverse_to = target_of(sources, reverse)
        elif heads:
            self._reverse_to = None
        else:
            self._reverse_to = reverse_language(sources, model, self._to, selection)
            self.reverse = reverse = None if self._reverse_to is None else model
        self.view: View | AlignmentHead | None = None
        self.reverse_view: View | AlignmentHead | None = None
        if heads:
            self.view, self.reverse_view = (*heads, None)[:2]
            return
        self.view = choice.choose(model, add_target(sources, model, self._to), targets)
        if reverse is not None:
            tagged = add_target(targets, reverse, self._reverse_to)
            self.reverse_view = choice.choose(reverse, tagged, plain_sources(sources, reverse))

    @property
    def passes(self) -> int:
        """Number of forward passes per pair, for the progress bar."""
        return 1 if self.reverse is None else 2

    def __call__(
        self, sources: list[str], targets: list[str], advance: Callable[[int], None]
    ) -> list[PairAlignment]:
        """Align pairs, in order; calls `advance(1)` after each sentence of each pass."""
        weights = _weights(self.model, *self.forward_pairs(sources, targets), self.view, advance)
        if self.reverse is None:
            return [PairAlignment(w, self.selection.links(w)) for w in weights]
        pairs = self.backward_pairs(self.reverse, sources, targets)
        backward = _weights(self.reverse, *pairs, self.reverse_view, advance)
        both = zip(weights, backward, strict=True)
        return [PairAlignment(w, self.selection.joined(w, back)) for w, back in both]

    def forward_pairs(self, sources: list[str], targets: list[str]) -> tuple[list[str], list[str]]:
        """Sources with the language token of the targets, if the model takes one, and targets."""
        return add_target(sources, self.model, self._to), targets

    def backward_pairs(
        self, model: Translator, sources: list[str], targets: list[str]
    ) -> tuple[list[str], list[str]]:
        """The same for the reverse direction: targets with a language token, and plain sources."""
        return add_target(targets, model, self._reverse_to), plain_sources(sources, model)


def load_translator(folder: Path, device: Any) -> Translator:
    """Load a translator; another kind of model is an error."""
    model = load_kind(folder, device, Translator, "aligning takes a translator")
    require_text(model, "align")
    return model


def learn_heads(
    aligner: Aligner,
    pairs: Pairs,
    folders: Sequence[Path],
    options: HeadTraining,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> list[Path]:
    """Train an alignment head of each model on the links of the pairs; write it into the model's folder."""
    sources, targets, links = [], [], []
    for some_sources, some_targets in chunks(pairs):
        links += [pair.links for pair in aligner(some_sources, some_targets, lambda count: None)]
        sources, targets = sources + some_sources, targets + some_targets
    paths = [model_in(folder) / HEAD for folder in folders]
    forward = aligner.forward_pairs(sources, targets)
    train_alignment_head(aligner.model, *forward, links, options, report).save(paths[0])
    if len(folders) > 1:
        assert aligner.reverse is not None
        backward = aligner.backward_pairs(aligner.reverse, sources, targets)
        reverse_links = [flipped(pair) for pair in links]
        train_alignment_head(aligner.reverse, *backward, reverse_links, options, report).save(paths[1])
    return paths


def load_translators(folder: Path, reverse: Path | None, device: Any) -> tuple[Translator, Translator | None]:
    """Load the translator, and that of the reverse direction if it is given."""
    return load_translator(folder, device), None if reverse is None else load_translator(reverse, device)


@contextmanager
def partial_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes to FILE.part; it is renamed to FILE at the end of the block."""
    part = path.with_name(path.name + ".part")
    with convert_write_errors(str(part)):
        file = part.open("w", encoding="utf-8", newline="\n")

    def write(text: str) -> None:
        file.write(text)
        file.flush()

    try:
        with file, convert_write_errors(str(part)):
            yield write
    except BaseException:
        print(f"regard: the alignments so far are in {part}", file=sys.stderr)
        raise
    with convert_write_errors(str(path)):
        replace_file(part, path)


def _weights(
    model: Translator,
    sources: list[str],
    targets: list[str],
    view: View | AlignmentHead | None,
    advance: Callable[[int], None],
) -> list[Tensor]:
    """Return the weights between the words of each pair, in order."""
    weights = {}
    for i, alignment in align_words(sources, targets, model, view):
        weights[i] = alignment.weights
        advance(1)
    return [weights[i] for i in range(len(weights))]
