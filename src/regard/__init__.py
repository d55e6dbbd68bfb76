"""regard: attention, end to end."""

from regard.attention.attend import attend, explain, weights
from regard.attention.energy import Additive, Bilinear, Cosine, Distance, Dot, Energy, Match, ScaledDot
from regard.attention.lookup import lookup
from regard.attention.mask import Causal, Dense, Diagonal, Dilated, Documents, Mask, Padding, Prefix, Window
from regard.attention.normalize import Entmax, Hard, Normalizer, Raw, Sigmoid, Softmax, Sparsemax
from regard.attention.plan import Plan
from regard.attention.position import (
    ALiBi,
    Bias,
    Channel,
    Learned,
    RelativeBuckets,
    RelativeVectors,
    Rotary,
    Sinusoidal,
)
from regard.attention.trace import Recorded, Seen, watch
from regard.errors import DeviceError, DtypeError, KernelError, OptionError, RegardError, ShapeError
from regard.evaluation.cost import Cost, cost
from regard.evaluation.properties import Finding, is_equivariant, is_separable
from regard.layers.cache import Cache
from regard.layers.convolution import Convolution
from regard.layers.multihead import MultiHead, SlicedMultiHead
from regard.layers.recurrence import Recurrence

__version__ = "0.1.0"
__all__ = [
    "ALiBi",
    "Additive",
    "Bias",
    "Bilinear",
    "Cache",
    "Causal",
    "Channel",
    "Convolution",
    "Cosine",
    "Cost",
    "Dense",
    "DeviceError",
    "Diagonal",
    "Dilated",
    "Distance",
    "Documents",
    "Dot",
    "DtypeError",
    "Energy",
    "Entmax",
    "Finding",
    "Hard",
    "KernelError",
    "Learned",
    "Mask",
    "Match",
    "MultiHead",
    "Normalizer",
    "OptionError",
    "Padding",
    "Plan",
    "Prefix",
    "Raw",
    "Recorded",
    "Recurrence",
    "RegardError",
    "RelativeBuckets",
    "RelativeVectors",
    "Rotary",
    "ScaledDot",
    "Seen",
    "ShapeError",
    "Sigmoid",
    "Sinusoidal",
    "SlicedMultiHead",
    "Softmax",
    "Sparsemax",
    "Window",
    "attend",
    "cost",
    "explain",
    "is_equivariant",
    "is_separable",
    "lookup",
    "watch",
    "weights",
]
