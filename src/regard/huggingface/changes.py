"""What a registered attention variant changes in a Transformers model: in all layers, or layer by layer."""

from __future__ import annotations

import fnmatch
import functools
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.bias import Bias, DenseBias
from regard.attention.call import wrap_bias, wrap_energy, wrap_mask, wrap_normalizer
from regard.attention.energy import Energy
from regard.attention.mask import And, Dense, Mask, Not, Or
from regard.attention.normalize import Normalizer
from regard.attention.position_masks import Documents, Padding, Prefix
from regard.errors import OptionError


@dataclass(frozen=True)
class Change:
    """The options of a variant; None: no change.

    `energy` and `normalize` replace the model's own; `mask` and `bias` are combined with the model's own.
    """

    energy: Energy | None = None
    mask: Mask | None = None
    bias: Bias | None = None
    normalize: Normalizer | None = None


WRAP = {"energy": wrap_energy, "mask": wrap_mask, "bias": wrap_bias, "normalize": wrap_normalizer}
KEYS = tuple(f.name for f in fields(Change))
Layers = Mapping[int | str, Mapping[str, Any]]


def wrap(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options and convert them to the objects that `attend` takes."""
    return {name: None if value is None else WRAP[name](value) for name, value in options.items()}


class Changes:
    """The changes of all layers: common options, and `layers` with options by layer index or module name."""

    def __init__(self, common: Mapping[str, Any], layers: Layers | None) -> None:
        self.common = Change(**wrap(common))
        self.layers = _check_layers(layers)

    def of(self, module: nn.Module, path: str) -> Change:
        """Return the change for one attention module; later entries of `layers` override earlier ones."""
        change, index = self.common, layer_index(module, path)
        if not path and any(isinstance(key, str) for key in self.layers) and torch.compiler.is_compiling():
            raise OptionError(
                "layers given by name need module names, which are unknown under torch.compile; "
                "run the model once without it, or choose the variant with model.set_attn_implementation"
            )
        for key, options in self.layers.items():
            if index == key if isinstance(key, int) else fnmatch.fnmatchcase(path, key):
                change = replace(change, **options)
        return change

    def check(self, model: nn.Module) -> None:
        """Check that every entry of `layers` matches an attention module of this model."""
        if not self.layers:
            return
        modules = {
            name: module for name, module in model.named_modules() if name and uses_interface(type(module))
        }
        paths = list(modules)
        indices = {i for name, module in modules.items() if (i := layer_index(module, name)) is not None}
        for key in self.layers:
            if isinstance(key, int) and key not in indices:
                known = f"layers 0 to {max(indices)}" if indices else "no numbered layers"
                raise OptionError(
                    f"layers={{{key}: …}} names no layer of {type(model).__name__}, which has {known}"
                )
            if isinstance(key, str) and not any(fnmatch.fnmatchcase(path, key) for path in paths):
                example = f"such as {paths[0]!r}, " if paths else ""
                raise OptionError(
                    f"layers={{{key!r}: …}} names no attention module of {type(model).__name__}; "
                    f"names are those of named_modules(), {example}and * matches anything"
                )


@functools.cache
def uses_interface(module_class: type) -> bool:
    """Whether modules of a class get their attention function from Transformers' interface.

    True also if the code of the class cannot be read.
    """
    generic = ("torch.", "transformers.modeling_")
    try:
        classes = [
            c for c in module_class.__mro__ if c is not object and not c.__module__.startswith(generic)
        ]
        sources = [inspect.getsource(c) for c in classes]
    except (OSError, TypeError):
        return True
    return any("get_interface(" in source for source in sources)


def layer_index(module: nn.Module, path: str) -> int | None:
    """The index of a layer: `layer_idx`, which most modules of Transformers have, or a number in its path."""
    index = getattr(module, "layer_idx", None)
    if isinstance(index, int):
        return index
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    return int(number[1]) if number else None


def _check_layers(layers: object) -> dict[int | str, dict[str, Any]]:
    if layers is None:
        return {}
    if not isinstance(layers, Mapping):
        raise OptionError(
            "layers must map an index or a name to options, as in {0: {'mask': Window(8)}}, "
            f"got {layers!r:.80}"
        )
    checked: dict[int | str, dict[str, Any]] = {}
    for key, options in layers.items():
        if isinstance(key, bool) or not isinstance(key, int | str) or (isinstance(key, int) and key < 0):
            raise OptionError(
                f"layers: {key!r} is not a layer; "
                "give an index from 0, or a name such as 'model.layers.*.self_attn'"
            )
        if not isinstance(options, Mapping):
            raise OptionError(
                f"layers[{key!r}] must be a dict with some of {', '.join(KEYS)}, got {options!r:.80}"
            )
        for name in options:
            if name not in KEYS:
                raise OptionError(f"layers[{key!r}] has no option {name!r}; there are {', '.join(KEYS)}")
        checked[key] = wrap(options)
    return checked


class Sum(Bias):
    """The sum of two biases."""

    finite = False
    uses_query = True

    def __init__(self, a: Bias, b: Bias) -> None:
        self.a, self.b = a, b
        self.finite, self.uses_query = a.finite and b.finite, a.uses_query or b.uses_query

    def values(self, grid: Any, query: Tensor) -> Tensor:
        return self.a.values(grid, query) + self.b.values(grid, query)

    def check(self, query: Tensor, Tk: int, heads: int, leading: Any) -> None:
        self.a.check(query, Tk, heads, leading)
        self.b.check(query, Tk, heads, leading)

    def signature(self) -> Any:
        a, b = self.a.signature(), self.b.signature()
        return None if a is None or b is None else (Sum, a, b)

    def tensors(self) -> tuple[Tensor, ...] | None:
        a, b = self.a.tensors(), self.b.tensors()
        return None if a is None or b is None else a + b

    def __repr__(self) -> str:
        return f"{self.a} + {self.b}"


# These refer to keys by index; all other masks and biases are taken to depend on distances.
BY_INDEX = (Dense, Padding, Prefix, Documents, DenseBias)


def uses_distances(option: Mask | Bias) -> bool:
    """Whether the option depends on the positions of queries relative to keys."""
    return any(not isinstance(x, BY_INDEX) for x in _operands(option))


def uses_key_indices(option: Mask | Bias) -> bool:
    """Whether the option refers to keys by their index in the text."""
    return any(isinstance(x, BY_INDEX) for x in _operands(option))


def _operands(option: Mask | Bias) -> list[Mask | Bias]:
    """Return the masks that a combined mask consists of; for any other option, the option alone."""
    if isinstance(option, And | Or):
        return [*_operands(option.a), *_operands(option.b)]
    return _operands(option.a) if isinstance(option, Not) else [option]
