"""Check that a Transformers model can run on regard, and record the names of its modules.

Transformers accepts a registered attention implementation for any model, even for one that ignores it and
silently runs its own attention. So `register` patches the two methods of `PreTrainedModel` that set the
implementation: they raise an error for such a model.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any

import torch
from torch import nn

from regard.errors import OptionError
from regard.huggingface.changes import Changes, uses_interface

REGISTERED: dict[str, Changes] = {}
_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def patch_transformers() -> None:
    """Patch the two methods of `PreTrainedModel`; later calls do nothing."""
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
                f"no variant is called {attn_implementation!r}; "
                f"registered are {', '.join(sorted(REGISTERED))}; "
                f"regard.huggingface.register({attn_implementation!r}, …) adds it"
            )
        if isinstance(attn_implementation, str) and attn_implementation in REGISTERED:
            for model in [m for m in self.modules() if isinstance(m, PreTrainedModel)]:
                _check_interface(model, attn_implementation)
            REGISTERED[attn_implementation].check(self)
            _add_model(self)
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
            f"{type(model).__name__} has its own attention code and does not use Transformers' "
            "AttentionInterface, "
            f'so it cannot run on {name!r}; load it with attn_implementation="eager", or in a composite '
            f"model name the parts that can, as in attn_implementation={{'text_config': {name!r}}}"
        )


def on_first_use(module: nn.Module, changes: Changes) -> None:
    """Check `changes` and record the names of a model's modules, when one of them first runs on regard."""
    root, path = None, ""
    for model in list(_models):
        for name, inner in model.named_modules():
            if inner is module and (root is None or len(name) > len(path)):
                root, path = model, name
    if root is None:  # a module outside any model
        module.__dict__["_regard_path"] = ""
        return
    changes.check(root)
    _add_model(root)


def _add_model(model: nn.Module) -> None:
    """Record the model and the names of its modules."""
    _models.add(model)
    root = weakref.ref(model)
    for name, module in model.named_modules():
        module.__dict__["_regard_path"], module.__dict__["_regard_root"] = name, root
    _warn_of_own_attention(model)


def models_using(name: str) -> list[Any]:
    """The outermost models that currently run on this variant."""
    using = [
        m
        for m in _models
        if getattr(m.config, "_attn_implementation", None) == name and any(True for _ in m.children())
    ]
    inner = {id(x) for m in using for x in m.modules() if x is not m}
    return [m for m in using if id(m) not in inner]


def path_of(module: nn.Module) -> str:
    """Return the name of a module in its outermost model, or ''; correct also after layers were moved."""
    path, root = module.__dict__.get("_regard_path", ""), module.__dict__.get("_regard_root")
    model = None if root is None or torch.compiler.is_compiling() else root()
    if model is None or _submodule(model, path) is module:
        return path
    for name, inner in model.named_modules():
        inner.__dict__["_regard_path"] = name
    return module.__dict__["_regard_path"]


def _submodule(model: nn.Module, path: str) -> nn.Module | None:
    module: nn.Module | None = model
    for name in path.split(".") if path else ():
        module = None if module is None else module._modules.get(name)
    return module


def _warn_of_own_attention(model: nn.Module) -> None:
    """Warn of attention layers that do not use the attention interface, and so do not run on regard."""
    own = [
        name
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__ and not any(uses_interface(type(m)) for m in module.modules())
    ]
    if own:
        more = f" and {len(own) - 2} more" if len(own) > 2 else ""
        warnings.warn(
            f"{type(model).__name__}: {', '.join(own[:2])}{more} compute attention in their own code, "
            "not on regard, and watch does not record them",
            stacklevel=2,
        )
