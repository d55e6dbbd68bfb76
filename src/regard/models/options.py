"""The options of a model: blocks of a recipe, checked by pydantic and chosen by `kind` from a registry.

A part (an encoder, a pooling, …) has one options class: its fields are the keys of the recipe, its docstring
and field descriptions are the documentation, and its `build…` method makes the module. Registering the class
is all it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag, TypeAdapter
from pydantic_core import PydanticKnownError, core_schema
from torch import nn

from regard.registry import Registry

if TYPE_CHECKING:
    from regard.data.row_formats import RowFormat

MAX_COUNT = 1 << 31  # largest value of any count; torch and numpy fail beyond it
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=1, le=1 << 24)]  # a size in a model; larger ones are refused in model folders
Dropout = Annotated[float, Field(ge=0, lt=1)]


class Block(BaseModel):
    """Base class of every block of a recipe: no unknown keys, no silent conversion, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class PartOptions(Block):
    """Base class of blocks that are chosen by their `kind`.

    A direct subclass stands for one category, such as encoders, and sets `registry`; a field of its type
    accepts every registered block. `default_kind` is used where a block has no `kind`. With `shorthand`, a
    recipe may write `max` for `{kind: max}`.
    """

    registry: ClassVar[Registry[Any]]
    default_kind: ClassVar[str | None] = None
    shorthand: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        if "registry" not in cls.__dict__:
            return handler(source)  # a registered block, validated by its own fields
        return core_schema.no_info_plain_validator_function(cls._validate)

    @classmethod
    def _validate(cls, value: Any) -> Any:
        if cls.shorthand and isinstance(value, str):
            value = {"kind": value}
        return _union(tuple(cls.registry.items()), cls.default_kind).validate_python(value)


@lru_cache(maxsize=64)
def _union(registered: tuple[tuple[str, type[Block]], ...], default: str | None) -> TypeAdapter[Any]:
    """Return the discriminated union of the registered blocks; its errors name the kind and the key."""
    members: Any = Union[tuple(Annotated[block, Tag(kind)] for kind, block in registered)]  # noqa: UP007
    union: Any = Annotated[members, by_kind(default)]
    return TypeAdapter(union)


def by_kind(default: str | None) -> Discriminator:
    """Choose the class of a block by its `kind`, or `default` where it has none."""

    def kind_of(value: Any) -> str | None:
        kind = value.get("kind", default) if isinstance(value, dict) else getattr(value, "kind", None)
        return kind if isinstance(kind, str) else None

    return Discriminator(kind_of)


class NameOf:
    """Annotation of a string field whose value is a name in a registry: `Annotated[str, NameOf(ENERGIES)]`.

    `others` are allowed in addition to the registered names.
    """

    def __init__(self, registry: Registry[Any], *others: str) -> None:
        self.registry, self.others = registry, others

    @property
    def names(self) -> tuple[str, ...]:
        """All allowed names, including those registered later."""
        return *self.registry, *self.others

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: Any) -> str:
        if isinstance(value, str) and value in self.names:
            return value
        *others, last = (repr(name) for name in self.names)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})


# The parts of a model. `dim` is the size of the embeddings; `dropout` applies to a part without its own rate.

INPUTS: Registry[type[InputOptions]] = Registry("input")
ENCODERS: Registry[type[EncoderOptions]] = Registry("encoder")
DECODERS: Registry[type[DecoderOptions]] = Registry("decoder")
POOLINGS: Registry[type[PoolingOptions]] = Registry("pooling")
MODELS: Registry[type[ModelOptions]] = Registry("model")


