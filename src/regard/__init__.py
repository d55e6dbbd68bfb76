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
from regard.attention.watching import Recorded, Seen, watch
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
from regard.evaluation.properties import PropertyResult, is_equivariant, is_separable
from regard.layers.cache import Cache, StaticCache
from regard.layers.convolution import Convolution
from regard.layers.multihead import MultiHead, SlicedMultiHead
from regard.layers.recurrent import Recurrence
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
    "PropertyResult",
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
    "align",
    "attend",
    "attention_maps",
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
    "Classification": "regard.pipelines.classify",
    "Classifier": "regard.models.classifier",
    "Embedder": "regard.models.embedder",
    "Ensemble": "regard.decoding.ensemble",
    "Hypothesis": "regard.decoding.strategy",
    "Index": "regard.search.index",
    "LanguageModel": "regard.models.language_model",
    "Recipe": "regard.recipe.loading",
    "Sample": "regard.decoding.sampling",
    "Tagger": "regard.models.tagger",
    "Tokenizer": "regard.data.tokenizer",
    "Translation": "regard.pipelines.translate",
    "Translator": "regard.models.translator",
    "align": "regard.pipelines.align",
    "build": "regard.recipe.loading",
    "classify": "regard.pipelines.classify",
    "embed": "regard.pipelines.embed",
    "fast": "regard.decoding.engine",
    "generate": "regard.pipelines.generate",
    "load": "regard.models.folder",
    "attention_maps": "regard.decoding.attention",
    "resume": "regard.training.trainer",
    "scores": "regard.evaluation.translation",
    "sentence_bleu": "regard.evaluation.bleu",
    "tag": "regard.pipelines.tag",
    "train": "regard.training.trainer",
    "translate": "regard.pipelines.translate",
}

if TYPE_CHECKING:
    from regard import huggingface
    from regard.data.batches import Batch
    from regard.data.tokenizer import Tokenizer
    from regard.decoding.attention import attention_maps
    from regard.decoding.engine import fast
    from regard.decoding.ensemble import Ensemble
    from regard.decoding.sampling import Sample
    from regard.decoding.search import Beam
    from regard.decoding.strategy import Hypothesis
    from regard.evaluation.bleu import sentence_bleu
    from regard.evaluation.translation import scores
    from regard.models.classifier import Classifier
    from regard.models.embedder import Embedder
    from regard.models.folder import load
    from regard.models.language_model import LanguageModel
    from regard.models.tagger import Tagger
    from regard.models.translator import Translator
    from regard.pipelines.align import align
    from regard.pipelines.classify import Classification, classify
    from regard.pipelines.embed import embed
    from regard.pipelines.generate import generate
    from regard.pipelines.tag import tag
    from regard.pipelines.translate import Translation, translate
    from regard.recipe.loading import Recipe, build
    from regard.search.index import Index
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
