"""Inspect a model for `watch`: module paths, `only` patterns, how its attention is computed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch
from torch import nn

from regard.errors import OptionError

KINDS = ("self", "cross")
Modules = dict[str, nn.Module]  # by path


# The walk through each model that was watched before, so that the next `watch` of it begins sooner: on a GPU,
# the first kernel waits for it.
_known: weakref.WeakKeyDictionary[nn.Module, _Walk] = weakref.WeakKeyDictionary()


def named_modules(model: nn.Module) -> Modules:
    """All modules by path; a compiled module has the path it had before compiling."""
    known = _known.get(model)
    modules = None if known is None else known.modules()
    if modules is None:
        modules = _walk(model)
        _known[model] = _Walk(model, modules)
    return modules


class _Walk:
    """The modules of a model and their children, by weak references: `_known` must not keep a model alive."""

    def __init__(self, model: nn.Module, modules: Modules) -> None:
        paths = {id(module): path for path, module in modules.items()}
        self._nodes = [
            (
                weakref.ref(module),
                paths.get(id(module)),  # None for a wrapper of torch.compile
                [*module._modules.keys()],  # for torch.jit modules not a dict
                [*map(id, module._modules.values())],
            )
            for module in model.modules()
        ]

    def modules(self) -> Modules | None:
        """The modules by path; None if a module was added, removed or replaced since."""
        modules: Modules = {}
        for reference, path, names, ids in self._nodes:
            module = reference()
            if module is None:
                return None
            children = module._modules
            if (children or names) and ([*children.keys()] != names or [*map(id, children.values())] != ids):
                return None
            if path is not None:
                modules[path] = module
        return modules


def _walk(model: nn.Module) -> Modules:
    """All modules by path, in the order of `model.named_modules()`, which takes five times as long."""
    modules: Modules = {}
    visited: set[int] = set()

    def visit(module: nn.Module, path: str) -> None:
        visited.add(id(module))
        if "_orig_mod" not in module._modules:  # else a wrapper of torch.compile; the module itself follows
            modules[path] = module
        for name, child in module._modules.items():
            if child is not None and id(child) not in visited:
                visit(child, path if name == "_orig_mod" else f"{path}.{name}" if path else name)

    visit(model, "")
    return modules


def scripted_modules(modules: Modules) -> list[str]:
    """The paths of torch.jit modules, "the model" for the model itself."""
    kinds = {kind for kind in {*map(type, modules.values())} if issubclass(kind, torch.jit.ScriptModule)}
    return [path or "the model" for path, module in modules.items() if type(module) in kinds] if kinds else []


def uses_only_attend(modules: Modules) -> bool:
    """True if all attention of the model goes through `attend`, so that torch functions need no interception.

    This holds for regard's own models and for Hugging Face models with attn_implementation="regard", unless
    they contain third-party modules or hooks. Interception costs 1 to 5 µs per torch function.
    """
    kinds = {type(module) for module in modules.values()}
    torch_attention = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    if any(issubclass(kind, torch_attention) for kind in kinds):
        return False
    trusted = ("regard.", "torch.nn.modules.", "transformers.")
    if not kinds or not all(kind.__module__.startswith(trusted) for kind in kinds):
        return False
    hooks = [
        hook
        for module in modules.values()
        if module._forward_hooks or module._forward_pre_hooks
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    trusted = ("regard.", "transformers.")
    if any(not str(getattr(hook, "__module__", "")).startswith(trusted) for hook in hooks):
        return False
    return _attention_implementations(modules) <= {"regard"}


def has_changed(model: nn.Module, modules: Modules) -> bool:
    """True if a model that used only `attend` got new kinds of modules or another attn_implementation."""
    before = {type(module) for module in modules.values()}
    now = {type(module) for module in named_modules(model).values()}
    return not now <= before or bool(_attention_implementations(modules) - {"regard"})


def _attention_implementations(modules: Modules) -> set[str]:
    """The attn_implementation of Hugging Face models; all that begin with "regard" count as "regard"."""
    configs = {
        id(config): config
        for module in modules.values()
        if (config := module.__dict__.get("config")) is not None
    }
    names = {getattr(config, "_attn_implementation", "regard") for config in configs.values()}
    return {str(name).split("-")[0] for name in names}


def check_patterns(only: object, modules: Modules | None, option: str = "only=") -> list[str] | None:
    """`only` as a list of glob patterns. Raise if one cannot match any call of the model."""
    if only is None:
        return None
    given = [only] if isinstance(only, str) or not isinstance(only, Iterable) else list(only)
    patterns = [pattern for pattern in given if isinstance(pattern, str)]
    if not patterns or len(patterns) < len(given):
        raise OptionError(
            f"only must be a name, a glob such as 'decoder.*.cross' or a list of them, got {only!r}"
        )
    if modules is not None and not all(
        pattern in modules and not _never_attends(modules[pattern]) for pattern in patterns
    ):
        paths = [name for name, module in modules.items() if name and not _never_attends(module)]
        names = [*KINDS, *paths, *(f"{path}.{kind}" for path in paths for kind in KINDS)]
        for pattern in patterns:
            if not pattern.startswith("attend.") and not any(fnmatchcase(name, pattern) for name in names):
                some = ", ".join(paths)[:200] or "none"
                raise OptionError(
                    f"{option}{pattern!r} matches no module of this model; its modules are {some}"
                )
    return patterns


def _never_attends(module: nn.Module) -> bool:
    """True for a leaf layer without attention, such as nn.Linear."""
    home = type(module).__module__
    if module._modules or isinstance(module, nn.MultiheadAttention):
        return False
    return home.startswith("torch.nn.modules.") or home == "regard.layers.linear"
