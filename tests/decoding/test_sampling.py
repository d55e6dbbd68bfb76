"""Tests of sampling.py: samples follow the truncated distribution and depend on seed and text only."""

from collections import Counter

import numpy as np
import pytest
import torch

from regard.decoding.constraints import TokenConstraints
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.errors import OptionError
from regard.pipelines.translate import translate_tokens
from tests.decoding.enumeration import SOURCE, all_outputs, tiny
from tests.models.small import DECODERS, ENCODERS, make

SENTENCES = [[5], [4, 9, 7, 6, 12, 9], [8, 8, 11], [17, 5, 4, 9, 18, 10, 7, 7, 16]]


def sampled(model, sample, sentences=(SOURCE,), **options):
    return [
        [((*h.tokens,), h.ended) for h in texts]
        for texts in translate_tokens(model, sentences, strategy=sample, **options)
    ]


def chi_square_deviation(counts, p):
    """Pearson's chi-square statistic as a z-score; rare outputs are merged until a cell expects 5."""
    assert counts.keys() <= p.keys()  # only possible outputs are sampled
    n, cells, observed, expected = sum(counts.values()), [], 0, 0.0
    for text in sorted(p, key=p.__getitem__):
        observed, expected = observed + counts[text], expected + n * p[text]
        if expected >= 5:
            cells.append((observed, expected))
            observed, expected = 0, 0.0
    if expected:  # merge a cell that expects too few
        last = cells.pop()
        cells.append((last[0] + observed, last[1] + expected))
    degrees_of_freedom = len(cells) - 1
    return (
        sum((observed - expected) ** 2 / expected for observed, expected in cells) - degrees_of_freedom
    ) / (2 * degrees_of_freedom) ** 0.5


def test_the_chi_square_measure_handles_common_and_impossible_outputs():
    """Regression: with no rare output, the merged cell was 0/0."""
    p = {"a": 0.5, "b": 0.25, "c": 0.25}
    assert chi_square_deviation(Counter(a=500, b=250, c=250), p) == pytest.approx(-1)
    assert chi_square_deviation(Counter(a=400, b=300, c=300), p) > 10
    assert chi_square_deviation(
        Counter(a=500, b=500), {"a": 0.5, "b": 0.5 - 1e-12, "c": 1e-12}
    ) == pytest.approx(-(2**-0.5))
    with pytest.raises(AssertionError):
        chi_square_deviation(Counter(a=500, d=500), p)


@pytest.mark.parametrize("decoder", ["bahdanau", "transformer"])
def test_samples_have_the_frequencies_of_the_model(decoder):
    model, count = tiny(decoder), 3000
    p = {text: np.exp(log_p) for text, log_p in all_outputs(model, 3).items()}
    assert sum(p.values()) == pytest.approx(1)
    assert (
        abs(
            chi_square_deviation(
                Counter(sampled(model, Sample(count=count, seed=1), limits=Limits(max_length=3))[0]), p
            )
        )
        < 4
    )
    wrong = {text: x**0.5 / sum(y**0.5 for y in p.values()) for text, x in p.items()}  # the check can fail
    assert (
        chi_square_deviation(
            Counter(sampled(model, Sample(count=count, seed=1), limits=Limits(max_length=3))[0]), wrong
        )
        > 10
    )


@pytest.mark.parametrize(
    "options",
    [
        dict(temperature=0.5),
        dict(temperature=2.0),
        dict(top_k=2),
        dict(top_p=0.6),
        dict(min_p=0.5),
        dict(top_k=3, top_p=0.7),
    ],
)
def test_truncation_keeps_the_probabilities_of_the_definition(options):
    log_p = torch.log_softmax(torch.tensor([2.0, -1.0, 1.5, 0.0, 0.5, -3.0], dtype=torch.float64), -1)
    p = (log_p / options.get("temperature", 1.0)).softmax(-1)
    kept = torch.zeros(6, dtype=torch.bool)
    order = p.argsort(descending=True)
    order = order[: options.get("top_k") or 6]
    p = torch.where(torch.isin(torch.arange(6), order), p, 0) / p[order].sum()
    for token in order.tolist():  # until their probability reaches top_p
        if p[kept].sum() < options.get("top_p", 1.0) and p[token] >= options.get("min_p", 0) * p.max():
            kept[token] = True
    p = torch.where(kept, p, 0) / p[kept].sum()
    sample, n = Sample(**options), 100_000
    uniform = (torch.arange(n) + 0.5) / n
    if sample.top_k:
        best, tokens = log_p.topk(sample.top_k)
        result = tokens[sample.sample(best.expand(n, -1), uniform.double())]
    else:
        result = sample.sample(log_p.expand(n, -1), uniform.double())
    assert torch.bincount(result, minlength=6).double() / n == pytest.approx(p, abs=2e-5)


