"""What a registered variant changes about a model's attention, for all layers and for some."""

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
    """Parts of the operator that take the place of the model's; None leaves the model's. `mask` and `bias` come on top."""

    energy: Energy | None = None
    mask: Mask | None = None
    bias: Bias | None = None
    normalize: Normalizer | None = None


WRAP = {"energy": wrap_energy, "mask": wrap_mask, "bias": wrap_bias, "normalize": wrap_normalizer}
KEYS = tuple(f.name for f in fields(Change))
Layers = Mapping[int | str, Mapping[str, Any]]


def wrap(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as objects of the operator, each checked by the operator's own rules."""
    return {name: None if value is None else WRAP[name](value) for name, value in options.items()}


class Changes:
    """The change of every layer: the common one, with what `layers` says for an index or for names of modules."""

    def __init__(self, common: Mapping[str, Any], layers: Layers | None) -> None:
        self.common = Change(**wrap(common))
        self.layers = _check_layers(layers)

    def of(self, module: nn.Module, path: str) -> Change:
        """The change of one attention module; later entries of `layers` win."""
        found, index = self.common, layer_index(module, path)
        if not path and any(isinstance(key, str) for key in self.layers) and torch.compiler.is_compiling():
            raise OptionError(
                "layers by name need the names of modules, which torch.compile does not tell; run the model once before, or choose "
                "the variant with model.set_attn_implementation"
            )
        for key, options in self.layers.items():
            if index == key if isinstance(key, int) else fnmatch.fnmatchcase(path, key):
                found = replace(found, **options)
        return found

    def check(self, model: nn.Module) -> None:
        """Every entry of `layers` concerns some attention module of this model."""
        if not self.layers:
            return
        modules = {
            name: module for name, module in model.named_modules() if name and asks_interface(type(module))
        }
        paths, indices = (
            list(modules),
            {layer_index(module, name) for name, module in modules.items()} - {None},
        )
        for key in self.layers:
            if isinstance(key, int) and key not in indices:
                known = (
                    f"layers 0 to {max(i for i in indices if i is not None)}"
                    if indices
                    else "no numbered layers"
                )
                raise OptionError(
                    f"layers={{{key}: …}} names no layer of {type(model).__name__}, which has {known}"
                )
            if isinstance(key, str) and not any(fnmatch.fnmatchcase(path, key) for path in paths):
                such = f"such as {paths[0]!r}, " if paths else ""
                raise OptionError(
                    f"layers={{{key!r}: …}} names no attention module of {type(model).__name__}; names are those of "
                    f"named_modules(), {such}and * stands for anything"
                )


@functools.cache
def asks_interface(kind: type) -> bool:
    """Whether the code of a module asks Transformers for an attention function; True where the code cannot be read."""
    try:
        own = [
            k
            for k in kind.__mro__
            if k is not object and not k.__module__.startswith(("torch.", "transformers.modeling_"))
        ]
        sources = [inspect.getsource(k) for k in own]
    except (OSError, TypeError):
        return True
    return any("get_interface(" in source for source in sources)


def layer_index(module: nn.Module, path: str) -> int | None:
    """The number of a layer: `layer_idx` as most modules of Transformers have it, else the first number in the path."""
    index = getattr(module, "layer_idx", None)
    if isinstance(index, int):
        return index
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    return int(found[1]) if found else None


def _check_layers(layers: object) -> dict[int | str, dict[str, Any]]:
    if layers is None:
        return {}
    if not isinstance(layers, Mapping):
        raise OptionError(
            f"layers must map an index or a name to options, as in {{0: {{'mask': Window(8)}}}}, got {layers!r:.80}"
        )
    found: dict[int | str, dict[str, Any]] = {}
    for key, options in layers.items():
        if isinstance(key, bool) or not isinstance(key, int | str) or (isinstance(key, int) and key < 0):
            raise OptionError(
                f"layers: {key!r} is no layer; give an index from 0, or a name such as 'model.layers.*.self_attn'"
            )
        if not isinstance(options, Mapping):
            raise OptionError(
                f"layers[{key!r}] must be a dict with some of {', '.join(KEYS)}, got {options!r:.80}"
            )
        for name in options:
            if name not in KEYS:
                raise OptionError(f"layers[{key!r}] has no option {name!r}; there are {', '.join(KEYS)}")
        found[key] = wrap(options)
    return found


class Sum(Bias):
    """Two biases, added."""

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


def reads_positions(option: Mask | Bias) -> bool:
    """Whether the option depends on where queries and keys stand relative to each other."""
    if isinstance(option, And | Or):
        return reads_positions(option.a) or reads_positions(option.b)
    if isinstance(option, Not):
        return reads_positions(option.a)
    return not isinstance(option, Dense | Padding | Prefix | Documents | DenseBias)


def counts_keys(option: Mask | Bias) -> bool:
    """Whether the option names keys by their number in the text."""
    if isinstance(option, And | Or):
        return counts_keys(option.a) or counts_keys(option.b)
    if isinstance(option, Not):
        return counts_keys(option.a)
    return isinstance(option, Dense | Padding | Prefix | Documents | DenseBias)
