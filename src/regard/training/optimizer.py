"""Adam and AdamW, one pass over the weights per step where torch has it, and clipping by the norm of all gradients together.

Weight decay is for the matrices of linear maps only. Norms and biases have nothing to be kept small, and an embedding
table's row would shrink at every step that does not see its word, so that rare words fade.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from regard.recipe.schema import Optimizer as Settings


def decayed(model: nn.Module) -> set[str]:
    """The names of the parameters that weight decay is for."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return {
        name
        for name, p in model.named_parameters()
        if p.ndim >= 2 and id(p) not in tables and "position" not in name
    }


def make(model: nn.Module, settings: Settings, new: Collection[str] = ()) -> torch.optim.Adam:
    """The optimizer of a recipe over the parameters that learn. The rate is set at every step, by the schedule; that of `new`
    parameters, which are not pretrained, is head_lr / lr times as high.
    """
    names = decayed(model) if settings.weight_decay else set()
    learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    head = 1.0 if settings.head_lr is None else settings.head_lr / settings.lr
    groups = [
        {
            "params": [p for name, p in learning if (name in names) == decays and (name in new) == is_new],
            "weight_decay": settings.weight_decay if decays else 0.0,
            "factor": head if is_new else 1.0,
        }
        for is_new in (False, True)
        for decays in (True, False)
    ]
    kind = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    betas = (settings.betas[0], settings.betas[1])
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for _, p in learning)
    return kind(
        [g for g in groups if g["params"]], lr=settings.lr, betas=betas, eps=settings.eps, fused=fused or None
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


@torch.no_grad()
def clip(parameters: Iterable[Tensor], longest: float | None) -> Tensor:
    """Scale all gradients so that their joint norm is at most `longest`; the norm they had, on their device (no waiting)."""
    parameters = [p for p in parameters if p.grad is not None]
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    full = getattr(
        norm, "full_tensor", None
    )  # of parts that are spread over processes: the norm of the whole
    norm = norm if full is None else full()
    if longest is not None:
        clip_grads_with_norm_(parameters, longest, norm)
    return norm
