"""Models: any encoder with any decoder makes a translator, a decoder alone a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.models import crf
    from regard.models.catalog import known_models
    from regard.models.classifier import Classifier, ClassifierEnsemble
    from regard.models.embedder import Embedder
    from regard.models.language_model import LanguageModel
    from regard.models.tagger import Tagger
    from regard.models.translator import Translator

_HOMES = {
    "Classifier": "classifier",
    "ClassifierEnsemble": "classifier",
    "Embedder": "embedder",
    "LanguageModel": "language_model",
    "Tagger": "tagger",
    "Translator": "translator",
    "known_models": "catalog",
}
__all__ = [
    "Classifier",
    "ClassifierEnsemble",
    "Embedder",
    "LanguageModel",
    "Tagger",
    "Translator",
    "crf",
    "known_models",
]
__getattr__ = exported(__name__, _HOMES, ["crf"])
