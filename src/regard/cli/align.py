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
from regard.cli.option_groups import OUTPUT, SEARCH, OptionGroup, grouped, option

if TYPE_CHECKING:
    from regard.evaluation.alignment import Gold
    from regard.pipelines.align_file import Aligner, PairAlignment, Pairs
    from regard.pipelines.word_links import Links


@dataclass(frozen=True)
class AlignInputOptions(OptionGroup):
    """Files of sentence pairs."""

    files: Annotated[
        list[Path] | None,
        shared.input_option("Two files, sentences and their translations: plain, .gz or .xz."),
    ] = None

    def pairs(self, texts: list[str]) -> Pairs:
        """Return pairs from two files, two texts, or lines of standard input with a tab."""
        from regard.data.readers import LinePairs
        from regard.errors import OptionError
        from regard.models.folder import is_file
        from regard.pipelines.align_file import TextPairs, read_standard_input

        if self.files:
            paths = [*self.files, *map(Path, texts)]
            if len(paths) != 2:
                raise OptionError(
                    f"-i takes two files, the sentences and their translations, got {len(paths)}: "
                    "-i test.en test.de"
                )
            lines: Any = LinePairs(*paths)
            return lines
        if not texts:
            return read_standard_input()
        if len(texts) != 2:
            raise OptionError(
                f"align takes a text and its translation, got {len(texts)}; "
                "put each in quotes, or name files after -i"
            )
        if all(is_file(Path(text)) for text in texts):
            again = shlex.join(["regard", "align", "-i", *texts])
            raise OptionError(f"{texts[0]} and {texts[1]} are files, and files are named after -i: {again}")
        sides = [[text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")] for text in texts]
        return TextPairs(*sides)


@dataclass(frozen=True)
class DirectionOptions(OptionGroup):
    """The direction of translation, and a model of the reverse one."""

    reverse: Annotated[
        Path | None,
        option(
            metavar="MODEL",
            help="Model of the reverse direction, to combine both. Default: the same model, if it translates "
            "both ways.",
        ),
    ] = None
    to: Annotated[
        str | None,
        option("--to", metavar="LANGUAGE", help="Language of the translations; default: guessed."),
    ] = None


@dataclass(frozen=True)
class ViewOptions(OptionGroup):
    """Which attention is used."""

    layer: Annotated[
        str | None,
        option(
            metavar="N|best",
            help="Layer, from 0, or `best`: the layer and step with most mutual links. Default: that of the "
            "model's card, else the mean of all.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    head: Annotated[
        str | None,
        option(
            metavar="N|best",
            help="Head, from 0, or `best`: the layer and head with the highest mutual information. Default: "
            "the mean of all.",
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
class LearningOptions(OptionGroup):
    """Alignment heads, which are trained on links."""

    learn: Annotated[
        bool,
        option(
            "--learn",
            help="Train an alignment head on the links of these pairs; it is stored in each model's folder.",
            rich_help_panel=SEARCH,
        ),
    ] = False
    learned: Annotated[
        bool,
        option("--learned", help="Align with the stored head instead of attention.", rich_help_panel=SEARCH),
    ] = False
    steps: Annotated[
        int, option("--steps", min=1, help="With --learn: training steps.", rich_help_panel=SEARCH)
    ] = 1500

    def check(self, view: ViewOptions, gold: GoldOptions, output: AlignOutputOptions) -> None:
        """Raise OptionError for options that exclude each other."""
        from regard.errors import OptionError

        if self.learned and (self.learn or view.layer or view.head or view.shift):
            raise OptionError(
                "--learned aligns with a stored head; leave out --learn, --layer, --head and --shift"
            )
        if self.learn and (gold.gold is not None or output.output is not None or output.show):
            raise OptionError(
                "--learn writes alignment heads instead of links; leave out --gold, -o and --show"
            )


@dataclass(frozen=True)
class LinkOptions(OptionGroup):
    """Which links are kept."""

    threshold: Annotated[
        float | None,
        option(
            min=0,
            max=1,
            help="Leave out links of less weight. With one direction: keep every other link, not only the "
            "strongest of each target word.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    mutual: Annotated[
        bool,
        option("--mutual", help="Keep links that are the strongest of both words.", rich_help_panel=SEARCH),
    ] = False
    symmetrize: Annotated[
        str | None,
        option(
            metavar="METHOD",
            help="Join both directions: `weights` (default) joins their attention; grow-diag, "
            "grow-diag-final-and, intersection or union join their links; `none`: one direction.",
            rich_help_panel=SEARCH,
        ),
    ] = None


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

    def check(self) -> None:
        """Raise OptionError for --json without links to score against."""
        from regard.errors import OptionError

        if self.as_json and self.gold is None:
            raise OptionError("--json prints scores; give the links to score against: --gold FILE")

    def read(self, sizes: list[tuple[int, int]]) -> list[Gold] | None:
        """Return the gold links, checked against the number of words of each pair; None without --gold."""
        from regard.evaluation.alignment import read_gold, validate_gold

        if self.gold is None:
            return None
        return validate_gold(read_gold(self.gold, base=self.gold_base, flip=self.flip_gold), sizes)


@dataclass(frozen=True)
class AlignOutputOptions(OptionGroup):
    """What is written, and where."""

    output: Annotated[
        Path | None,
        option("--output", "-o", help="Write the links here, one line per pair.", rich_help_panel=OUTPUT),
    ] = None
    show: Annotated[
        bool,
        option("--show", help="Draw the weights between words of each pair.", rich_help_panel=OUTPUT),
    ] = False


PairOfTexts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE TARGET",
        help="A text and its translation; after -i, files. Default: standard input.",
    ),
]


@grouped
def command(
    text: PairOfTexts = None,
    *,
    model: shared.Model = None,
    direction: DirectionOptions,
    input: AlignInputOptions,
    view: ViewOptions,
    link: LinkOptions,
    learning: LearningOptions,
    output: AlignOutputOptions,
    picture: shared.PictureFileOptions,
    gold: GoldOptions,
    device: shared.Device = "auto",
) -> None:
    """Align the words of texts and their translations, in Pharaoh format: "0-0 1-2" (source-target).

    Each line of standard input has a text and its translation, separated by a tab.

    Examples:

        regard align "Tom is here ." "Tom ist hier ." --show

        regard align "Tom is here ." "Tom ist hier ." --picture tom.svg

        regard align -i test.en test.de --model runs/small -o links.txt

        regard align -i test.en test.de --model runs/small --gold gold.txt

        regard align -i test.en test.de --to de --symmetrize grow-diag
    """
    from regard.attention.devices import pick_device
    from regard.cli.jobs import model_folder
    from regard.pipelines.align_file import Aligner, ViewChoice, count_words, load_translators
    from regard.pipelines.alignment_head import AlignmentHead
    from regard.pipelines.word_links import LinkSelection

    selection = LinkSelection(link.threshold, link.mutual, link.symmetrize)
    choice = ViewChoice(view.layer, view.head, view.shift)
    gold.check()
    learning.check(view, gold, output)
    shared.check_outputs(output.output, inputs=input.files or ())
    _check_picture(picture, None if input.files else [" ".join(text or [])])
    folder = model_folder(model, "align", text or [], direction.to)
    pairs = input.pairs(text or [])
    sizes = count_words(pairs)
    gold_links = gold.read(sizes)
    models = load_translators(folder, direction.reverse, pick_device(device))
    folders = [folder, *([direction.reverse] if direction.reverse else [])]
    heads = []
    if learning.learned:
        used = zip(folders, models, strict=False)  # without --reverse, one of each
        heads = [AlignmentHead.load(path, loaded) for path, loaded in used if loaded is not None]
    aligner = Aligner(*models, pairs, choice, selection, direction.to, heads)
    if choice.is_automatic:
        _report_views(aligner)
    if learning.learn:
        _learn(aligner, pairs, folders, learning.steps)
        return
    links = _write_links(aligner, pairs, len(sizes), output, picture, print_links=gold_links is None)
    if gold_links is not None:
        _print_scores(links, gold_links, gold.as_json)


def _learn(aligner: Aligner, pairs: Pairs, folders: list[Path], steps: int) -> None:
    """Train alignment heads, and print where they are."""
    from regard.files.progress import track
    from regard.pipelines.align_file import learn_heads
    from regard.pipelines.alignment_head import HeadTraining

    with track(steps * len(folders), "learning alignment", "steps") as bar:
        paths = learn_heads(aligner, pairs, folders, HeadTraining(steps), lambda step, loss: bar.advance(1))
    for path in paths:
        print(f"regard: wrote {path}; use it with --learned", file=sys.stderr)


def _write_links(
    aligner: Aligner,
    pairs: Pairs,
    count: int,
    output: AlignOutputOptions,
    picture: shared.PictureFileOptions,
    print_links: bool,
) -> list[Links]:
    """Align all pairs; write or draw their links, and return them. `print_links` is for standard output."""
    from regard.files.progress import track
    from regard.pipelines.align_file import chunks, partial_file
    from regard.pipelines.word_links import pharaoh

    links = []
    to_file = output.output is not None
    lines = partial_file(output.output) if output.output is not None else nullcontext(_print)
    with track(count * aligner.passes, "align", "sentences") as progress, lines as write:
        for sources, targets in chunks(pairs):
            aligned = aligner(sources, targets, progress.advance)
            if to_file or (print_links and not output.show):
                write("".join(f"{pharaoh(pair.links)}\n" for pair in aligned))
            if output.show:
                _print("".join(map(_draw, aligned, sources, targets)))
            links += [pair.links for pair in aligned]
            if picture.picture is not None:
                _save_picture(picture, aligned, sources, targets)
    return links


def _print_scores(links: list[Links], gold: list[Gold], as_json: bool) -> None:
    from regard.evaluation.alignment import score

    scores = score(links, gold)
    _print((json.dumps(scores.as_dict(), indent=2) if as_json else str(scores)) + "\n")


def _report_views(aligner: Aligner) -> None:
    """Print the layer, head and step that were chosen."""
    from regard.pipelines.align import View

    for direction, view in (("", aligner.view), ("backwards ", aligner.reverse_view)):
        if isinstance(view, View):
            step = f"the step that {'reads' if view.shift else 'generates'} a token"
            detail = step if view.head is None else f"head {view.head}"
            print(f"regard: {direction}by layer {view.layer}, {detail}", file=sys.stderr)


def _print(text: str) -> None:
    from regard.pipelines.job import convert_write_errors

    try:
        with convert_write_errors("standard output"):
            print(text, end="", flush=True)
    except BrokenPipeError:  # like `cat` when its reader is gone
        # Python would raise again when it flushes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None


def _draw(pair: PairAlignment, source: str, target: str) -> str:
    from regard.cli.weight_matrix import render
    from regard.pipelines.word_links import pharaoh

    return f"{render(pair.weights, source.split(), target.split())}\n{pharaoh(pair.links)}\n\n"


def _check_picture(options: shared.PictureFileOptions, texts: list[str] | None) -> None:
    """Check --picture and --view; `texts` is None if they are in files."""
    from regard.cli import pictures
    from regard.errors import OptionError

    pictures.check_options(options, texts)
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
