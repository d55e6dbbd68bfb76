"""Check that a Transformers model can run on regard, and record the names of its modules.

Transformers accepts a registered attention implementation for any model, even for one that ignores it, or a
part of which ignores it, and silently runs its own attention. So `register` patches the methods of
`PreTrainedModel` that set the implementation: they raise an error or warn for such a model.
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from regard.errors import OptionError
from regard.huggingface.changes import Changes, uses_interface

REGISTERED: dict[str, Changes] = {}
_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def patch_transformers() -> None:
    """Patch three methods of `PreTrainedModel` and a setter of its config; later calls do nothing."""
    from transformers import PreTrainedModel

    if not getattr(PreTrainedModel.set_attn_implementation, "_regard", False):
        _patch_model()
        _patch_config()


def _patch_model() -> None:
    from transformers import PreTrainedModel

    setter, checker = PreTrainedModel.set_attn_implementation, PreTrainedModel.get_correct_attn_implementation
    post_init = PreTrainedModel.post_init

    @functools.wraps(setter)
    def set_attn_implementation(self: Any, attn_implementation: Any, *args: Any, **options: Any) -> Any:
        names = _check_request(self, attn_implementation)
        result = setter(self, attn_implementation, *args, **options)
        _update_other_configs(self)
        for name in names:
            _warn_if_unused(self, name)
        return result

    @functools.wraps(checker)
    def get_correct_attn_implementation(
        self: Any, requested_attention: Any, *args: Any, **options: Any
    ) -> Any:
        _check_registered(requested_attention)
        if requested_attention in REGISTERED:
            _check_interface(self, requested_attention)
            _models.add(self)
        return checker(self, requested_attention, *args, **options)

    @functools.wraps(post_init)
    def checked_post_init(self: Any) -> None:
        post_init(self)
        name = self.config._attn_implementation
        if name in REGISTERED and not _is_part_of_another_model(self):
            _warn_if_unused(self, name)

    set_attn_implementation._regard = True  # type: ignore[attr-defined]
    PreTrainedModel.set_attn_implementation = set_attn_implementation
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation
    PreTrainedModel.post_init = checked_post_init


def _patch_config() -> None:
    from transformers import PreTrainedConfig

    implementation: Any = PreTrainedConfig._attn_implementation  # a property; loading a model sets it

    @implementation.setter
    def checked_implementation(self: Any, value: Any) -> None:
        if isinstance(value, Mapping):
            _check_keys(self, value)
        implementation.fset(self, value)

    PreTrainedConfig._attn_implementation = checked_implementation


def _check_request(model: Any, request: Any) -> list[str]:
    """Check a call of `set_attn_implementation`; return the registered names in it."""
    implementations = {id(config): name for config, name in _implementations(model.config, request)}
    for name in implementations.values():
        _check_registered(name)
    part_of = _part_of_each_module(model, implementations)
    for part in _parts(model):
        name = implementations[id(part_of[id(part)].config)]
        if name in REGISTERED:
            _check_interface(part, name)
    requested = _names(request)
    names = [x for x in dict.fromkeys(implementations.values()) if x in REGISTERED and x in requested]
    for name in names:
        REGISTERED[name].check(model)
    if names:
        _add_model(model)
    return names


def _names(request: Any) -> list[Any]:
    """The names in a request: one, or those of a dict."""
    return [n for x in request.values() for n in _names(x)] if isinstance(request, Mapping) else [request]


def _implementations(config: Any, request: Any) -> Iterator[tuple[Any, Any]]:
    """The implementation that a request (a name or a dict) gives to a config and to its sub-configs."""
    if not isinstance(request, Mapping):
        yield config, request
    else:
        _check_keys(config, request)
        yield config, request.get("", config._attn_implementation)
    for key in config.sub_configs:
        if (sub_config := getattr(config, key, None)) is not None:
            current = sub_config._attn_implementation
            yield from _implementations(
                sub_config, request.get(key, current) if isinstance(request, Mapping) else request
            )


def _check_keys(config: Any, request: Mapping[str, Any]) -> None:
    """Raise if a dict asks for regard in a sub-config that does not exist, which Transformers ignores."""
    for key, value in request.items():
        if key not in ("", *config.sub_configs) and _is_variant(value):
            known = ", ".join(map(repr, sorted(config.sub_configs))) or "none"
            raise OptionError(
                f"attn_implementation={{{key!r}: {value!r}}}: {type(config).__name__} has no sub-config "
                f"{key!r}; its sub-configs are {known}, and '' is the model itself"
            )


def _is_variant(name: Any) -> bool:
    return isinstance(name, str) and name.split("-")[0] == "regard"


def _check_registered(name: Any) -> None:
    if _is_variant(name) and name not in REGISTERED:
        raise OptionError(
            f"no variant is called {name!r}; registered are {', '.join(sorted(REGISTERED))}; "
            f"regard.huggingface.register({name!r}, …) adds it"
        )


def _check_interface(model: Any, name: str) -> None:
    if not model._can_set_attn_implementation():
        raise OptionError(
            f"{type(model).__name__} has its own attention code and does not use Transformers' "
            "AttentionInterface, "
            f'so it cannot run on {name!r}; load it with attn_implementation="eager", or in a composite '
            f"model name the parts that can, as in attn_implementation={{'text_config': {name!r}}}"
        )


def _parts(model: nn.Module) -> list[Any]:
    """The model and the Transformers models that it consists of, outer ones first."""
    from transformers import PreTrainedModel

    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def _part_of_each_module(model: Any, configs: Collection[int]) -> dict[int, Any]:
    """The innermost part around each module, by id, among the parts with one of these configs."""
    parts = [part for part in _parts(model) if id(part.config) in configs]
    return {id(module): part for part in parts for module in part.modules()}


def _update_other_configs(model: Any) -> None:
    """Set the implementation in configs that are not sub-configs of the model's, but that layers read.

    `EncoderDecoderModel` and others give their parts new configs; what is inside a part keeps the old one.
    """
    sub_configs = {id(config) for config, _ in _implementations(model.config, {})}
    part_of = _part_of_each_module(model, sub_configs)
    for module in model.modules():
        config: Any = module.__dict__.get("config")
        if id(config) in sub_configs or not hasattr(config, "_attn_implementation_internal"):
            continue
        name = part_of[id(module)].config._attn_implementation
        if name in REGISTERED or config._attn_implementation in REGISTERED:
            config._attn_implementation_internal = name


def _warn_if_unused(model: nn.Module, name: str) -> None:
    """Warn if no attention module of the model runs on this variant."""
    used = {
        path: getattr(module.__dict__.get("config"), "_attn_implementation", name)
        for path, module in model.named_modules()
        if uses_interface(type(module))
    }
    if name in used.values():
        return
    if not used:
        why = "it has no attention module that uses Transformers' AttentionInterface"
    else:
        path, other = next(iter(used.items()))
        why = f"{path} runs on {other!r}; model.set_attn_implementation({name!r}) sets it in all parts"
    warnings.warn(f"{type(model).__name__}: attn_implementation={name!r} has no effect: {why}", stacklevel=3)


def _is_part_of_another_model(model: nn.Module) -> bool:
    """Whether the model is built inside the constructor of another one, found on the call stack."""
    from transformers import PreTrainedModel

    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__init__":
            built = frame.f_locals.get("self")
            if isinstance(built, PreTrainedModel) and built is not model:
                return True
        frame = frame.f_back
    return False


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
