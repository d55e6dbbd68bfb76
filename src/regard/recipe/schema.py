"""Every key of a recipe: its type, range, default and meaning; and the tables of keys in `docs/recipes.md`.

Each class is a block of the YAML file, each field a key. Values are not converted: a string where a number
belongs is an error, as is an unknown key. `loading.py` reads recipes, `checks.py` has the rules across
blocks.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError, PydanticUndefined, core_schema

from regard.data.tokenizer_training import TOKENIZERS
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import ModelOptions
from regard.models.options import MAX_COUNT, Block, NameOf, PartOptions, Positive
from regard.optimization.optimizers import Adam, OptimizerOptions
from regard.optimization.schedules import InverseSqrt, ScheduleOptions
from regard.tasks import TASKS

# Types of keys


class TaskOptionsBlock:
    """The block of the options that the recipe's task declares (`Task.Options`)."""

    def blocks(self) -> list[type[Block]]:
        """Return the option blocks of all tasks that have options."""
        return [task.Options for task in TASKS.values() if task.Options.model_fields]

    def choose(self, recipe: Mapping[str, Any]) -> type[Block] | None:
        """Return the option block of the recipe's task."""
        name = recipe.get("task", "translate")
        return TASKS[name].Options if isinstance(name, str) and name in TASKS else None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        dump = core_schema.plain_serializer_function_ser_schema(lambda block: block.model_dump())
        return core_schema.with_info_plain_validator_function(self._validate, serialization=dump)

    def _validate(self, value: Any, info: Any) -> Block:
        options = self.choose(info.data)
        if options is None or isinstance(value, options):  # an unknown task is reported by its own key
            return value
        if not isinstance(value, dict):
            raise PydanticKnownError("model_type", {"class_name": "task options"})
        return options.model_validate(value)


