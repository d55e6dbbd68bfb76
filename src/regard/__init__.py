"""regard: attention, end to end."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from regard.attention.attend import attend, explain, weights
from regard.attention.bias import ALiBi, Bias, RelativeBuckets, RelativeVectors
from regard.attention.energy import Additive, Bilinear, Cosine, Distance, Dot, Energy, Match, ScaledDot
from regard.attention.lookup import lookup
from regard.attention.mask import Dense, Mask
from regard.attention.normalize import Entmax, Hard, Normalizer, Raw, Sigmoid, Softmax, Sparsemax
from regard.attention.packed import Packed
from regard.attention.plan import Plan
from regard.attention.position import Channel, Learned, Rotary, Sinusoidal
from regard.attention.position_masks import Causal, Diagonal, Dilated, Documents, Padding, Prefix, Window
from regard.attention.trace import Recorded, Seen, watch
from regard.errors import (
    DataError,
    DeviceError,
    DtypeError,
    FolderError,
    KernelError,
    OptionError,
    RecipeError,
    RegardError,
    ShapeError,
)
from regard.evaluation.cost import Cost, cost
from regard.evaluation.properties import Finding, is_equivariant, is_separable
from regard.layers.cache import Cache, StaticCache
from regard.layers.convolution import Convolution
from regard.layers.multihead import MultiHead, SlicedMultiHead
from regard.layers.recurrence import Recurrence
from regard.version import __version__ as __version__

__all__ = [
    "ALiBi",
    "Additive",
    "Batch",
    "Beam",
    "Bias",
    "Bilinear",
    "Cache",
    "Causal",
    "Channel",
    "Classification",
    "Classifier",
    "Convolution",
    "Cosine",
    "Cost",
    "DataError",
    "Dense",
    "DeviceError",
    "Diagonal",
    "Dilated",
    "Distance",
    "Documents",
    "Dot",
    "DtypeError",
    "Embedder",
    "Energy",
    "Ensemble",
    "Entmax",
    "Finding",
    "FolderError",
    "Hard",
    "Hypothesis",
    "Index",
    "KernelError",
    "LanguageModel",
    "Learned",
    "Mask",
    "Match",
    "MultiHead",
    "Normalizer",
    "OptionError",
    "Packed",
    "Padding",
    "Plan",
    "Prefix",
    "Raw",
    "Recipe",
    "RecipeError",
    "Recorded",
    "Recurrence",
    "RegardError",
    "RelativeBuckets",
    "RelativeVectors",
    "Rotary",
    "Sample",
    "ScaledDot",
    "Seen",
    "ShapeError",
    "Sigmoid",
    "Sinusoidal",
    "SlicedMultiHead",
    "Softmax",
    "Sparsemax",
    "StaticCache",
    "Tagger",
    "Tokenizer",
    "Translation",
    "Translator",
    "Window",
    "attend",
    "build",
    "classify",
    "cost",
    "embed",
    "explain",
    "fast",
    "generate",
    "huggingface",
    "is_equivariant",
    "is_separable",
    "load",
    "look",
    "lookup",
    "resume",
    "scores",
    "sentence_bleu",
    "tag",
    "train",
    "translate",
    "watch",
    "weights",
]

# Loaded when first asked for, so that `import regard` needs torch alone.
_LATER = {
    "Batch": "regard.data.batches",
    "Beam": "regard.decoding.search",
    "Classification": "regard.decoding.classify",
    "Classifier": "regard.models.classifier",
    "Embedder": "regard.models.embedder",
    "Ensemble": "regard.decoding.ensemble",
    "Hypothesis": "regard.decoding.strategy",
    "Index": "regard.searching.index",
    "LanguageModel": "regard.models.language",
    "Recipe": "regard.training.recipe",
    "Sample": "regard.decoding.sample",
    "Tagger": "regard.models.tagger",
    "Tokenizer": "regard.data.tokenizer",
    "Translation": "regard.decoding.translate",
    "Translator": "regard.models.translator",
    "build": "regard.training.recipe",
    "classify": "regard.decoding.classify",
    "embed": "regard.decoding.embed",
    "fast": "regard.decoding.engine",
    "generate": "regard.decoding.generate",
    "load": "regard.models.folder",
    "look": "regard.decoding.attention",
    "resume": "regard.training.trainer",
    "scores": "regard.evaluation.text",
    "sentence_bleu": "regard.evaluation.bleu",
    "tag": "regard.decoding.tagging",
    "train": "regard.training.trainer",
    "translate": "regard.decoding.translate",
}

if TYPE_CHECKING:
    from regard import huggingface
    from regard.data.batches import Batch
    from regard.data.tokenizer import Tokenizer
    from regard.decoding.attention import look
    from regard.decoding.classify import Classification, classify
    from regard.decoding.embed import embed
    from regard.decoding.engine import fast
    from regard.decoding.ensemble import Ensemble
    from regard.decoding.generate import generate
    from regard.decoding.sample import Sample
    from regard.decoding.search import Beam
    from regard.decoding.strategy import Hypothesis
    from regard.decoding.tagging import tag
    from regard.decoding.translate import Translation, translate
    from regard.evaluation.bleu import sentence_bleu
    from regard.evaluation.text import scores
    from regard.models.classifier import Classifier
    from regard.models.embedder import Embedder
    from regard.models.folder import load
    from regard.models.language import LanguageModel
    from regard.models.tagger import Tagger
    from regard.models.translator import Translator
    from regard.searching.index import Index
    from regard.training.recipe import Recipe, build
    from regard.training.trainer import resume, train


def __getattr__(name: str) -> object:
    if name == "huggingface":
        return import_module("regard.huggingface")
    if name not in _LATER:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    found = getattr(import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