@pytest.mark.parametrize(
    "sample",
    [Sample(count=3, seed=5), Sample(count=2, top_k=4, seed=5), Sample(top_p=0.8, min_p=0.05, seed=5)],
)
@pytest.mark.parametrize("decoder", DECODERS)
def test_samples_do_not_depend_on_the_batch(decoder, sample):
    model = make(ENCODERS["gru"], DECODERS[decoder]).eval()
    alone = [sampled(model, sample, [sentence])[0] for sentence in SENTENCES]
    assert sampled(model, sample, SENTENCES) == alone
    assert sampled(model, sample, SENTENCES[::-1], limits=Limits(workers=2))[::-1] == alone
    assert sampled(model, sample, SENTENCES, limits=Limits(batch_tokens=20)) == alone


def test_a_larger_count_keeps_the_first_samples():
    model = tiny()
    assert sampled(model, Sample(count=2, seed=3))[0] == sampled(model, Sample(count=6, seed=3))[0][:2]


def test_seeds_determine_samples_and_none_draws_a_seed():
    model = tiny()
    assert (
        sampled(model, Sample(count=5, seed=1))
        == sampled(model, Sample(count=5, seed=1))
        != sampled(model, Sample(count=5, seed=2))
    )
    fresh = Sample(count=5)
    assert fresh.seed is not None and fresh.seed != Sample(count=5).seed
    assert sampled(model, fresh) == sampled(model, Sample(count=5, seed=fresh.seed))


def test_log_p_is_that_of_the_model_at_any_temperature():
    model = tiny()
    log_p = all_outputs(model, 4)
    for h in translate_tokens(
        model,
        [SOURCE],
        strategy=Sample(temperature=3.0, top_p=0.9, count=4, seed=0),
        limits=Limits(max_length=4),
    )[0]:
        assert h.log_p == pytest.approx(log_p[(*h.tokens,), h.ended], abs=1e-9)


def test_a_low_temperature_is_greedy():
    model = tiny()
    greedy = translate_tokens(model, [SOURCE])[0][0]
    for sample in (
        Sample(temperature=1e-4, seed=1),
        Sample(top_k=1, seed=1),
        Sample(top_p=1e-9, seed=1),
        Sample(min_p=1.0, seed=1),
    ):
        assert translate_tokens(model, [SOURCE], strategy=sample)[0][0].tokens == greedy.tokens


def test_samples_satisfy_constraints():
    result = sampled(
        tiny(),
        Sample(count=40, seed=0, top_k=3),
        constraints=TokenConstraints(min_length=2, forbidden=((4,),)),
        limits=Limits(max_length=5),
    )[0]
    assert all(4 not in text and len(text) >= 2 for text, _ in result)


@pytest.mark.parametrize(
    "sample", [Sample(seed=1), Sample(seed=1, top_p=0.9), Sample(seed=1, top_k=3), Sample(seed=1, min_p=0.1)]
)
def test_constraints_that_forbid_every_token_are_an_error(sample):
    constraints = TokenConstraints(min_length=300, no_repeat=1)
    with pytest.raises(OptionError, match="no output of at most 300 tokens satisfies the constraints"):
        sampled(tiny(), sample, constraints=constraints, limits=Limits(max_length=300))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(temperature=0),
            "temperature must be a finite number of at least 0.0001 and at most 100, got 0",
        ),
        (
            dict(temperature=5e-324),
            "temperature must be a finite number of at least 0.0001 and at most 100, got 5e-324",
        ),
        (dict(top_k=-1), "top_k must be an integer of at least 0, got -1"),
        (dict(top_p=1.5), "top_p must be a finite number of at least 0 and at most 1, got 1.5"),
        (dict(min_p=float("nan")), "min_p must be a finite number of at least 0 and at most 1, got nan"),
        (dict(count=0), "count must be an integer of at least 1, got 0"),
        (dict(seed="one"), "seed must be an integer of at least 0, got 'one'"),
    ],
)
def test_wrong_sampling_options_are_errors(options, message):
    with pytest.raises(OptionError, match=message):
        Sample(**options)