class InputOptions(PartOptions):
    """Base class of input options. An input layer maps what a model reads to vectors (batch, S, dim)."""

    registry: ClassVar = INPUTS
    default_kind: ClassVar = "tokens"
    shorthand: ClassVar = True  # `input: frames`
    reads_text: ClassVar[bool] = True  # False: sequences of numbers

    if TYPE_CHECKING:
        kind: Any

    def check(self, model: Any) -> Iterator[str]:
        """Yield a sentence for each option of the model block that cannot work with this input."""
        yield from ()

    def row_format(self, rows: RowFormat) -> RowFormat:
        """The rows of a task, given those with a text as source."""
        return rows

    def build_input(self, size: int, dim: int, *, scaled: bool, embedding_dropout: float) -> nn.Module:
        """The layer; `size` is the number of tokens or channels, `scaled` multiplies embeddings by √dim."""
        raise NotImplementedError


def reads_numbers(model: Any) -> bool:
    """True if the model of a raw `model:` block reads sequences of numbers."""
    given = model.get("input") if isinstance(model, dict) else None
    kind = given.get("kind") if isinstance(given, dict) else given
    return isinstance(kind, str) and kind in INPUTS and not INPUTS[kind].reads_text


class EncoderOptions(PartOptions):
    """Base class of encoder options.

    An encoder maps (batch, S, dim) and lengths to a `Memory` of width `.width`.
    """

    registry: ClassVar = ENCODERS
    default_kind: ClassVar = "transformer"

    def width_of(self, dim: int) -> int:
        """Width of the encoder's states."""
        return dim

    def check(self, dim: int, place: str) -> Iterator[str]:
        """Yield a sentence for each option that cannot work; `place` is the block's place in the recipe."""
        yield from ()

    def build_encoder(self, dim: int, dropout: float) -> nn.Module:
        raise NotImplementedError


class DecoderOptions(PartOptions):
    """Base class of decoder options.

    A decoder has `width`, `forward`, `start`, `step` and `can_join` (see decoder.py).
    """

    registry: ClassVar = DECODERS
    default_kind: ClassVar = "transformer"

    def width_of(self, dim: int) -> int:
        """Width of the states that attend to the encoder."""
        return dim

    def check_decoder(self, dim: int, encoder: EncoderOptions | None, place: str) -> Iterator[str]:
        """Yield a sentence for each option that cannot work, alone or with this encoder."""
        yield from ()

    def build_decoder(self, dim: int, dropout: float, encoder: nn.Module | None) -> nn.Module:
        raise NotImplementedError


class PoolingOptions(PartOptions):
    """Base class of pooling options. A pooling maps a `Memory` to one vector per text, of width `.width`."""

    registry: ClassVar = POOLINGS
    shorthand: ClassVar = True  # `pooling: max`

    def check(self, width: int, place: str) -> Iterator[str]:
        """Yield a sentence for each option that cannot work with states of this width."""
        yield from ()

    def build(self, width: int) -> nn.Module:
        raise NotImplementedError


class ModelOptions(PartOptions):
    """Base class of the `model:` block."""

    registry: ClassVar = MODELS
    default_kind: ClassVar = "autoregressive"

    if TYPE_CHECKING:  # every subclass declares these, with its own defaults
        kind: Any
        dim: Size
        dropout: Dropout
        encoder: Any
        input: Any

    def check(self) -> Iterator[str]:
        """Yield a sentence for each option that cannot work."""
        yield from ()

    def build(self, source_vocab: int | None, target_vocab: int) -> Any:
        raise NotImplementedError


def build_encoder(options: EncoderOptions, dim: int, dropout: float) -> Any:
    """Build an encoder; its own `dropout` has precedence over the model's."""
    return options.build_encoder(dim, _rate(options, dropout))


def build_decoder(options: DecoderOptions, dim: int, dropout: float, encoder: nn.Module | None) -> Any:
    """Build a decoder that attends to `encoder`; None builds the decoder of a language model."""
    return options.build_decoder(dim, _rate(options, dropout), encoder)


def _rate(options: Any, dropout: float) -> float:
    own_rate = getattr(options, "dropout", None)
    return dropout if own_rate is None else own_rate
