"""Every key of a recipe with its default, what it may be and what it means, read from the schema itself."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from annotated_types import Ge, Gt, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from regard.models.options import Block, NameOf, PartOptions
from regard.recipe.schema import Files, Recipe


def classes(annotation: Any) -> Iterator[type[BaseModel]]:
    """The blocks a field may hold."""
    if (
        isinstance(annotation, type)
        and issubclass(annotation, PartOptions)
        and "registry" in vars(annotation)
    ):
        yield from annotation.registry.values()
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from classes(part)


def kind_of(block: type[BaseModel]) -> str | None:
    """The `kind` a class of blocks is chosen by."""
    return block.model_fields["kind"].default if "kind" in block.model_fields else None


@dataclass(frozen=True)
class Key:
    """One key of a block."""

    name: str
    default: str
    allowed: str
    meaning: str


@dataclass
class Section:
    """One block of a recipe: where it may stand, what it is, and its keys."""

    block: type[BaseModel]
    places: list[str] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)

    @property
    def title(self) -> str:
        """`model.encoder, model.decoder: {kind: transformer}`."""
        kind = kind_of(self.block) if self.places != ["tokenizer"] and self.places != ["optimizer"] else None
        return ", ".join(self.places) + (f": {{kind: {kind}}}" if kind else "")

    @property
    def about(self) -> str:
        return (self.block.__doc__ or "").splitlines()[0]


def sections() -> list[Section]:
    """The blocks in the order in which a recipe is written; one that may stand in several places comes once."""
    found: dict[type[BaseModel], Section] = {}

    def visit(block: type[BaseModel], place: str) -> None:
        section = found.setdefault(block, Section(block))
        if place in section.places:
            return
        section.places.append(place)
        if not section.keys:
            parent = block.__base__
            whole = parent is Block or (
                parent is not None and "kind" not in getattr(parent, "model_fields", {})
            )
            own = block.model_fields if whole else {n: block.model_fields[n] for n in block.__annotations__}
            section.keys = [_key(name, info) for name, info in own.items() if name != "kind" or _open(info)]
        for name, info in block.model_fields.items():
            for inner in classes(info.annotation):
                if name != "of":  # masks of masks are masks
                    visit(inner, name if place == "a recipe" or name == "mask" else f"{place}.{name}")

    visit(Recipe, "a recipe")
    return list(found.values())


def markdown() -> str:
    """All sections as Markdown tables, as `docs/recipes.md` holds them."""
    lines = []
    for section in sections():
        lines += [
            f"### `{section.title}`" if section.block is not Recipe else "### A recipe",
            section.about,
            "",
        ]
        if section.keys:
            lines += ["| key | default | may be | what it is |", "| --- | --- | --- | --- |"]
            lines += [
                f"| `{k.name}` | {_code(k.default)} | {k.allowed} | {k.meaning} |" for k in section.keys
            ] + [""]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _open(info: FieldInfo) -> bool:
    """Whether a `kind` is a choice of its own, not the name of its block."""
    return len(typing.get_args(info.annotation)) > 1


def _key(name: str, info: FieldInfo) -> Key:
    blocks = list(classes(info.annotation))
    allowed = f"a block{_kinds(blocks)}" if blocks else allowed_values(info.annotation, info.metadata)
    if blocks and type(None) in typing.get_args(info.annotation):
        allowed += " or null"
    default = "" if blocks or info.is_required() else _yaml(info.default)
    if blocks and info.default is None:
        default = "null"
    return Key(name, default, allowed, info.description or (blocks[0].__doc__ or "").splitlines()[0])


def _kinds(blocks: list[type[BaseModel]]) -> str:
    kinds = [kind_of(block) for block in blocks]
    return f" of kind {', '.join(map(str, kinds))}" if len(blocks) > 1 else ""


def _yaml(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or isinstance(value, bool)
        else str(value)
    )


def allowed_values(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a key may be, in words: `whole number ≥ 1`, `adam, adamw`."""
    if annotation == Files:
        return "a list of files, or of lists of two"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = [c for a in args[1:] for c in (a.metadata if isinstance(a, FieldInfo) else [a])]
        return allowed_values(args[0], [*inner, *metadata])
    if origin is Literal:
        return ", ".join(map(str, args))
    for constraint in metadata:
        if isinstance(constraint, NameOf):
            return ", ".join(constraint.registry)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if a is type(None) else allowed_values(a) for a in args)
    if origin is list:
        return f"a list, each {allowed_values(args[0])}"
    name = {int: "whole number", float: "number", bool: "true, false", str: "text"}.get(annotation, "")
    signs = [
        f"{sign} {_number(getattr(c, key))}"
        for c in metadata
        for kind, sign, key in BOUNDS
        if isinstance(c, kind)
    ]
    return " ".join([name, ", ".join(signs)]).strip()


BOUNDS = ((Ge, "≥", "ge"), (Gt, ">", "gt"), (Lt, "<", "lt"))


def _number(value: float) -> str:
    return "2⁶³" if value == 2**63 else f"{value:g}"


def everywhere() -> dict[str, list[type[BaseModel]]]:
    """Every key a recipe of any kind may have, dotted, with the blocks that have it: `model.encoder.heads`."""
    found: dict[str, list[type[BaseModel]]] = {}

    def walk(block: type[BaseModel], path: str, above: tuple[type[BaseModel], ...]) -> None:
        for name, info in block.model_fields.items():
            found.setdefault(f"{path}{name}", []).append(block)
            for inner in classes(info.annotation):
                if inner not in above:  # masks of masks
                    walk(inner, f"{path}{name}.", (*above, inner))

    walk(Recipe, "", (Recipe,))
    return found


def available(raw: Mapping[str, Any]) -> dict[str, FieldInfo]:
    """Every key that this recipe may have, dotted: of its own kinds of model, encoder, decoder and schedule alone."""
    found: dict[str, FieldInfo] = {}

    def walk(block: type[BaseModel], given: Mapping[str, Any], path: str) -> None:
        for name, info in block.model_fields.items():
            found[f"{path}{name}"] = info
            value = given.get(
                name, {} if name == "encoder" else info.default
            )  # a translator's encoder may be left out
            inner = chosen(info, value)
            if inner is not None:
                walk(inner, value if isinstance(value, Mapping) else {}, f"{path}{name}.")

    walk(Recipe, raw, "")
    return found


def chosen(info: FieldInfo, value: Any) -> type[BaseModel] | None:
    """The block that a value of this field is, by its `kind`; None where it is no block."""
    blocks = list(classes(info.annotation))
    if isinstance(value, BaseModel):
        return type(value)
    if not blocks or not isinstance(value, Mapping):
        return None
    kind = value.get("kind", kind_of(blocks[0]))
    return next((block for block in blocks if kind_of(block) == kind), blocks[0])
