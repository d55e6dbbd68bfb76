"""`regard align`: word alignments of texts and their translations, from a model's attention."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import option_groups as shared
from regard.cli.option_groups import INPUT, OUTPUT, SEARCH, OptionGroup, grouped, option

if TYPE_CHECKING:
    from regard.pipelines.align_file import Aligner, PairAlignment, Pairs


@dataclass(frozen=True)
class ViewOptions(OptionGroup):
    """Which attention is used."""

    layer: Annotated[
        str | None,
        option(
            metavar="N|best",
            help="Layer, from 0, or `best`: layer and step that link most words. Default: the mean of all.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    head: Annotated[
        str | None,
        option(
            metavar="N|best",
            help="Head, from 0, or `best`: the layer and head that link most words. Default: the mean of "
            "all.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    shift: Annotated[
        bool,
        option(
            "--shift",
            help="Use the step that reads a token instead of the one that generates it.",
            rich_help_panel=SEARCH,
        ),
    ] = False


@dataclass(frozen=True)
class LinkOptions(OptionGroup):
    """Which links are kept."""

    threshold: Annotated[
        float | None,
        option(
            min=0,
            max=1,
            help="Keep links of at least this weight. Default: the strongest of each target word.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    mutual: Annotated[
        bool,
        option("--mutual", help="Keep links that are the strongest of both words.", rich_help_panel=SEARCH),
    ] = False
    join: Annotated[
        str,
        option(
            help="With --reverse: weights, or for links grow-diag-final-and, intersection or union.",
            rich_help_panel=SEARCH,
        ),
    ] = "weights"


@dataclass(frozen=True)
class GoldOptions(OptionGroup):
    """Scoring against gold links."""

    gold: Annotated[
        Path | None,
        option(
            help="Gold links; print AER, precision and recall instead of links.", rich_help_panel="Scoring"
        ),
    ] = None
    gold_base: Annotated[
        int | None,
        option(min=0, max=1, help="First index of words in gold links.", rich_help_panel="Scoring"),
    ] = None
    flip_gold: Annotated[
        bool, option("--flip-gold", help="Gold links have the target word first.", rich_help_panel="Scoring")
    ] = False
    as_json: Annotated[bool, option("--json", help="With --gold: print JSON.", rich_help_panel="Scoring")] = (
        False
    )


@grouped
def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE TARGET]",
            help="A text and its translation; after -i, files. Default: standard input.",
        ),
    ] = None,
    *,
    model: shared.Model = None,
    reverse: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Model of the reverse direction, to combine both."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="LANGUAGE", help="Language of the translations; default: guessed."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Two files, sentences and their translations: plain, .gz or .xz.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    view: ViewOptions,
    link: LinkOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the links here, one line per pair.", rich_help_panel=OUTPUT
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--show", help="Draw the weights between words of each pair.", rich_help_panel=OUTPUT),
    ] = False,
    picture: shared.PictureFileOptions,
    gold: GoldOptions,
    device: shared.Device = "auto",
) -> None:
    """Align the words of texts and their translations, in Pharaoh format: "0-0 1-2" (source-target).

    Each line of standard input has a text and its translation, separated by a tab.

    Examples:

        regard align "Tom is happy ." "Tom ist glücklich ." --model runs/small --show

        regard align "Tom is happy ." "Tom ist glücklich ." --model runs/small --picture tom.svg

        regard align -i test.en test.de --model runs/small -o links.txt

        regard align -i test.en test.de --model runs/small --gold gold.txt
    """
    from regard.cli import pictures
    from regard.cli.jobs import model_folder
    from regard.errors import OptionError
    from regard.evaluation.alignment import read_gold, score, validate_gold
    from regard.files.progress import track
    from regard.pipelines.align_file import (
        Aligner,
        ViewChoice,
        chunks,
        count_words,
        load_translator,
        partial_file,
    )
    from regard.pipelines.word_links import LinkSelection, pharaoh
    from regard.training.distributed import pick_device

    selection = LinkSelection(link.threshold, link.mutual, link.join)
    choice = ViewChoice(view.layer, view.head, view.shift)
    if gold.as_json and gold.gold is None:
        raise OptionError("--json prints scores; give the links to score against: --gold FILE")
    if output is not None and not output.absolute().parent.is_dir():
        raise OptionError(f"{output} cannot be written, its folder does not exist; create it first")
    drawn = pictures.check_options(picture, None if files else [" ".join(text or [])])
    _check_view(picture)
    folder = model_folder(model, "align", text or [], to)
    pairs = _pairs(text or [], files)
    sizes = count_words(pairs)
    wanted = None
    if gold.gold is not None:
        wanted = validate_gold(read_gold(gold.gold, base=gold.gold_base, flip=gold.flip_gold), sizes)
    forward = load_translator(folder, pick_device(device))
    backward = None if reverse is None else load_translator(reverse, pick_device(device))
    aligner = Aligner(forward, backward, pairs, choice, selection, to)
    if choice.is_automatic:
        _report_views(aligner)
    links = []
    lines = nullcontext(_print) if output is None else partial_file(output)
    with track(len(sizes) * aligner.passes, "align", "sentences") as progress, lines as write:
        for sources, targets in chunks(pairs):
            aligned = aligner(sources, targets, progress.advance)
            if output is not None or (wanted is None and not show):
                write("".join(f"{pharaoh(pair.links)}\n" for pair in aligned))
            if show:
                _print("".join(map(_draw, aligned, sources, targets)))
            links += [pair.links for pair in aligned]
            if drawn:
                _save_picture(picture, aligned, sources, targets)
    if wanted is not None:
        scored = score(links, wanted)
        _print((json.dumps(scored.as_dict(), indent=2) if gold.as_json else str(scored)) + "\n")


def _report_views(aligner: Aligner) -> None:
    """Print the layer, head and step that were chosen."""
    for direction, view in (("", aligner.view), ("backwards ", aligner.reverse_view)):
        if view is not None:
            step = f"the step that {'reads' if view.shift else 'generates'} a token"
            detail = step if view.head is None else f"head {view.head}"
            print(f"regard: {direction}by layer {view.layer}, {detail}", file=sys.stderr)


def _pairs(texts: list[str], files: list[Path] | None) -> Pairs:
    """Return pairs from two files, two texts, or lines of standard input with a tab."""
    from regard.data.readers import LinePairs
    from regard.errors import OptionError
    from regard.models.folder import is_file
    from regard.pipelines.align_file import TextPairs, read_standard_input

    if files:
        named = [*files, *map(Path, texts)]
        if len(named) != 2:
            raise OptionError(
                f"-i takes two files, the sentences and their translations, got {len(named)}: -i test.en "
                "test.de"
            )
        lines: Any = LinePairs(*named)
        return lines
    if not texts:
        return read_standard_input()
    if len(texts) != 2:
        raise OptionError(
            f"align takes a text and its translation, got {len(texts)}; put each in quotes, or name files "
            "after -i"
        )
    if all(is_file(Path(each)) for each in texts):
        again = shlex.join(["regard", "align", "-i", *texts])
        raise OptionError(f"{texts[0]} and {texts[1]} are files, and files are named after -i: {again}")
    sides = [[each.encode("utf-8", "surrogateescape").decode("utf-8", "replace")] for each in texts]
    return TextPairs(*sides)


def _print(text: str) -> None:
    from regard.pipelines.job import write_errors

    try:
        with write_errors("standard output"):
            print(text, end="", flush=True)
    except BrokenPipeError:  # like `cat` when its reader is gone
        # Python would raise again when it flushes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None


def _draw(pair: PairAlignment, source: str, target: str) -> str:
    from regard.cli.weight_matrix import render
    from regard.pipelines.word_links import pharaoh

    return f"{render(pair.weights, source.split(), target.split())}\n{pharaoh(pair.links)}\n\n"


def _check_view(options: shared.PictureFileOptions) -> None:
    from regard.errors import OptionError

    if options.view == "grid":
        raise OptionError("align draws one matrix of words; --view can be heatmap, lines or text")


def _save_picture(
    options: shared.PictureFileOptions, aligned: list[PairAlignment], sources: list[str], targets: list[str]
) -> None:
    """Draw the weights between the words of the pair."""
    from regard.cli import pictures
    from regard.pictures.matrix_picture import MatrixPicture

    drawings = [
        MatrixPicture(
            pair.weights,
            target.split(),
            source.split(),
            options.view or "heatmap",
            title=f"{source} → {target}",
            note="cross-attention between words",
            row_title="target",
            column_title="source",
        )
        for pair, source, target in zip(aligned, sources, targets, strict=True)
        if pair.weights.numel()
    ]
    pictures.save_all(options, drawings)
