"""Metrics of models (BLEU, perplexity, F1, retrieval, calibration), faithfulness of attention, costs and
properties of layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.evaluation import by_length, classification, training_cost
    from regard.evaluation.alignment_choice import choose_alignment, layer_weights, view_agreement
    from regard.evaluation.bias_probes import BiasProbe, bias_probe
    from regard.evaluation.bleu import brevity_penalty, ngrams, precision, sentence_bleu
    from regard.evaluation.by_length import bleu_by_length
    from regard.evaluation.explanation.diagnostic_mlp import diagnostic_mlp
    from regard.evaluation.explanation.faithfulness import FaithfulnessResult, faithfulness
    from regard.evaluation.explanation.measures import MEASURES, MeasureOptions
    from regard.evaluation.explanation.seed_variance import seed_variance
    from regard.evaluation.layer_cost import Cost, cost
    from regard.evaluation.layer_time import LayerTime, TimesByLength, time_by_length
    from regard.evaluation.perplexity import LanguageScores, count_text
    from regard.evaluation.properties import PropertyResult, is_equivariant, is_separable
    from regard.evaluation.significance import (
        Comparison,
        Draws,
        MetricComparison,
        compare_labels,
        compare_statistics,
        compare_tags,
        compare_translations,
    )
    from regard.evaluation.tagging import tagging_scores
    from regard.evaluation.training_cost import RATES, TrainingCost, estimated_flops
    from regard.evaluation.translation import corpus_bleu, translation_scores

__all__ = [
    "MEASURES",
    "RATES",
    "BiasProbe",
    "Comparison",
    "Cost",
    "Draws",
    "FaithfulnessResult",
    "LanguageScores",
    "LayerTime",
    "MeasureOptions",
    "MetricComparison",
    "PropertyResult",
    "TimesByLength",
    "TrainingCost",
    "bias_probe",
    "bleu_by_length",
    "brevity_penalty",
    "by_length",
    "choose_alignment",
    "classification",
    "compare_labels",
    "compare_statistics",
    "compare_tags",
    "compare_translations",
    "corpus_bleu",
    "cost",
    "count_text",
    "diagnostic_mlp",
    "estimated_flops",
    "faithfulness",
    "is_equivariant",
    "is_separable",
    "layer_weights",
    "ngrams",
    "precision",
    "seed_variance",
    "sentence_bleu",
    "tagging_scores",
    "time_by_length",
    "training_cost",
    "translation_scores",
    "view_agreement",
]
__getattr__ = exported(
    __name__,
    {
        "BiasProbe": "bias_probes",
        "choose_alignment": "alignment_choice",
        "layer_weights": "alignment_choice",
        "view_agreement": "alignment_choice",
        "bias_probe": "bias_probes",
        "Comparison": "significance",
        "Draws": "significance",
        "MetricComparison": "significance",
        "compare_labels": "significance",
        "compare_statistics": "significance",
        "compare_tags": "significance",
        "compare_translations": "significance",
        "Cost": "layer_cost",
        "LayerTime": "layer_time",
        "TimesByLength": "layer_time",
        "time_by_length": "layer_time",
        "FaithfulnessResult": "explanation.faithfulness",
        "MEASURES": "explanation.measures",
        "MeasureOptions": "explanation.measures",
        "diagnostic_mlp": "explanation.diagnostic_mlp",
        "faithfulness": "explanation.faithfulness",
        "seed_variance": "explanation.seed_variance",
        "cost": "layer_cost",
        "PropertyResult": "properties",
        "is_equivariant": "properties",
        "is_separable": "properties",
        "translation_scores": "translation",
        "sentence_bleu": "bleu",
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
    ["by_length", "classification", "training_cost"],
)
