"""Tests of trust_readings.py: the values of chance, the sentence of each figure, the verdict."""

import math

import pytest
import torch

from regard.evaluation.explanation.erasure import SHARES, erasure, erasures, mean_defined
from regard.evaluation.explanation.explained_models import explained_model
from regard.evaluation.explanation.probe import Probe
from regard.explorer.trust_readings import RANDOM_ORDERS, RANKINGS, Chance, chance_limit, readings, verdict
from regard.models.folder import load
from tests.decoding import model_folders
from tests.explorer import toy

CHANCE = Chance(12, [0.0, 0.1, 0.2], [0.3, 0.4, 0.5])
FIGURES = {
    "tau_gradient": 0.1, "tau_leave_one_out": 0.8, "change_uniform": 0.01, "change_permuted": 0.7,
    "comprehensiveness": 0.5, "sufficiency": 0.4,
}  # fmt: skip


def test_chance_is_the_95_percent_bound_of_unrelated_rankings():
    generator = torch.Generator().manual_seed(1)
    order = torch.rand(4000, 12, generator=generator).argsort(-1).double()
    sign = torch.sign(order[:, :, None] - order[:, None, :])
    fixed = torch.sign(torch.arange(12.0)[:, None] - torch.arange(12.0)[None, :])
    tau = (sign * fixed).sum((1, 2)) / (12 * 11)
    assert float((tau.abs() > chance_limit(12)).double().mean()) == pytest.approx(0.05, abs=0.015)
    assert chance_limit(2) == 1.0


def test_the_sentences_follow_the_figures():
    texts = {reading["name"]: reading["reading"] for reading in readings(FIGURES, CHANCE, "Hund")}
    assert "chance" in texts["tau_gradient"] and "agree no more" in texts["tau_gradient"]
    assert "also count more" in texts["tau_leave_one_out"]
    assert "hardly" in texts["change_uniform"] and "a lot" in texts["change_permuted"]
    assert "attention finds tokens that count" in texts["comprehensiveness"]
    assert "no more than others" in texts["sufficiency"]
    undefined = readings({**FIGURES, "tau_gradient": math.nan}, CHANCE, "Hund")[0]
    assert undefined["value"] is None and undefined["reading"].startswith("Not defined")
    reverse = readings({**FIGURES, "tau_gradient": -0.9}, CHANCE, "Hund")[0]
    assert "count less" in reverse["reading"]
    rises = readings({**FIGURES, "sufficiency": -0.2}, CHANCE, "Hund")[5]
    assert "rises by 0.20" in rises["reading"] and "say more than others" in rises["reading"]


def test_every_figure_has_the_band_that_chance_gives():
    shown = {figure["name"]: figure for figure in readings(FIGURES, CHANCE, "Hund")}
    assert shown["tau_gradient"]["band"] == (-chance_limit(12), chance_limit(12))
    assert shown["change_uniform"]["band"] == (0, 0.1)
    # Mean ± 1.96 standard deviations of the random orders, and a margin of 0.02.
    half = 1.96 * math.sqrt(0.02 / 3) + 0.02
    assert shown["comprehensiveness"]["band"] == pytest.approx((0.1 - half, 0.1 + half))
    assert shown["sufficiency"]["band"] == pytest.approx((0.4 - half, 0.4 + half))
    beyond = {name: figure["beyond"] for name, figure in shown.items()}
    assert beyond == {
        "tau_gradient": False, "tau_leave_one_out": True, "change_uniform": False, "change_permuted": True,
        "comprehensiveness": True, "sufficiency": False,
    }  # fmt: skip
    unknown = readings(FIGURES, Chance(1, [math.nan], [math.nan]), "Hund")
    assert [figure["beyond"] for figure in unknown[4:]] == [None, None] and unknown[4]["band"] is None


