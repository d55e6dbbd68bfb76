"""Optimizers by name, parameter groups, learning rate and gradient clipping.

An optimizer is one class: its fields are the keys of the recipe's `optimizer:` block, `build` makes the torch
optimizer.

    @OPTIMIZERS.add("sgd")
    class SGD(OptimizerOptions):
        kind: Literal["sgd"] = "sgd"
        momentum: float = Field(default=0.9, description="momentum")

        def build(self, groups):
            return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from regard.models.options import PartOptions
from regard.registry import Registry

PositiveFloat = Annotated[float, Field(gt=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
ParameterGroups = list[dict[str, Any]]

OPTIMIZERS: Registry[type[OptimizerOptions]] = Registry("optimizer")


class OptimizerOptions(PartOptions):
    """Keys of every optimizer."""

    registry: ClassVar = OPTIMIZERS
    default_kind: ClassVar = "adam"

    kind: Any  # the registered name, a Literal in every subclass
    lr: PositiveFloat = Field(default=0.0007, description="peak learning rate")
    head_lr: PositiveFloat | None = Field(
        default=None, description="fine-tuning: peak learning rate of newly initialized weights; null: lr"
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="weight decay of the matrices of linear layers; decoupled in adamw"
    )
    decay_embeddings: bool = Field(
        default=False,
        description="weight decay of embedding tables too; for a table that is also the output layer",
    )
    clip: PositiveFloat | None = Field(
        default=1.0, description="maximum gradient norm; null: no gradient clipping"
    )

    def build(self, groups: ParameterGroups) -> torch.optim.Optimizer:
        """Return the torch optimizer of these parameter groups; each has `params` and `weight_decay`."""
        raise NotImplementedError


class _AdamOptions(OptimizerOptions):
    """Keys of Adam and AdamW."""

    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)] = Field(
        default=[0.9, 0.98], description="decay rates of the first and second moment estimates"
    )
    eps: PositiveFloat = Field(default=1e-9, description="added to the denominator for numerical stability")

    def _arguments(self, groups: ParameterGroups) -> dict[str, Any]:
        betas = (self.betas[0], self.betas[1])
        return {"params": groups, "lr": self.lr, "betas": betas, "eps": self.eps, "fused": can_fuse(groups)}


@OPTIMIZERS.add("adam")
class Adam(_AdamOptions):
    """Adam (Kingma & Ba 2015)."""

    kind: Literal["adam"] = "adam"

    def build(self, groups: ParameterGroups) -> torch.optim.Optimizer:
        return torch.optim.Adam(**self._arguments(groups))


@OPTIMIZERS.add("adamw")
class AdamW(_AdamOptions):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"

    def build(self, groups: ParameterGroups) -> torch.optim.Optimizer:
        return torch.optim.AdamW(**self._arguments(groups))


def can_fuse(groups: ParameterGroups) -> bool | None:
    """Return True if torch's fused implementation supports all parameters, else None (torch's default)."""
    parameters = [p for group in groups for p in group["params"]]
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters) or None


def make_optimizer(
    model: nn.Module, options: OptimizerOptions, new: Collection[str] = ()
) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe over the trainable parameters of `model`.

    The schedule sets the learning rate at every step. Parameters named in `new` are not pretrained; their
    learning rate is head_lr / lr times as high (`lr_factor` of their parameter group).
    """
    decayed = decayed_parameters(model, options.decay_embeddings) if options.weight_decay else set()
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    head_factor = 1.0 if options.head_lr is None else options.head_lr / options.lr
    groups = [
        {
            "params": [p for name, p in trainable if (name in decayed) == decays and (name in new) == is_new],
            "weight_decay": options.weight_decay if decays else 0.0,
            "lr_factor": head_factor if is_new else 1.0,
        }
        for is_new in (False, True)
        for decays in (True, False)
    ]
    return options.build([group for group in groups if group["params"]])


def decayed_parameters(model: nn.Module, tables_too: bool = False) -> set[str]:
    """Return the names of the parameters with weight decay: the matrices of linear layers.

    Norms and biases are excluded as usual. Embedding tables are excluded because a row would shrink at every
    step that does not see its token, so that rare tokens fade. With `tables_too` they are included: a table
    that is also the output layer has a gradient in every row at every step, and without weight decay it grows
    where penalties keep the features small.
    """
    embeddings = [] if tables_too else [m for m in model.modules() if isinstance(m, nn.Embedding)]
    tables = {id(m.weight) for m in embeddings}
    return {
        name
        for name, p in model.named_parameters()
        if p.ndim >= 2 and id(p) not in tables and "position" not in name
    }


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"]


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale all gradients so that their total norm is at most `max_norm`; return the norm before scaling.

    The norm stays on the device, so that the host does not wait for it.
    """
    parameters = [p for p in parameters if p.grad is not None]
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    full_tensor = getattr(norm, "full_tensor", None)  # FSDP: the norm over the shards of all processes
    norm = norm if full_tensor is None else full_tensor()
    if max_norm is not None:
        clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
