"""Models that run on regard: whether they can, and how their modules are called.

Transformers accepts any registered name for any model, also for one whose code never asks the interface and would run its own
attention. So `register` wraps the two methods of `PreTrainedModel` through which a name is set; they refuse such a model.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch import nn

from regard.errors import OptionError
from regard.huggingface.changes import Changes

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
        if isinstance(attn_implementation, str) and attn_implementation in REGISTERED:
            for model in [m for m in self.modules() if isinstance(m, PreTrainedModel)]:
                _check_interface(model, attn_implementation)
            REGISTERED[attn_implementation].check(self)
        found = setter(self, attn_implementation, *args, **options)
        _models.add(self)
        return found

    @functools.wraps(checker)
    def get_correct_attn_implementation(self: Any, requested_attention: Any, *args: Any, **options: Any) -> Any:
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


def path_of(module: nn.Module) -> str | None:
    """The name of a module in the outermost model that runs on regard."""
    found = module.__dict__.get("_regard_path")
    if found is None:
        for model in list(_models):
            for name, inner in model.named_modules():
                if inner is module and (found is None or len(name) > len(found)):
                    found = name
        if found is not None:
            module.__dict__["_regard_path"] = found
    return found
