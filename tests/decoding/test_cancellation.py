"""Tests of search.py and batching.py: cancelled sentences leave the search, and the others are not affected.

With the engine the other sentences are bit-identical. A torch model sums in another order when its batch has
fewer rows, so its scores agree up to rounding, as for any two batches.
"""

import itertools

import pytest
import torch

from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints, TokenConstraints
from regard.decoding.coverage import add_coverage_penalty
from regard.decoding.grid_beam import GridBeam, advance
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask
from regard.pipelines.generate import generate, stream
from regard.pipelines.translate import start, translate, translate_tokens
from tests.decoding.test_cpp_engine import SENTENCES, ready, small
from tests.serving.server import write_model

TEXTS = ["ein kleiner Hund", "zwei Hunde laufen", "Über den Wolken!", "a dog"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(3)
    return write_model(tmp_path_factory.mktemp("model"))


def after(steps):
    """A cancellation callback that returns True after `steps` calls."""
    count = itertools.count(1)
    return lambda: next(count) > steps


def never():
    return False


def rounded(result):
    return [
        [(h.tokens, h.text, h.ended, round(h.log_p, 6), round(h.score, 6)) for h in t.hypotheses]
        for t in result
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 3, "nbest": 3},
        {"strategy": Beam(4, groups=2), "nbest": 4},
        {"strategy": Sample(seed=5, count=3)},
        {"constraints": Constraints(no_repeat=2, min_length=3)},
        {"beam": 2, "constraints": Constraints(required=["Hu"])},
        {"strategy": Beam(2, coverage_penalty=0.2)},
    ],
    ids=str,
)
def test_neighbours_of_a_cancelled_sentence_get_the_same_hypotheses(model, options):
    full = rounded(translate(TEXTS, model, limits=Limits(max_length=20, workers=1), **options))
    for steps in (0, 3):
        flags = [never, after(steps), never, after(steps + 2)]
        translations = rounded(
            translate(TEXTS, model, cancelled=flags, limits=Limits(max_length=20, workers=1), **options)
        )
        assert translations[1] == translations[3] == []
        assert (translations[0], translations[2]) == (full[0], full[2])


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": Beam(4)},
        {"strategy": Beam(4, groups=2)},
        {"strategy": Sample(seed=5, count=3)},
        {"strategy": Sample(seed=5, top_k=5)},
        {"constraints": TokenConstraints(no_repeat=2, min_length=9, forbidden=((5,),))},
        {"strategy": Beam(2), "constraints": TokenConstraints(required=[[[6, 7]]] * 5)},
        {"constraints": TokenConstraints(prefixes=[[8, 9]] * 5)},
    ],
    ids=str,
)
def test_on_the_engine_a_cancelled_sentence_changes_no_bit_of_its_neighbours(precision, options):
    engine = ready(small(), precision)
    exact = lambda result: [[(h.tokens, h.log_p, h.score, h.ended) for h in item] for item in result]  # noqa: E731
    full = exact(translate_tokens(engine, SENTENCES, limits=Limits(max_length=20, workers=1), **options))
    for steps in (0, 3):
        flags = [never, after(steps), never, after(steps + 2), never]
        result = exact(
            translate_tokens(
                engine, SENTENCES, cancelled=flags, limits=Limits(max_length=20, workers=1), **options
            )
        )
        assert result[1] == result[3] == []
        assert [result[i] for i in (0, 2, 4)] == [full[i] for i in (0, 2, 4)]


def test_a_cancelled_sentence_takes_no_more_steps(model):
    steps = 0

    class Counting(Search):
        def _candidates(self):
            nonlocal steps
            steps += len(self.last_tokens)
            return super()._candidates()

    tasks = [SearchTask(50, [5, 6, 7], index=i) for i in range(2)]
    tasks[0].cancelled = after(4)
    with torch.inference_mode():
        search = Counting(model, Beam(1), TokenConstraints(min_length=50))
        search.add(tasks, *start(model, tasks))
        done = [task.index for _ in range(50) for task in search.step()]
    assert done == [0, 1]
    assert steps == 4 + 50
    assert not search
    assert tasks[0].hypotheses == [] and len(tasks[1].hypotheses) == 1


def test_waiting_sentences_are_not_started_when_cancelled(model):
    translation = translate(
        TEXTS * 20, model, cancelled=[never, *[lambda: True] * 79], limits=Limits(batch_tokens=20, workers=1)
    )
    assert translation[0] == translate(TEXTS[:1], model)[0]
    assert all(not t.hypotheses for t in translation[1:])


def test_cancelled_generation_and_streams_stop_early(tmp_path):
    torch.manual_seed(4)
    model = write_model(tmp_path, encoder=None)
    options = {"limits": Limits(max_length=30), "constraints": Constraints(min_length=30)}
    full = generate(["ein", "Hun"], model, **options)
    generations = generate(["ein", "Hun"], model, cancelled=[after(3), never], **options)
    assert (generations[0], generations[0].hypotheses) == ("", [])
    assert generations[1] == full[1]
    assert 0 < len("".join(stream("ein", model, cancelled=after(4), **options))) < len(full[0])


def test_cancelled_texts_are_not_rescored(model, monkeypatch):
    tasks = [SearchTask(9, [5, 6], index=i) for i in range(2)]
    with torch.inference_mode():
        search = Search(model, Beam(2))
        search.add(tasks, *start(model, tasks))
        while search:
            search.step()
    tasks[0].cancelled = lambda: True
    before = [h.score for h in tasks[0].hypotheses]
    add_coverage_penalty(model, tasks, Beam(2, coverage_penalty=0.5))
    assert [h.score for h in tasks[0].hypotheses] == before


def test_progress_in_a_repeated_phrase_is_that_of_the_definition():
    def by_definition(phrase, n, token):
        text = [*phrase[:n], token]
        return next(m for m in range(n + 1, -1, -1) if phrase[:m] == text[len(text) - m :])

    for phrase in itertools.product((4, 5), repeat=6):
        for n in range(6):
            for token in (4, 5, EOS):
                assert advance([list(phrase)], (n,), token) == (by_definition(list(phrase), n, token),)


def test_strategies_bound_the_rows_of_a_sentence():
    assert GridBeam(Beam(3)).max_rows(SearchTask(9, required=[[4, 5], [6]])) == 3 * 4
    assert Beam(4, groups=2).max_rows(SearchTask(9)) == 4
    assert Sample(count=5).max_rows(SearchTask(9)) == 5
