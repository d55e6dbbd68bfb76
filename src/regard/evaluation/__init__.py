"""Metrics of models (BLEU, perplexity, F1, retrieval, calibration) and costs and properties of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.evaluation import by_length, classification, training_cost
    from regard.evaluation.bleu import brevity_penalty, ngrams, precision
    from regard.evaluation.by_length import bleu_by_length
    from regard.evaluation.perplexity import LanguageScores, count_text
    from regard.evaluation.tagging import tagging_scores
    from regard.evaluation.training_cost import RATES, TrainingCost, estimated_flops
    from regard.evaluation.translation import corpus_bleu

__all__ = [
    "RATES",
    "LanguageScores",
    "TrainingCost",
    "bleu_by_length",
    "brevity_penalty",
    "by_length",
    "classification",
    "corpus_bleu",
    "count_text",
    "estimated_flops",
    "ngrams",
    "precision",
    "tagging_scores",
    "training_cost",
]
__getattr__ = exported(
    __name__,
    {
        "LanguageScores": "perplexity",
        "RATES": "training_cost",
        "TrainingCost": "training_cost",
        "brevity_penalty": "bleu",
        "bleu_by_length": "by_length",
        "corpus_bleu": "translation",
        "count_text": "perplexity",
        "ngrams": "bleu",
        "precision": "bleu",
        "estimated_flops": "training_cost",
        "tagging_scores": "tagging",
    },
)
