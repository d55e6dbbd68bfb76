"""Options that several commands share: groups of options are dataclasses, and `grouped` expands them.

    @grouped
    def command(text: Text, *, sampling: SamplingOptions, jobs: JobOptions) -> None: ...

typer then sees `text` and one option for every field of the groups.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from regard.decoding.beam import Beam
    from regard.decoding.constraints import Constraints
    from regard.decoding.sampling import Sample

# The panels of `regard COMMAND --help`.
INPUT, OUTPUT, PICTURE, SEARCH, JOB = "Input", "Output", "Picture", "Search", "Job"


class OptionGroup:
    """Base class of groups; a subclass is a frozen dataclass with one Annotated typer option per field."""


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with every parameter that is an OptionGroup replaced by the options of the group."""
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            parameters += _options(kind)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        built = {}  # not in `values`: a group may have the name of an option
        for name, group in groups.items():
            options = {field.name: values.pop(field.name) for field in fields(group)}  # type: ignore[arg-type]
            built[name] = group(**options)
        command(**values, **built)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options(group: type[OptionGroup]) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
        for field in fields(group)  # type: ignore[arg-type]
    ]


def option(*names: str, **settings: Any) -> Any:
    """`typer.Option`, shorter to write in dataclass fields."""
    return typer.Option(*names, **settings)


Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT", help="Texts; after -i, more files. Default: standard input."),
]
Model = Annotated[
    Path | None,
    option(
        "--model",
        "-m",
        metavar="MODEL",
        help="Model folder, run, or name of `regard models`; default: REGARD_MODEL, or a bundled model.",
    ),
]
Ensemble = Annotated[
    list[Path] | None,
    option("--with", metavar="MODEL", help="Another model, for an ensemble; repeatable."),
]
ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a model or a run, or a name of `regard models`.")
]
JsonField = Annotated[
    str | None,
    option("--field", metavar="NAME", help="Field of JSON lines; default: text.", rich_help_panel=INPUT),
]
Strict = Annotated[bool, option("--strict", help="Stop at a line that is not UTF-8.", rich_help_panel=INPUT)]
Json = Annotated[bool, option("--json", "--jsonl", help="Write JSON lines.", rich_help_panel=OUTPUT)]
Device = Annotated[str, option(help="auto, cpu or cuda.", rich_help_panel=JOB)]
Precision = Annotated[str, option(help="auto, float32, bfloat16 or int8.", rich_help_panel=JOB)]
Shortlist = Annotated[
    bool,
    option(
        "--shortlist",
        help="Score likely tokens only; `regard shortlist MODEL` learns which.",
        rich_help_panel=JOB,
    ),
]
BatchTokens = Annotated[int | None, option(min=1, help="Tokens per batch.", rich_help_panel=JOB)]


def input_option(help_text: str) -> Any:
    """The -i option of a command that reads files."""
    return option("--input", "-i", metavar="FILE", help=help_text, rich_help_panel=INPUT)


def output_option(formats: str) -> Any:
    """The -o option of a command that resumes an interrupted job."""
    return option(
        "--output", "-o", metavar="FILE", help=f"Output file, {formats}; resumable.", rich_help_panel=OUTPUT
    )


@dataclass(frozen=True)
class InputFileOptions(OptionGroup):
    """Input files, and where the text is in their lines."""

    files: Annotated[
        list[Path] | None,
        input_option("Text, .tsv, .csv or .jsonl, also .gz or .xz; - is standard input."),
    ] = None
    column: Annotated[
        str | None,
        option(
            "--column",
            metavar="NAME|N",
            help="Column of a table, by its number or its name in the first line.",
            rich_help_panel=INPUT,
        ),
    ] = None
    header: Annotated[
        bool,
        option(
            "--header", help="The first line of a table is a header; default: guessed.", rich_help_panel=INPUT
        ),
    ] = False
    field: JsonField = None
    strict: Strict = False


@dataclass(frozen=True)
class JobOptions(OptionGroup):
    """How a job over many lines runs; the output does not depend on it."""

    device: Device = "auto"
    restart: Annotated[
        bool, option("--restart", help="Start over instead of resuming.", rich_help_panel=JOB)
    ] = False
    quiet: Annotated[bool, option("--quiet", "-q", help="Show no progress.", rich_help_panel=JOB)] = False


@dataclass(frozen=True)
class BatchJobOptions(JobOptions):
    """A job whose batches have a size."""

    batch_tokens: BatchTokens = None

    @property
    def batch_size(self) -> dict[str, int]:
        """The option for a pipeline, which has its own default."""
        return {} if self.batch_tokens is None else {"batch_tokens": self.batch_tokens}


