"""What can be said of a layer or a model by measuring it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.evaluation import bleu_by_length, classification, training_cost
    from regard.evaluation.bleu import brevity, ngrams, precision
    from regard.evaluation.bleu_by_length import by_length
    from regard.evaluation.perplexity import LanguageScores, measure
    from regard.evaluation.tagging import tagging_scores
    from regard.evaluation.training_cost import RATES, TrainingCost, sustained
    from regard.evaluation.translation import corpus_bleu

__all__ = [
    "RATES",
    "LanguageScores",
    "TrainingCost",
    "bleu_by_length",
    "brevity",
    "by_length",
    "classification",
    "corpus_bleu",
    "measure",
    "ngrams",
    "precision",
    "sustained",
    "tagging_scores",
    "training_cost",
]
__getattr__ = exported(
    __name__,
    {
        "LanguageScores": "perplexity",
        "RATES": "training_cost",
        "TrainingCost": "training_cost",
        "brevity": "bleu",
        "by_length": "bleu_by_length",
        "corpus_bleu": "translation",
        "measure": "perplexity",
        "ngrams": "bleu",
        "precision": "bleu",
        "sustained": "training_cost",
        "tagging_scores": "tagging",
    },
)
