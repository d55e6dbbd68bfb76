"""Run, train and see attention models.

Look at attention (`watch`), change it (`attend` with another energy, mask or normaliser; `explain` says
what runs), and use the models trained with it (`train`, `translate`, `classify`, …). The names here are
those typed most often; each subpackage (`regard.attention`, `regard.layers`, `regard.evaluation`, …) lists
the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.attention.attend import attend, explain, weights
from regard.attention.bias import ALiBi
from regard.attention.energy import Additive, Bilinear, ScaledDot
from regard.attention.intervening import intervene
from regard.attention.lookup import lookup
from regard.attention.normalize import Softmax, Sparsemax
from regard.attention.position import Rotary, Sinusoidal
from regard.attention.position_masks import Causal, Padding, Window
from regard.attention.watching import watch
from regard.errors import RegardError
from regard.layers.kv_cache import Cache
from regard.layers.multihead import MultiHead
from regard.lazy import exported
from regard.version import __version__ as __version__

if TYPE_CHECKING:
    from regard import attention as attention
    from regard import conformance as conformance
    from regard import data as data
    from regard import decoding as decoding
    from regard import diagrams as diagrams
    from regard import errors as errors
    from regard import evaluation as evaluation
    from regard import huggingface as huggingface
    from regard import interactions as interactions
    from regard import interchange as interchange
    from regard import layers as layers
    from regard import lessons as lessons
    from regard import models as models
    from regard import optimization as optimization
    from regard import pictures as pictures
    from regard import pipelines as pipelines
    from regard import recipe as recipe
    from regard import search as search
    from regard import tasks as tasks
    from regard.data.tokenizer import Tokenizer
    from regard.decoding.beam import Beam
    from regard.decoding.constraints import Constraints
    from regard.decoding.engine import fast
    from regard.decoding.ensemble import Ensemble
    from regard.decoding.limits import Limits
    from regard.decoding.sampling import Sample
    from regard.diagrams.drawing import draw
    from regard.models.folder import load
    from regard.pipelines.align import align
    from regard.pipelines.classify import classify
    from regard.pipelines.embed import embed
    from regard.pipelines.generate import generate
    from regard.pipelines.tag import tag
    from regard.pipelines.translate import translate
    from regard.recipe.loading import Recipe, build
    from regard.training.trainer import resume, train

__all__ = [
    "ALiBi",
    "Additive",
    "Beam",
    "Bilinear",
    "Cache",
    "Causal",
    "Constraints",
    "Ensemble",
    "Limits",
    "MultiHead",
    "Padding",
    "Recipe",
    "RegardError",
    "Rotary",
    "Sample",
    "ScaledDot",
    "Sinusoidal",
    "Softmax",
    "Sparsemax",
    "Tokenizer",
    "Window",
    "align",
    "attend",
    "build",
    "classify",
    "draw",
    "embed",
    "explain",
    "fast",
    "generate",
    "huggingface",
    "intervene",
    "load",
    "lookup",
    "resume",
    "tag",
    "train",
    "translate",
    "watch",
    "weights",
]

# Imported on first use, so that `import regard` needs torch alone.
_HOMES = {
    "Beam": "decoding.beam",
    "Constraints": "decoding.constraints",
    "Ensemble": "decoding.ensemble",
    "Limits": "decoding.limits",
    "Recipe": "recipe.loading",
    "Sample": "decoding.sampling",
    "Tokenizer": "data.tokenizer",
    "align": "pipelines.align",
    "build": "recipe.loading",
    "classify": "pipelines.classify",
    "draw": "diagrams.drawing",
    "embed": "pipelines.embed",
    "fast": "decoding.engine",
    "generate": "pipelines.generate",
    "load": "models.folder",
    "resume": "training.trainer",
    "tag": "pipelines.tag",
    "train": "training.trainer",
    "translate": "pipelines.translate",
}
_SUBPACKAGES = [
    "attention",
    "conformance",
    "data",
    "decoding",
    "diagrams",
    "errors",
    "evaluation",
    "huggingface",
    "interactions",
    "interchange",
    "layers",
    "lessons",
    "models",
    "optimization",
    "pictures",
    "pipelines",
    "recipe",
    "search",
    "tasks",
]
__getattr__ = exported(__name__, _HOMES, _SUBPACKAGES)


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