def _column_name(value: object) -> object:
    """Accept the number of a column with or without quotes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Amount = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Files = list[str | list[str]]
Column = Annotated[str | None, BeforeValidator(_column_name)]


# Blocks


class Data(Block):
    """Training, validation and test data."""

    corpus: str | None = Field(
        default=None, description="name of a known corpus (`regard data` lists them), instead of files"
    )
    source: Column = Field(
        default=None,
        description="source side: a language, a field of JSON lines, a column by name or number from 1",
    )
    target: Column = Field(
        default=None, description="target side, likewise; a classifier's labels, a tagger's tags"
    )
    train: Files = Field(
        default=[],
        description="training files instead of a corpus: [a.en, a.de] line-aligned, or .tsv, .csv, .jsonl",
    )
    validation: Files = Field(default=[], description="validation files, as for train")
    test: Files = Field(default=[], description="test files, as for train")
    version: str | None = Field(
        default=None, description="version of the corpus, such as `tok` for Multi30k's tokenised text"
    )
    max_length: Positive = Field(
        default=256, description="rows with more tokens on a side are skipped and counted"
    )
    max_ratio: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="maximum ratio of the lengths of both sides; longer pairs are skipped"
    )
    limit: Positive | None = Field(default=None, description="use only the first rows of the training set")
    folds: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = Field(
        default=None,
        description="cross-validation: number of folds of the training rows, stratified by class",
    )
    fold: Positive | None = Field(
        default=None, description="cross-validation: the fold to test on, from 1; the others are trained on"
    )
    hold_out: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="fraction of the training rows for validation, by a hash of the text; a text's end",
    )
    scheme: Literal["bio", "iobes", "io"] | None = Field(
        default=None, description="tagging scheme; null: as in the files"
    )
    repair: bool = Field(
        default=False, description="repair tags that violate their scheme, as conlleval interprets them"
    )
    labels: dict[str, str] = Field(
        default={},
        description="new names of labels or span types, as {person: PER}; equal names merge labels",
    )


class TokenizerOptions(Block):
    """Tokenizer of source and target."""

    kind: Annotated[str, NameOf(TOKENIZERS, "pretrained")] = Field(
        default="bpe",
        description="word-characters: words and their bytes, for taggers; pretrained: the fine-tuned model's",
    )
    size: Positive = Field(default=8000, description="maximum vocabulary size, including four special tokens")
    joint: bool = Field(default=True, description="one vocabulary for source and target")
    lowercase: bool = Field(default=False, description="lowercase the text; cannot be undone")
    dropout: Probability = Field(
        default=0.0, description="BPE-dropout: probability of skipping a merge in training"
    )
    variants: Positive = Field(
        default=8, description="BPE-dropout: number of segmentations of the training set that are prepared"
    )
    min_count: Positive = Field(default=1, description="word tokenizers: rarer words are unknown")
    languages: list[str] = Field(
        default=[],
        description="codes of target languages; `>>de<<` at the start of a source text is then one token",
    )
    load: str | None = Field(
        default=None, description="load the tokenizer from this file or model folder instead of training it"
    )


class BatchOptions(Block):
    """Batch size."""

    tokens: Positive = Field(
        default=4096, description="maximum rows × longest side of a batch per device, padding included"
    )
    multiple: Positive = Field(
        default=1,
        description="round lengths up to a multiple of this; 4 gives training.graph fewer shapes",
    )
    accumulate: Positive = Field(default=1, description="batches per optimizer step (gradient accumulation)")
    sentences: Positive | None = Field(
        default=None, description="maximum rows per batch; number of windows of a language model"
    )
    length: Annotated[int, Field(ge=2, le=MAX_COUNT)] = Field(
        default=256, description="language models: tokens per window"
    )
    mode: Literal["lines", "stream", "crops"] | None = Field(
        default=None,
        description="lines; crops: random windows; stream: windows in order with state; null: by task",
    )


class Training(Block):
    """Length, regularization, precision, validation and devices."""

    start: str | None = Field(
        default=None,
        description="fine-tune the model in this folder: weights, tokenizers and model block",
    )
    steps: Positive | None = Field(
        default=10000, description="maximum optimizer steps; null: epochs or minutes limit the run"
    )
    epochs: Annotated[float, Field(gt=0)] | None = Field(default=None, description="maximum epochs")
    minutes: Annotated[float, Field(gt=0)] | None = Field(default=None, description="maximum minutes")
    smoothing: Probability = Field(default=0.1, description="label smoothing")
    agreement: Amount = Field(
        default=0.0, description="R-Drop: weight of the KL term between two forward passes; 0: off"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="dtype of matrix products (autocast)"
    )
    ema: Probability = Field(
        default=0.0, description="decay of the exponential moving average of the weights, as 0.999; 0: off"
    )
    validate_every: Positive = Field(default=500, description="steps between validations")
    save_every: Positive = Field(default=500, description="steps between checkpoints")
    log_every: Positive = Field(default=50, description="steps between log lines")
    keep: Positive = Field(default=3, description="number of best checkpoints to keep")
    average: Positive = Field(
        default=1, description="number of best checkpoints averaged into the final model"
    )
    patience: Positive | None = Field(
        default=None, description="early stopping: validations without improvement before the run ends"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: a GPU if there is one")
    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="under torchrun: replicate (ddp) or shard (fsdp) the model"
    )
    threads: Positive | None = Field(default=None, description="CPU threads; null: torch's default")
    graph: bool = Field(
        default=False, description="GPU: capture a CUDA graph per batch shape, for small models"
    )
    tensorboard: bool = Field(
        default=False, description="also write a TensorBoard log (needs the tensorboard extra)"
    )


class Decoding(Block):
    """Search for translations in validation and in the final evaluation."""

    beam: Positive = Field(default=5, description="beam size of the final evaluation")
    validation_beam: Positive = Field(default=1, description="beam size of validations; 1 is greedy search")
    length_penalty: float = Field(default=1.0, description="scores are divided by length to this power")
    max_length: Positive | None = Field(
        default=None, description="maximum length of a translation; null: 1.5 times the source plus 20"
    )


class Distillation(Block):
    """Sequence-level knowledge distillation: learn a teacher's translations of the training sources."""

    teacher: str | None = Field(
        default=None, description="folder of a trained translator; null: learn from the targets of the data"
    )
    targets: Literal["teacher", "both"] = Field(
        default="teacher",
        description="both: learn from the teacher's translations and from the data's targets",
    )
    to: str | None = Field(
        default=None,
        description="target language of a multilingual teacher, for rows that begin with no `>>de<<`",
    )
    beam: Positive = Field(default=4, description="beam size of the teacher")
    length_penalty: Amount = Field(default=1.0, description="scores are divided by length to this power")
    precision: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        default="auto", description="precision of the teacher's engine, as of `regard translate`"
    )
    batch_tokens: Positive | None = Field(
        default=None, description="tokens per batch of the teacher; null: as fits the device"
    )
    ray: bool = Field(default=False, description="the teacher translates on a Ray cluster (RAY_ADDRESS)")


