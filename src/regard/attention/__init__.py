"""The attention operator: energies, masks, biases, positions, normalisers, kernels and recorded calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.attention.bias import ALiBi, Bias, RelativeBuckets, RelativeVectors
    from regard.attention.diversity import HeadDiversity, head_diversity
    from regard.attention.edits import Edit, Mapped, Permuted, Pinned, Uniform, Weights, Zero
    from regard.attention.energy import Additive, Bilinear, Cosine, Distance, Dot, Energy, Match, ScaledDot
    from regard.attention.lookup import lookup_path
    from regard.attention.mask import Dense, Mask
    from regard.attention.normalize import Entmax, Hard, Normalizer, Raw, Sigmoid, Softmax, Sparsemax
    from regard.attention.packed import Packed
    from regard.attention.plan import Plan
    from regard.attention.position import Channel, Learned, Rotary, Sinusoidal
    from regard.attention.position_masks import Causal, Diagonal, Dilated, Documents, Padding, Prefix, Window
    from regard.attention.recorded import Recorded
    from regard.attention.watching import Seen

_HOMES = {
    "ALiBi": "bias",
    "Additive": "energy",
    "Bias": "bias",
    "Bilinear": "energy",
    "Causal": "position_masks",
    "Channel": "position",
    "Cosine": "energy",
    "Dense": "mask",
    "Diagonal": "position_masks",
    "Dilated": "position_masks",
    "Distance": "energy",
    "Documents": "position_masks",
    "Dot": "energy",
    "Edit": "edits",
    "Energy": "energy",
    "Entmax": "normalize",
    "Hard": "normalize",
    "HeadDiversity": "diversity",
    "Learned": "position",
    "Mapped": "edits",
    "Mask": "mask",
    "Match": "energy",
    "Normalizer": "normalize",
    "Packed": "packed",
    "Padding": "position_masks",
    "Permuted": "edits",
    "Pinned": "edits",
    "Plan": "plan",
    "Prefix": "position_masks",
    "Raw": "normalize",
    "Recorded": "recorded",
    "RelativeBuckets": "bias",
    "RelativeVectors": "bias",
    "Rotary": "position",
    "ScaledDot": "energy",
    "Seen": "watching",
    "Sigmoid": "normalize",
    "Sinusoidal": "position",
    "Softmax": "normalize",
    "Sparsemax": "normalize",
    "Uniform": "edits",
    "Weights": "edits",
    "Window": "position_masks",
    "Zero": "edits",
    "head_diversity": "diversity",
    "lookup_path": "lookup",
}
__all__ = [
    "ALiBi",
    "Additive",
    "Bias",
    "Bilinear",
    "Causal",
    "Channel",
    "Cosine",
    "Dense",
    "Diagonal",
    "Dilated",
    "Distance",
    "Documents",
    "Dot",
    "Edit",
    "Energy",
    "Entmax",
    "Hard",
    "HeadDiversity",
    "Learned",
    "Mapped",
    "Mask",
    "Match",
    "Normalizer",
    "Packed",
    "Padding",
    "Permuted",
    "Pinned",
    "Plan",
    "Prefix",
    "Raw",
    "Recorded",
    "RelativeBuckets",
    "RelativeVectors",
    "Rotary",
    "ScaledDot",
    "Seen",
    "Sigmoid",
    "Sinusoidal",
    "Softmax",
    "Sparsemax",
    "Uniform",
    "Weights",
    "Window",
    "Zero",
    "head_diversity",
    "lookup_path",
]
__getattr__ = exported(__name__, _HOMES)
