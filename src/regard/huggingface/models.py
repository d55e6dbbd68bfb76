"""Models that run on regard: whether they can, and how their modules are called.

Transformers accepts any registered name for any model, also for one whose code never asks the interface and would run its own
attention. So `register` wraps the two methods of `PreTrainedModel` through which a name is set; they refuse such a model.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any

import torch
from torch import nn

from regard.errors import OptionError
from regard.huggingface.changes import Changes, asks_interface

REGISTERED: dict[str, Changes] = {}
_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def watch_over_models() -> None:
    """Wrap Transformers' methods once."""
    from transformers import PreTrainedModel

    if getattr(PreTrainedModel.set_attn_implementation, "_regard", False):
        return
    setter, checker = PreTrainedModel.set_attn_implementation, PreTrainedModel.get_correct_attn_implementation

    @functools.wraps(setter)
    def set_attn_implementation(self: Any, attn_implementation: Any, *args: Any, **options: Any) -> Any:
        if (
            isinstance(attn_implementation, str)
            and attn_implementation.split("-")[0] == "regard"
            and attn_implementation not in REGISTERED
        ):
            raise OptionError(
                f"no variant is called {attn_implementation!r}; registered are {', '.join(sorted(REGISTERED))}, and "
                f"regard.huggingface.register({attn_implementation!r}, …) makes it"
            )
        if isinstance(attn_implementation, str) and attn_implementation in REGISTERED:
            for model in [m for m in self.modules() if isinstance(m, PreTrainedModel)]:
                _check_interface(model, attn_implementation)
            REGISTERED[attn_implementation].check(self)
            _admit(self)
        return setter(self, attn_implementation, *args, **options)

    @functools.wraps(checker)
    def get_correct_attn_implementation(
        self: Any, requested_attention: Any, *args: Any, **options: Any
    ) -> Any:
        if requested_attention in REGISTERED:
            _check_interface(self, requested_attention)
            _models.add(self)
        return checker(self, requested_attention, *args, **options)

    set_attn_implementation._regard = True  # type: ignore[attr-defined]
    PreTrainedModel.set_attn_implementation = set_attn_implementation
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation


def _check_interface(model: Any, name: str) -> None:
    if not model._can_set_attn_implementation():
        raise OptionError(
            f"{type(model).__name__} computes its attention in its own code and never asks Transformers' AttentionInterface, so it "
            f'cannot run on {name!r}; load it with attn_implementation="eager", or in a composite model name the parts that can, '
            f"as in attn_implementation={{'text_config': {name!r}}}"
        )


def first_use(module: nn.Module, changes: Changes) -> None:
    """When a module first runs on regard: name all modules of its model, and check what could not be checked without it."""
    root, path = None, ""
    for model in list(_models):
        for name, inner in model.named_modules():
            if inner is module and (root is None or len(name) > len(path)):
                root, path = model, name
    if root is None:  # a module by itself
        module.__dict__["_regard_path"] = ""
        return
    changes.check(root)
    _admit(root)


def _admit(model: nn.Module) -> None:
    _models.add(model)
    root = weakref.ref(model)
    for name, module in model.named_modules():
        module.__dict__["_regard_path"], module.__dict__["_regard_root"] = name, root
    _tell_own_attention(model)


def users_of(name: str) -> list[Any]:
    """The outermost models that run on this variant now."""
    using = [
        m
        for m in _models
        if getattr(m.config, "_attn_implementation", None) == name and any(True for _ in m.children())
    ]
    inner = {id(x) for m in using for x in m.modules() if x is not m}
    return [m for m in using if id(m) not in inner]


def path_of(module: nn.Module) -> str:
    """The name of a module in the outermost model that runs on regard, or nothing. Renewed when layers were moved or removed."""
    path, root = module.__dict__.get("_regard_path", ""), module.__dict__.get("_regard_root")
    model = None if root is None or torch.compiler.is_compiling() else root()
    if model is None or _at(model, path) is module:
        return path
    for name, inner in model.named_modules():
        inner.__dict__["_regard_path"] = name
    return module.__dict__["_regard_path"]


def _at(model: nn.Module, path: str) -> nn.Module | None:
    found: nn.Module | None = model
    for part in path.split(".") if path else ():
        found = None if found is None else found._modules.get(part)
    return found


def _tell_own_attention(model: nn.Module) -> None:
    """Some models ask the interface in some layers only; the others are named, so that nobody believes they run on regard."""
    own = [
        name
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__ and not any(asks_interface(type(m)) for m in module.modules())
    ]
    if own:
        more = f" and {len(own) - 2} more" if len(own) > 2 else ""
        warnings.warn(
            f"{type(model).__name__}: {', '.join(own[:2])}{more} compute attention in their own code, not on regard, and watch "
            "does not see them",
            stacklevel=2,
        )
