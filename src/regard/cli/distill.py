"""`regard distill`: train a small translator on the translations of a larger one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.option_groups import OptionGroup, check_outputs, grouped, option
from regard.cli.train import FilesAndOverrides, OverwriteRun, Quiet, RunFolder


@dataclass(frozen=True)
class TranslationOptions(OptionGroup):
    """Only write the teacher's translations."""

    only_translate: Annotated[
        bool, option("--only-translate", help="Stop after the teacher's translations; train nothing.")
    ] = False
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            metavar="FILE.tsv",
            help="With --only-translate: write the distilled training set here, source and translation.",
        ),
    ] = None

    def check(self, files: Sequence[str]) -> None:
        """Raise OptionError for an output file that cannot or would not be written, or is one of `files`."""
        from regard.errors import OptionError

        if self.output is not None and not self.only_translate:
            raise OptionError("-o writes the distilled training set; add --only-translate, or leave -o out")
        if self.output is not None and self.output.suffix != ".tsv":
            raise OptionError(
                f"-o writes tab-separated text; name a file that ends in .tsv, got {self.output}"
            )
        check_outputs(self.output, inputs=files)


@grouped
def command(
    teacher: Annotated[
        Path, typer.Argument(help="Translator to learn from: a folder, or a name of `regard models`.")
    ],
    recipe: Annotated[
        str,
        typer.Argument(
            help="The student's recipe: a file, or the name of an included one; `translator` for files of "
            "your own."
        ),
    ],
    overrides: FilesAndOverrides = None,
    *,
    run: RunFolder = None,
    translation: TranslationOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print model size, cost, memory and time of the student.")
    ] = False,
    overwrite: OverwriteRun = False,
    quiet: Quiet = False,
) -> None:
    """Train a small translator on the translations of a larger one.

    Sequence-level knowledge distillation: the teacher translates the training sources by beam search, and the
    student learns these translations. They are cached; rerun the same command to resume an interrupted
    teacher. Validation and test keep their references. The keys of the recipe are distillation.*.

    Examples:

        regard distill runs/small small-student

        regard distill runs/small small-student distillation.beam=8

        regard distill runs/small small-student --only-translate -o pairs.tsv

        regard train translator pairs.tsv
    """
    from regard.cli.train import choose_recipe, exit_code_of_signals, print_estimate, print_result
    from regard.models.catalog import find_model

    translation.check(overrides or ())
    of_teacher = f"distillation.teacher={json.dumps(str(find_model(teacher)))}"
    chosen, changes = choose_recipe(recipe, [*(overrides or ()), of_teacher], quiet)
    if dry_run:
        print_estimate(chosen, changes)
        return
    with exit_code_of_signals():
        if translation.only_translate:
            _translate(chosen, changes, translation.output, quiet)
            return
        from regard.training.trainer import train

        result = train(chosen, folder=run, overrides=changes, overwrite=overwrite, quiet=quiet)
    print_result(result, quiet)


def _translate(recipe: Any, overrides: list[str], output: Path | None, quiet: bool) -> None:
    """Fill the cache with the teacher's translations, and write them to a file."""
    from regard.attention.devices import pick_device
    from regard.recipe.loading import load_recipe
    from regard.training.display import Display
    from regard.training.distillation import distilled_rows, write_distilled

    loaded = load_recipe(recipe, overrides)
    device, display = pick_device(loaded.training.device), Display(quiet)
    if output is None:
        distilled_rows(loaded, device, display)
        return
    count = write_distilled(loaded, output, device, display)
    if not quiet:
        typer.echo(f"{output}: {count:,} pairs")
