"""`regard align`: word alignments of texts and their translations, by a model's attention."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import search_options

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.readers import LinePairs
    from regard.pipelines.align import Links, View

CHUNK = 1024  # pairs at a time: sorted by length among themselves, written in order
MOST = 5000  # characters of a line: the matrices of a longer one would fill memory


def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE TARGET]",
            help="A text and its translation; after -i, files. Else standard input.",
        ),
    ] = None,
    model: search_options.Model = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Two files, sentences and their translations: plain, .gz or .xz.",
        ),
    ] = None,
    reverse: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="A model that translates back; both are joined.")
    ] = None,
    join: Annotated[
        str,
        typer.Option(
            help="With --reverse: weights, or of the links grow-diag-final-and, intersection or union."
        ),
    ] = "weights",
    layer: Annotated[
        str | None,
        typer.Option(
            metavar="N|best",
            help="A layer, from 0, or the layer and step that link most words; else the mean of all.",
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Option(metavar="N|best", help="One head's, or the one that tells most.")
    ] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="By the step that reads a word, not the one that writes it.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Every link of at least this weight; else each target word's strongest."
        ),
    ] = None,
    mutual: Annotated[
        bool, typer.Option("--mutual", help="Only links between words that are each other's strongest.")
    ] = False,
    gold: Annotated[
        Path | None, typer.Option(help="Gold links; prints AER, precision and recall instead of links.")
    ] = None,
    gold_base: Annotated[
        int | None, typer.Option(min=0, max=1, help="Whether gold counts words from 0 or 1.")
    ] = None,
    flip_gold: Annotated[bool, typer.Option("--flip-gold", help="Gold has target words first.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the links here, one line a pair.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Draw each pair's weights between words.")] = False,
    device: search_options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="With --gold: print JSON.")] = False,
) -> None:
    """Link the words of texts and their translations, as "0-0 1-2" (source-target, Pharaoh's format), whoever translated them.

    Standard input holds a text and its translation on a line, with a tab between.

    Examples:

        regard align "Tom is happy ." "Tom ist glücklich ." --model runs/small --show

        regard align -i test.en test.de --model runs/small -o links.txt

        regard align -i test.en test.de --model runs/small --gold gold.txt
    """
    from regard.cli.text_options import model_folder
    from regard.errors import OptionError
    from regard.evaluation.alignment import read_gold, score, validate_gold
    from regard.files.progress import track
    from regard.pipelines.align import chosen, joined, pharaoh, symmetry

    if join != "weights":
        symmetry(join)
    if mutual and threshold is not None:
        raise OptionError("--mutual and --threshold are two ways to choose links; give one")
    if as_json and gold is None:
        raise OptionError("--json prints scores; give the links to score against: --gold FILE")
    if output is not None and not output.absolute().parent.is_dir():
        raise OptionError(f"{output} cannot be written, its folder is not there; make it first")
    folder = model_folder(model, "align", text or [])
    pairs = _pairs(text or [], files)
    sizes = _sizes(pairs)
    wanted = None if gold is None else validate_gold(read_gold(gold, base=gold_base, flip=flip_gold), sizes)
    models = [_translator(path, device) for path in ([folder] if reverse is None else [folder, reverse])]
    views = [_view(m, pairs, i == 1, layer, head, shift) for i, m in enumerate(models)]
    found: list[Links] = []
    with track(len(sizes) * len(models), "align", "sentences") as progress, _lines(output) as write:
        for left, right in _chunks(pairs):
            weights = _weights(models[0], left, right, views[0], progress.advance)
            if reverse is None:
                links = [chosen(each, threshold, both=mutual) for each in weights]
            else:
                back = _weights(models[1], right, left, views[1], progress.advance)
                links = [
                    joined(a, b, join, threshold, both=mutual) for a, b in zip(weights, back, strict=True)
                ]
            if output is not None or (gold is None and not show):
                write("".join(f"{pharaoh(each)}\n" for each in links))
            if show:
                _print("".join(map(_drawn, weights, left, right, links)))
            found += links if wanted is not None else []
    if wanted is not None:
        scored = score(found, wanted)
        _print((json.dumps(scored.as_dict(), indent=2) if as_json else str(scored)) + "\n")


@dataclass(frozen=True)
class Pairs:
    """Texts from memory and their translations, read as two files are."""

    sources: list[str]
    targets: list[str]
    files = ("the source", "the target")

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return zip(self.sources, self.targets, strict=True)

    def blocks(self) -> Iterator[tuple[list[str], list[str]]]:
        yield self.sources, self.targets


def _pairs(texts: list[str], files: list[Path] | None) -> LinePairs | Pairs:
    """Two files, two texts, or lines of standard input with a tab between the two."""
    from regard.data.readers import LinePairs
    from regard.errors import OptionError
    from regard.models.folder import is_file

    if files:
        named = [*files, *map(Path, texts)]
        if len(named) != 2:
            raise OptionError(
                f"-i takes two files, the sentences and their translations, got {len(named)}: -i test.en test.de"
            )
        return LinePairs(*named)
    if not texts:
        return _from_standard_input()
    if len(texts) != 2:
        raise OptionError(
            f"align takes a text and its translation, got {len(texts)}; put each in quotes, or name files after -i"
        )
    if all(is_file(Path(each)) for each in texts):
        again = shlex.join(["regard", "align", "-i", *texts])
        raise OptionError(f"{texts[0]} and {texts[1]} are files, and files are named after -i: {again}")
    sides = [[each.encode("utf-8", "surrogateescape").decode("utf-8", "replace")] for each in texts]
    return Pairs(*sides)


def _from_standard_input() -> Pairs:
    from regard.errors import DataError
    from regard.pipelines.input import Reader, Source

    rows = [row.line.split("\t") for chunk in Reader(Source((Path("-"),))).chunks() for row in chunk.rows]
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise DataError(
                f"line {number} of standard input has {len(row) - 1} tabs; put one between a text and its translation"
            )
    return Pairs([row[0] for row in rows], [row[1] for row in rows])


@contextmanager
def _lines(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Where links go: standard output, or a file that is called FILE.part until it is whole."""
    if path is None:
        yield _print
        return
    part = path.with_name(path.name + ".part")
    with _saying(part):
        file = part.open("w", encoding="utf-8", newline="\n")

    def write(text: str) -> None:
        file.write(text)
        file.flush()

    try:
        with file, _saying(part):
            yield write
    except BaseException:
        print(f"regard: what was aligned so far is in {part}", file=sys.stderr)
        raise
    with _saying(path):
        part.replace(path)


def _print(text: str) -> None:
    try:
        with _saying("standard output"):
            print(text, end="", flush=True)
    except BrokenPipeError:  # as `cat` ends when nobody reads on; what is still held back goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None


@contextmanager
def _saying(name: Path | str) -> Iterator[None]:
    """What cannot be written is said in one sentence; a closed pipe is the caller's."""
    from regard.errors import DataError

    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(
            f"{name} cannot be written: {error.strerror or error}; free some space, or write elsewhere"
        ) from None


def _chunks(pairs: LinePairs | Pairs, size: int = CHUNK) -> Iterator[tuple[list[str], list[str]]]:
    """Some pairs at a time, as two lists."""
    for left, right in pairs.blocks():
        for start in range(0, len(left), size):
            yield left[start : start + size], right[start : start + size]


def _sizes(pairs: LinePairs | Pairs) -> list[tuple[int, int]]:
    """How many words each pair has; files that do not fit together, or are no text, are noticed before any work."""
    from regard.data.text_files import BAD, LONG
    from regard.errors import DataError

    sizes = []
    for number, row in enumerate(pairs, 1):
        for path, line in zip(pairs.files, row, strict=True):
            if line in (BAD, LONG) or len(line) > MOST:
                why = (
                    "is not UTF-8 text"
                    if line == BAD
                    else f"has more than {MOST:,} characters, too many for a sentence"
                )
                raise DataError(f"line {number} of {path} {why}; give one sentence a line")
        sizes.append((len(row[0].split()), len(row[1].split())))
    return sizes


def _translator(path: Path, device: str) -> Any:
    from regard.errors import OptionError
    from regard.models.folder import load
    from regard.models.translator import Translator
    from regard.training.distributed import pick_device

    found = load(path, pick_device(device))
    if not isinstance(found, Translator):
        raise OptionError(f"{path} is {found.what}, which has no source to align with; give a translator")
    return found


def _view(
    model: Any, pairs: LinePairs | Pairs, back: bool, layer: str | None, head: str | None, shift: bool
) -> View:
    """What to align by; a head that is not there is noticed on the first pair rather than after the longest."""
    from regard.errors import OptionError
    from regard.pipelines.align import SAMPLE, View, align, best_view, clearest_view

    left, right = next(_chunks(pairs, SAMPLE))
    sides = (right, left) if back else (left, right)
    told = f"regard: {'backwards ' if back else ''}by"
    if head == "best":
        if layer is not None:
            raise OptionError("--head best chooses the layer too; leave --layer out")
        view = best_view(*sides, model, shift=shift)
        print(f"{told} layer {view.layer}, head {view.head}", file=sys.stderr)
        return view
    if layer == "best":
        if head is not None or shift:
            raise OptionError(
                "--layer best takes all heads and chooses the step too; leave --head and --shift out"
            )
        view = clearest_view(*sides, model)
        align(["a"], ["a"], model, view=view)
        print(
            f"{told} layer {view.layer}, the step that {'reads' if view.shift else 'writes'} a word",
            file=sys.stderr,
        )
        return view
    view = View(_number("--layer", layer), _number("--head", head), shift)
    align(["a"], ["a"], model, view=view)
    return view


def _number(option: str, given: str | None) -> int | None:
    from regard.errors import OptionError

    if given is not None and not given.removeprefix("-").isdecimal():
        raise OptionError(f"{option} is a number from 0, or best, got {given!r}")
    return None if given is None else int(given)


def _weights(
    model: Any, sources: list[str], targets: list[str], view: View, advance: Callable[[int], None]
) -> list[Tensor]:
    """The weights between the words of each pair, in order."""
    from regard.pipelines.align import aligned

    found = {}
    for i, weights, _, _ in aligned(sources, targets, model, view=view):
        found[i] = weights
        advance(1)
    return [found[i] for i in range(len(found))]


def _drawn(weights: Tensor, source: str, target: str, links: Links) -> str:
    from regard.cli.weight_matrix import render
    from regard.pipelines.align import pharaoh

    return f"{render(weights, source.split(), target.split())}\n{pharaoh(links)}\n\n"