class _RaisesRecipeError(type(BaseModel)):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """`Recipe(…)` raises a RecipeError of one sentence; `Recipe.model_validate` raises pydantic's error."""

    def __call__(cls, *args: Any, **blocks: Any) -> Any:
        from regard.recipe.checks import explain_errors, recipe_error  # which import this schema

        try:
            return super().__call__(*args, **blocks)
        except ValidationError as error:
            raise recipe_error(explain_errors(error, blocks)) from None


class Recipe(Block, metaclass=_RaisesRecipeError):
    """A complete recipe with all defaults. Load one with `regard.recipe.load_recipe`.

    >>> regard.recipe.load_recipe("small", ["training.steps=200"]).training.steps
    200
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = Field(
        default="recipe", description="name of the run folder; by default the file's name"
    )
    about: str | None = Field(
        default=None, description="what is trained and its result, shown by `regard recipes`"
    )
    task: Annotated[str, NameOf(TASKS)] = Field(
        default="translate", description="what the model is trained for"
    )
    task_options: Annotated[Block, TaskOptionsBlock()] = Field(
        default={}, validate_default=True, description="options of an added task"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=1, description="random seed")
    data: Data = Data()
    tokenizer: TokenizerOptions = TokenizerOptions()
    model: ModelOptions = Field(
        default=AutoregressiveOptions(), description="The model; its kind follows from the task."
    )
    batch: BatchOptions = BatchOptions()
    optimizer: OptimizerOptions = Field(default=Adam(), description="The optimizer.")
    schedule: ScheduleOptions = Field(default=InverseSqrt(), description="The learning-rate schedule.")
    training: Training = Training()
    decoding: Decoding = Decoding()
    distillation: Distillation = Distillation()


# Reflection: which keys there are


def blocks_of(info: FieldInfo) -> list[type[BaseModel]]:
    """Return the block classes that a field may hold; empty if it holds a plain value."""
    options = _task_options(info)
    return list(_blocks_in(info.annotation)) if options is None else list(options.blocks())


def _task_options(info: FieldInfo) -> TaskOptionsBlock | None:
    return next((marker for marker in info.metadata if isinstance(marker, TaskOptionsBlock)), None)


def _blocks_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if issubclass(annotation, PartOptions) and "registry" in vars(annotation):
            yield from annotation.registry.values()
        else:
            yield annotation
    for inner in typing.get_args(annotation):
        yield from _blocks_in(inner)


def choose_block(info: FieldInfo, value: Any, recipe: Mapping[str, Any]) -> type[BaseModel] | None:
    """Return the block class of a raw value of this field; None if it is not a block."""
    options = _task_options(info)
    if options is not None:
        return options.choose(recipe)
    blocks = blocks_of(info)
    if isinstance(value, BaseModel):
        return type(value)
    if not blocks or not isinstance(value, Mapping):
        return None
    kind = value.get("kind", kind_of(blocks[0]))
    return next((block for block in blocks if kind_of(block) == kind), blocks[0])


def kind_of(block: type[BaseModel] | None) -> str | None:
    """Return the default `kind` of a block class; None if it has no kind."""
    info = getattr(block, "model_fields", {}).get("kind")
    return None if info is None or info.default is PydanticUndefined else info.default


def all_keys() -> dict[str, list[type[BaseModel]]]:
    """Return every dotted key that any recipe may have, with its blocks: `model.encoder.heads`."""
    keys: dict[str, list[type[BaseModel]]] = {}

    def visit(block: type[BaseModel], path: str, above: tuple[type[BaseModel], ...]) -> None:
        for name, info in block.model_fields.items():
            keys.setdefault(f"{path}{name}", []).append(block)
            for inner in blocks_of(info):
                if inner not in above:  # masks contain masks
                    visit(inner, f"{path}{name}.", (*above, inner))

    visit(Recipe, "", (Recipe,))
    return keys


def available_keys(raw: Mapping[str, Any]) -> dict[str, FieldInfo]:
    """Return every dotted key that this recipe may have, given the kinds of its blocks."""
    keys: dict[str, FieldInfo] = {}

    def visit(block: type[BaseModel], given: Mapping[str, Any], path: str) -> None:
        for name, info in block.model_fields.items():
            keys[f"{path}{name}"] = info
            default = {} if name == "encoder" else info.default  # a translator's encoder may be left out
            value = given.get(name, default)
            inner = choose_block(info, value, raw)
            if inner is not None:
                visit(inner, value if isinstance(value, Mapping) else {}, f"{path}{name}.")

    visit(Recipe, raw, "")
    return keys


# Tables of keys


@dataclass(frozen=True)
class Key:
    """One key of a block."""

    name: str
    default: str
    allowed: str
    meaning: str


@dataclass
class Section:
    """One block of a recipe: where it may occur, and its keys."""

    block: type[BaseModel]
    places: list[str] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)

    @property
    def heading(self) -> str:
        """`model.encoder, model.decoder: {kind: transformer}`."""
        info = self.block.model_fields.get("kind")
        named = info is not None and len(typing.get_args(info.annotation)) == 1
        return ", ".join(self.places) + (f": {{kind: {kind_of(self.block)}}}" if named else "")

    @property
    def description(self) -> str:
        return (self.block.__doc__ or "").splitlines()[0]


def key_sections() -> list[Section]:
    """Return the blocks in the order of a recipe; a block that may occur in several places is listed once."""
    sections: dict[type[BaseModel], Section] = {}

    def visit(block: type[BaseModel], place: str) -> None:
        section = sections.setdefault(block, Section(block))
        if place in section.places:
            return
        section.places.append(place)
        if not section.keys:
            section.keys = [_key(name, info) for name, info in _own_fields(block).items()]
        for name, info in block.model_fields.items():
            for inner in blocks_of(info):
                if name != "of":  # masks of masks are masks
                    visit(inner, name if block is Recipe or name == "mask" else f"{place}.{name}")

    visit(Recipe, "a recipe")
    return list(sections.values())


def _own_fields(block: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields to list: all, or those that differ if the class specializes another kind of block."""
    derived = kind_of(block.__base__) is not None  # type: ignore[arg-type]
    names = block.__annotations__ if derived else block.model_fields
    fields = {name: block.model_fields[name] for name in names}
    # A `kind` with one possible value is in the heading.
    return {n: f for n, f in fields.items() if n != "kind" or len(typing.get_args(f.annotation)) != 1}


