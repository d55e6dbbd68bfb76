"""Models: any encoder with any decoder makes a translator, a decoder alone a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.models import crf
    from regard.models.classifier import Classifier
    from regard.models.embedder import Embedder
    from regard.models.language_model import LanguageModel
    from regard.models.tagger import Tagger
    from regard.models.translator import Translator

_HOMES = {
    "Classifier": "classifier",
    "Embedder": "embedder",
    "LanguageModel": "language_model",
    "Tagger": "tagger",
    "Translator": "translator",
}
__all__ = ["Classifier", "Embedder", "LanguageModel", "Tagger", "Translator", "crf"]
__getattr__ = exported(__name__, _HOMES, ["crf"])