@dataclass(frozen=True)
class SamplingOptions(OptionGroup):
    """How tokens are sampled."""

    temperature: Annotated[
        float | None,
        option(min=0.001, help="Softmax temperature of sampling; default: 1.", rich_help_panel=SEARCH),
    ] = None
    top_k: Annotated[
        int | None, option(min=1, help="Sample from the k most likely tokens.", rich_help_panel=SEARCH)
    ] = None
    top_p: Annotated[
        float | None,
        option(
            min=0.0,
            max=1.0,
            help="Nucleus sampling: smallest set of tokens whose probability reaches P.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    min_p: Annotated[
        float | None,
        option(
            min=0.0,
            max=1.0,
            help="Sample from tokens with at least this share of the best token's probability.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    seed: Annotated[
        int | None,
        option(min=0, help="Seed of sampling; default: 0.", rich_help_panel=SEARCH),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {
            field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None
        }

    @property
    def first_given(self) -> str | None:
        """The first option that was given, as it is typed."""
        return next((f"--{name.replace('_', '-')}" for name in self.given), None)

    def sample(self, count: int, seed: int | None) -> Sample:
        """Return the sampling strategy; `seed` is used unless --seed is given."""
        from regard.decoding.sampling import Sample

        settings: dict[str, Any] = {"seed": seed} | self.given
        return Sample(count=count, **settings)


BeamSize = Annotated[
    int | None, option(min=1, max=1000, help="Beam size; 1 is greedy search.", rich_help_panel=SEARCH)
]


@dataclass(frozen=True)
class BeamOptions(OptionGroup):
    """Beam search."""

    beam: Annotated[
        int | None,
        option(
            min=1,
            max=1000,
            help="Beam size; 1 is greedy search. Default: that of the model's card, else 1.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        option(
            help="Exponent a of the length normalisation log p / lengthᵃ; default: 1.", rich_help_panel=SEARCH
        ),
    ] = None
    coverage_penalty: Annotated[
        float | None,
        option(help="Weight of the coverage penalty (Wu et al. 2016).", rich_help_panel=SEARCH),
    ] = None

    def strategy(self, model: Path | None = None) -> Beam:
        """Return the beam search; without --beam, of the size in the model's card, else greedy search."""
        from regard.decoding.beam import Beam, default_beam
        from regard.models.folder import is_file, model_in, read_json

        path = model_in(model) / "card.json" if model is not None and self.beam is None else None
        card = read_json(path) if path is not None and is_file(path) else None
        settings: dict[str, Any] = {
            "size": self.beam or default_beam(card).size,
            "length_penalty": self.length_penalty,
            "coverage_penalty": self.coverage_penalty,
        }
        return Beam(**{name: value for name, value in settings.items() if value is not None})


@dataclass(frozen=True)
class ConstraintOptions(OptionGroup):
    """What an output must not be."""

    forbid: Annotated[
        list[str] | None,
        option(metavar="TEXT", help="Phrase that must not occur; repeatable.", rich_help_panel=SEARCH),
    ] = None
    no_repeat: Annotated[
        int | None,
        option(min=1, metavar="N", help="Never repeat an N-gram of tokens.", rich_help_panel=SEARCH),
    ] = None
    min_length: Annotated[
        int | None, option(min=0, help="Minimum number of tokens.", rich_help_panel=SEARCH)
    ] = None

    def constraints(self, prefix: str = "", required: list[str] | None = None) -> Constraints:
        """Return the constraints of the search."""
        from regard.decoding.constraints import Constraints

        check_utf8("forbid", *(self.forbid or ()))
        return Constraints(
            prefix, required or (), self.forbid or (), self.no_repeat or 0, self.min_length or 0
        )


@dataclass(frozen=True)
class PictureFileOptions(OptionGroup):
    """A file for a picture of the attention."""

    picture: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="Draw the attention to a .svg, .html, .png or .pdf file; .html takes several texts.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    view: Annotated[
        str | None,
        option(metavar="NAME", help="heatmap, lines, grid or text.", rich_help_panel=PICTURE),
    ] = None


@dataclass(frozen=True)
class PictureOptions(PictureFileOptions):
    """A picture of the attention: the file, the view, the layer and the head."""

    kind: Annotated[
        str | None,
        option(metavar="NAME", help="encoder, decoder, cross or pooling.", rich_help_panel=PICTURE),
    ] = None
    layer: Annotated[
        int | None,
        option(help="Layer, from 0; default: the mean of all, or all in a grid.", rich_help_panel=PICTURE),
    ] = None
    head: Annotated[
        int | None,
        option(help="Head, from 0; default: the mean of all, or all in a grid.", rich_help_panel=PICTURE),
    ] = None


def check_outputs(*paths: Path | None, inputs: Sequence[str | Path] = ()) -> None:
    """Raise OptionError before the work starts if an output cannot be written, or is also an input."""
    from regard.errors import OptionError
    from regard.files.atomic import check_output

    read = {Path(path).resolve() for path in inputs if Path(path).is_file()}
    for path in paths:
        if path is None or str(path) == "-":
            continue
        check_output(path)
        if path.resolve() in read:
            raise OptionError(f"{path} is both input and output; name another output")


def check_utf8(name: str, *texts: str) -> None:
    """Raise OptionError if a text on the command line is not UTF-8; a shell passes on any bytes."""
    from regard.errors import OptionError

    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raw = text.encode("utf-8", "surrogateescape")
            raise OptionError(f"--{name} is not UTF-8: {raw!r}; encode it in UTF-8") from None