def test_random_orders_are_erased_as_one_by_one(tmp_path):
    model = load(model_folders.classifier(tmp_path, encoder=toy.ENCODER))
    probe = Probe(explained_model(model), "good film bad film good")
    orders = list(torch.rand(4, probe.count, generator=torch.Generator().manual_seed(1)))
    for together, scores in zip(erasures(probe, orders), orders, strict=True):
        alone = erasure(probe, scores)
        assert together.comprehensiveness == pytest.approx(alone.comprehensiveness, abs=1e-6)
        assert together.sufficiency == pytest.approx(alone.sufficiency, abs=1e-6, nan_ok=True)
    chance = Chance.of(probe, SHARES)
    assert len(chance.comprehensiveness) == RANDOM_ORDERS and chance == Chance.of(probe, SHARES)
    values = [mean_defined(e.comprehensiveness) for e in erasures(probe, orders)]
    assert min(chance.comprehensiveness) <= sum(values) / 4 <= max(chance.comprehensiveness)


STRONG = {"tau_gradient": 0.9, "comprehensiveness": 0.5, "sufficiency": 0.0}


@pytest.mark.parametrize(
    ("changes", "grade", "reason"),
    [
        (STRONG, "good", "count by gradient × input, leave-one-out, comprehensiveness and sufficiency"),
        ({**STRONG, "tau_gradient": 0.1}, "good", "but not by gradient × input"),
        ({}, "partial", "leave-one-out and comprehensiveness, but not by gradient × input and sufficiency"),
        ({"tau_leave_one_out": 0.1}, "weak", "but not by gradient × input, leave-one-out and sufficiency"),
        ({"tau_leave_one_out": 0.1, "comprehensiveness": 0.1}, "weak", "no more than by chance"),
        ({**STRONG, "change_permuted": 0.05}, "weak", "the output hardly changes"),
        (dict.fromkeys(RANKINGS, math.nan), "none", "not defined"),
    ],
)  # fmt: skip
def test_the_verdict_follows_from_the_figures_by_the_rule_of_the_docs(changes, grade, reason):
    found = verdict(readings({**FIGURES, **changes}, CHANCE, "Hund"), "Hund")
    assert found["grade"] == grade and reason in found["reason"]
    assert "“Hund”" in found["claim"] and (grade == "none" or f"a {grade} explanation" in found["claim"])


def test_close_calls_are_marked_and_named_in_the_verdict():
    limit = chance_limit(12)
    figures = {**FIGURES, **STRONG, "tau_gradient": limit + 0.03, "tau_leave_one_out": limit - 0.03}
    shown = readings(figures, CHANCE, "Hund")
    assert [figure["mark"] for figure in shown] == [
        "just above chance", "just within chance", "too little to count", "enough to count", "above chance",
        "below chance",
    ]  # fmt: skip
    found = verdict(shown, "Hund")
    assert found["claim"] == "This attention is a good explanation of “Hund”, but it is a close call"
    assert found["reason"].startswith("4 of 6 figures speak for it, 1 of them only just; ")
    clear = verdict(readings({**FIGURES, **STRONG}, CHANCE, "Hund"), "Hund")
    assert "close call" not in clear["claim"] and "only just" not in clear["reason"]
    below = readings({**FIGURES, "tau_gradient": -0.9, "sufficiency": 0.95}, CHANCE, "Hund")
    assert [below[i]["mark"] for i in (0, 5)] == ["below chance", "above chance"]
    undefined = readings({**FIGURES, "tau_gradient": math.nan}, CHANCE, "Hund")[0]
    assert undefined["mark"] == "" and undefined["beyond"] is None


def test_the_sentences_name_the_mean_and_the_limit_of_random_tokens():
    half = 1.96 * math.sqrt(0.02 / 3) + 0.02
    removed, kept = (figure["reading"] for figure in readings(FIGURES, CHANCE, "Hund")[4:])
    assert (
        f"Without random tokens it falls by 0.10 on average, rarely by more than {0.1 + half:.2f}" in removed
    )
    assert (
        f"With random tokens alone it falls by 0.40 on average, rarely by less than {0.4 - half:.2f}" in kept
    )
