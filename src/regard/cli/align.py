"""`regard align`: word alignments of texts and their translations, by a model's attention."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import search_options

if TYPE_CHECKING:
    from regard.pipelines.align_file import Aligner, PairAlignment, Pairs


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

    selection, view = LinkSelection(threshold, mutual, join), ViewChoice(layer, head, shift)
    if as_json and gold is None:
        raise OptionError("--json prints scores; give the links to score against: --gold FILE")
    if output is not None and not output.absolute().parent.is_dir():
        raise OptionError(f"{output} cannot be written, its folder does not exist; create it first")
    folder = model_folder(model, "align", text or [])
    pairs = _pairs(text or [], files)
    sizes = count_words(pairs)
    wanted = None if gold is None else validate_gold(read_gold(gold, base=gold_base, flip=flip_gold), sizes)
    forward = load_translator(folder, pick_device(device))
    backward = None if reverse is None else load_translator(reverse, pick_device(device))
    aligner = Aligner(forward, backward, pairs, view, selection)
    if view.is_automatic:
        _report_views(aligner)
    links = []
    lines = nullcontext(_print) if output is None else partial_file(output)
    with track(len(sizes) * aligner.passes, "align", "sentences") as progress, lines as write:
        for sources, targets in chunks(pairs):
            aligned = aligner(sources, targets, progress.advance)
            if output is not None or (gold is None and not show):
                write("".join(f"{pharaoh(pair.links)}\n" for pair in aligned))
            if show:
                _print("".join(map(_drawn, aligned, sources, targets)))
            links += [pair.links for pair in aligned]
    if wanted is not None:
        scored = score(links, wanted)
        _print((json.dumps(scored.as_dict(), indent=2) if as_json else str(scored)) + "\n")


def _report_views(aligner: Aligner) -> None:
    """Print the layer, head and step that were chosen."""
    for direction, view in (("", aligner.view), ("backwards ", aligner.reverse_view)):
        if view is not None:
            step = f"the step that {'reads' if view.shift else 'generates'} a token"
            detail = step if view.head is None else f"head {view.head}"
            print(f"regard: {direction}by layer {view.layer}, {detail}", file=sys.stderr)


def _pairs(texts: list[str], files: list[Path] | None) -> Pairs:
    """Two files, two texts, or lines of standard input with a tab between the two."""
    from regard.data.readers import LinePairs
    from regard.errors import OptionError
    from regard.models.folder import is_file
    from regard.pipelines.align_file import TextPairs, read_standard_input

    if files:
        named = [*files, *map(Path, texts)]
        if len(named) != 2:
            raise OptionError(
                f"-i takes two files, the sentences and their translations, got {len(named)}: -i test.en test.de"
            )
        return LinePairs(*named)
    if not texts:
        return read_standard_input()
    if len(texts) != 2:
        raise OptionError(
            f"align takes a text and its translation, got {len(texts)}; put each in quotes, or name files after -i"
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
    except BrokenPipeError:  # as `cat` ends when nobody reads on; what is still held back goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None


def _drawn(pair: PairAlignment, source: str, target: str) -> str:
    from regard.cli.weight_matrix import render
    from regard.pipelines.word_links import pharaoh

    return f"{render(pair.weights, source.split(), target.split())}\n{pharaoh(pair.links)}\n\n"
