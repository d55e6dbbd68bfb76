"""Checks of lesson 16."""

from regard.evaluation.training_cost import WMT_2014
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def training_flops(answer):
    require_close(float(answer(1, 1)), 6.0, "the cost of one weight and one token")
    require_close(float(answer(65_000_000, 50_000)), 1.95e13, "the cost of a step of the base model")
    return "six operations per weight and token"


@exercise
def undominated(answer):
    rows = {row.model: (row.bleu_de, row.flops_de) for row in WMT_2014 if row.bleu_de and row.flops_de}
    before = {name: row for name, row in rows.items() if "Transformer" not in name}
    cases = (
        (rows, {"Transformer (base model)", "Transformer (big)"}),
        (before, {"ConvS2S", "MoE", "ConvS2S Ensemble"}),
        ({"a": (20.0, 1e18), "b": (20.0, 1e18), "c": (20.0, 2e18)}, {"a", "b"}),
    )
    for models, expected in cases:
        got = set(answer(dict(models)))
        if got != expected:
            raise WrongAnswer(f"of {', '.join(models)} it keeps {sorted(got)}, expected {sorted(expected)}")
    return "it finds the models worth their cost, before the Transformer and after; equal models both stay"