def keys_as_markdown() -> str:
    """Return all sections as Markdown tables, as `docs/recipes.md` has them."""
    lines = []
    for section in key_sections():
        heading = "### A recipe" if section.block is Recipe else f"### `{section.heading}`"
        lines += [heading, section.description, ""]
        if section.keys:
            lines += ["| key | default | allowed | meaning |", "| --- | --- | --- | --- |"]
            for key in section.keys:
                default = f"`{key.default}`" if key.default else ""
                lines.append(f"| `{key.name}` | {default} | {key.allowed} | {key.meaning} |")
            lines.append("")
    return "\n".join(lines)


def _key(name: str, info: FieldInfo) -> Key:
    blocks = blocks_of(info)
    is_block = bool(blocks) or _task_options(info) is not None
    allowed = "a block" + _kinds(blocks) if is_block else allowed_values(info.annotation, info.metadata)
    if blocks and type(None) in typing.get_args(info.annotation):
        allowed += " or null"
    default = "" if is_block or info.is_required() else _as_yaml(info.default)
    if blocks and info.default is None:
        default = "null"
    return Key(name, default, allowed, info.description or (blocks[0].__doc__ or "").splitlines()[0])


def _kinds(blocks: list[type[BaseModel]]) -> str:
    kinds = [kind_of(block) for block in blocks]
    return f" of kind {', '.join(map(str, kinds))}" if len(blocks) > 1 else ""


def _as_yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def allowed_values(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return the allowed values of a key: `integer ≥ 1`, `adam, adamw`."""
    metadata = list(metadata)
    for marker in metadata:
        if isinstance(marker, NameOf):
            return ", ".join(marker.names)
    if annotation == Files:
        return "a list of files, or of lists of two"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = [c for a in args[1:] for c in (a.metadata if isinstance(a, FieldInfo) else [a])]
        return allowed_values(args[0], [*inner, *metadata])
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if a is type(None) else allowed_values(a) for a in args)
    if origin is list:
        return f"a list, each {allowed_values(args[0])}"
    if origin is dict:
        return f"a mapping to {allowed_values(args[1])}"
    name = {int: "integer", float: "number", bool: "true, false", str: "text"}.get(annotation, "")
    bounds = [
        f"{sign} {_number(getattr(constraint, key))}"
        for constraint in metadata
        for kind, sign, key in BOUNDS
        if isinstance(constraint, kind)
    ]
    return " ".join([name, ", ".join(bounds)]).strip()


BOUNDS = ((Ge, "≥", "ge"), (Gt, ">", "gt"), (Lt, "<", "lt"))


def _number(value: float) -> str:
    return "2⁶³" if value == 2**63 else f"{value:g}"
