"""The forward algorithm and Viterbi against enumeration of all paths, in float64."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.data.tag_schemes import BIO, IO, IOBES, Scheme
from regard.errors import DataError
from regard.models.crf import (
    CRF,
    Transitions,
    check_rules,
    log_sum,
    negative_log_likelihood,
    path_score,
    rules,
    viterbi,
    zero_transitions,
)

TAGS = {
    "bio": ["O", "B-A", "I-A", "B-B", "I-B"],
    "iobes": ["O", "B-A", "I-A", "E-A", "S-A", "S-B"],
    "io": ["O", "I-A", "I-B"],
}
SCHEMES: dict[str, Scheme] = {"bio": BIO, "iobes": IOBES, "io": IO}


def random_inputs(count: int, lengths: list[int], seed: int) -> tuple[Tensor, Tensor, Transitions]:
    """Random emissions (also in the padding), lengths, and transitions."""
    draw = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
    emissions = normal(len(lengths), max(lengths), count)
    for row, length in zip(emissions, lengths, strict=True):
        row[length:] = 1e6
    return emissions, torch.tensor(lengths), Transitions(normal(count), normal(count, count), normal(count))


def score_of_path(emissions: Tensor, path: tuple[int, ...], steps: Transitions) -> float:
    """Score of one path of one sentence, by the definition."""
    total = steps.start[path[0]] + steps.end[path[-1]] + sum(emissions[t, tag] for t, tag in enumerate(path))
    return float(total + sum(steps.between[a, b] for a, b in pairwise(path)))


def scores_of_all_paths(emissions: Tensor, steps: Transitions) -> dict[tuple[int, ...], float]:
    """Every path of one sentence and its score."""
    return {
        path: score_of_path(emissions, path, steps)
        for path in product(range(emissions.shape[1]), repeat=len(emissions))
    }


@given(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 10**6))
def test_the_loss_and_the_best_path_equal_enumeration_of_all_paths(
    count: int, lengths: list[int], seed: int
) -> None:
    emissions, ends, steps = random_inputs(count, lengths, seed)
    sums, (best, score) = log_sum(emissions, ends, steps), viterbi(emissions, ends, steps)
    for i, length in enumerate(lengths):
        score_of = scores_of_all_paths(emissions[i, :length], steps)
        values = torch.tensor(list(score_of.values()), dtype=torch.float64)
        torch.testing.assert_close(sums[i], values.logsumexp(0))
        torch.testing.assert_close(score[i], values.max())
        path = tuple(best[i].tolist())
        assert score_of[path[:length]] == pytest.approx(float(values.max()))
        assert set(path[length:]) <= {0}
        first_path = next(iter(score_of))
        tags = torch.zeros(1, max(lengths), dtype=torch.long)
        tags[0, :length] = torch.tensor(first_path)
        torch.testing.assert_close(
            path_score(emissions[i : i + 1], tags, ends[i : i + 1], steps)[0], values[0]
        )


def test_probabilities_of_all_paths_add_up_to_one() -> None:
    emissions, ends, steps = random_inputs(3, [4], 0)
    paths = torch.tensor(list(product(range(3), repeat=4)))
    nll = negative_log_likelihood(emissions.expand(len(paths), -1, -1), paths, ends.expand(len(paths)), steps)
    torch.testing.assert_close((-nll).exp().sum(), torch.tensor(1.0, dtype=torch.float64))


def test_the_gradient_is_right_and_padding_has_none() -> None:
    emissions, ends, steps = random_inputs(3, [3, 1], 1)
    emissions = torch.where(emissions > 1e5, 0.5, emissions).requires_grad_()
    tags = torch.tensor([[0, 2, 1], [1, 0, 0]])
    parts = tuple(step.clone().requires_grad_() for step in steps)
    assert torch.autograd.gradcheck(
        lambda e, *s: negative_log_likelihood(e, tags, ends, Transitions(*s)), (emissions, *parts)
    )
    negative_log_likelihood(emissions, tags, ends, steps).sum().backward()
    assert emissions.grad is not None
    assert not emissions.grad[1, 1:].any()


@given(
    st.sampled_from(sorted(TAGS)), st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 10**6)
)
def test_the_best_path_follows_the_tag_scheme_for_any_scores(
    name: str, lengths: list[int], seed: int
) -> None:
    tags, scheme = TAGS[name], SCHEMES[name]
    emissions, ends, learned = random_inputs(len(tags), lengths, seed)
    for steps in (rules(tags, scheme).like(emissions), learned + rules(tags, scheme).like(emissions)):
        best, score = viterbi(emissions, ends, steps)
        assert torch.isfinite(score).all()
        for row, length in zip(best.tolist(), lengths, strict=True):
            assert scheme.problems([tags[i] for i in row[:length]]) == []


def test_the_allowed_transitions_follow_from_the_tags() -> None:
    steps = rules(["O", "B-A", "I-A"])
    assert steps.start.tolist() == [0, 0, -torch.inf]
    assert steps.between.tolist() == [[0, 0, -torch.inf], [0, 0, 0], [0, 0, 0]]
    assert steps.end.tolist() == [0, 0, 0]


def test_forbidden_transitions_have_zero_probability_and_cause_no_nan() -> None:
    tags = ["O", "I-B", "B-A", "I-A"]  # no transition leads to I-B
    emissions, ends, _ = random_inputs(4, [3], 2)
    crf = CRF(4).double()
    steps = crf.transitions + rules(tags).like(emissions).at_least(-1e4)
    nll = negative_log_likelihood(emissions, torch.tensor([[0, 2, 3]]), ends, steps)
    legal = [path for path in product(range(4), repeat=3) if not BIO.problems([tags[i] for i in path])]
    values = torch.tensor(
        [score_of_path(emissions[0], path, zero_transitions(4).like(emissions)) for path in legal],
        dtype=torch.float64,
    )
    correct = score_of_path(emissions[0], (0, 2, 3), zero_transitions(4).like(emissions))
    assert float(nll.detach()) == pytest.approx(float(values.logsumexp(0)) - correct)
    nll.sum().backward()
    for p in crf.parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all()


def test_tag_sets_without_a_valid_one_word_path_are_refused() -> None:
    with pytest.raises(DataError, match="no single word"):
        check_rules(["B-A", "E-A"], rules(["B-A", "E-A"]))
    check_rules(["O", "B-A", "E-A"], rules(["O", "B-A", "E-A"]))


def test_an_empty_sentence_has_one_path_of_score_0() -> None:
    emissions, lengths, steps = random_inputs(3, [2, 0], 1)
    tags = torch.tensor([[1, 2], [2, 2]])
    assert float(path_score(emissions, tags, lengths, steps)[1]) == 0
    assert float(negative_log_likelihood(emissions, tags, lengths, steps)[1]) == 0
    single = path_score(emissions[:1], tags[:1], lengths[:1], steps)
    torch.testing.assert_close(path_score(emissions, tags, lengths, steps)[:1], single)
    empty = negative_log_likelihood(emissions[:, :0], tags[:, :0], torch.tensor([0, 0]), steps)
    assert empty.tolist() == [0, 0]
    best, _ = viterbi(emissions, lengths, steps)
    assert best[1].tolist() == [0, 0]
