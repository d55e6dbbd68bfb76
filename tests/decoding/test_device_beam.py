"""Tests of device_beam.py: hypotheses are read from the tensors of a search. The searches themselves are in
test_cuda_engine.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from regard.decoding.beam import Beam
from regard.decoding.engine.cuda.device_beam import Backpointers
from regard.decoding.strategy import Hypothesis, SearchTask
from regard.errors import OptionError

VOCAB, LONGEST, START = 1000, 9, 4
TOKEN_IDS = np.arange(VOCAB).astype(object)


def test_hypotheses_are_read_from_backpointers():
    backpointers = Backpointers([SearchTask(3)], Beam(2), 3, TOKEN_IDS)
    backpointers.history[:, 0] = [[10, 11], [20, 21], [30, 31]]
    backpointers.parents[:, 0] = [[0, 0], [1, 0], [1, 1]]
    result = backpointers._read(np.array([0, 0]), np.array([0, 1]), np.array([3, 2]))
    assert result == [[10, 21, 30], [10, 21]]


def random_search(width, sentences, seed):
    """The tensors of a search of LONGEST steps from START; each sentence has at least one hypothesis."""
    draw = np.random.default_rng(seed)
    ended = draw.integers(0, 2 * width, sentences)  # fewer than 2 · width
    last = np.round(draw.normal(-5, 2, (sentences, width)))  # whole numbers: scores are often equal
    last[(draw.random(last.shape) < 0.3) & (ended > 0)[:, None]] = -np.inf
    limit = draw.integers(1, LONGEST + 1, sentences)
    arrays = {
        "ended": ended,
        "last": last,
        "limit": limit + START,
        "ended_score": np.round(draw.normal(-5, 2, (sentences, 2 * width + 1))),
        "ended_row": draw.integers(0, width, (sentences, 2 * width + 1)),
        # Ends before the first token (an empty output) are among them.
        "ended_at": START + draw.integers(0, LONGEST + 1, (sentences, 2 * width + 1)),
        "history": draw.integers(4, VOCAB, (START + LONGEST, sentences, width), np.int32),
        "parents": draw.integers(0, width, (START + LONGEST, sentences, width), np.int16),
    }
    unused = np.arange(2 * width + 1) >= ended[:, None]
    arrays["ended_score"][unused], arrays["ended_at"][unused] = np.nan, 1 << 40  # of an earlier search
    return SimpleNamespace(**{name: torch.from_numpy(array) for name, array in arrays.items()}), limit


def one_by_one(buffers, i, max_length, beam):
    """The hypotheses of sentence i, read token by token."""
    found = [
        (int(buffers.ended_row[i, j]), int(buffers.ended_at[i, j]) - START, buffers.ended_score[i, j], True)
        for j in range(buffers.ended[i])
    ]
    cut = [(row, max_length, p, False) for row, p in enumerate(buffers.last[i]) if p > -torch.inf]
    hypotheses = []
    for row, length, log_p, ended in found + cut[: max(0, beam.size - len(found))]:
        tokens = []
        for step in range(START + length - 1, START - 1, -1):
            tokens.insert(0, int(buffers.history[step, i, row]))
            row = int(buffers.parents[step, i, row])
        score = beam.score(float(log_p), length + ended)
        hypotheses.append(Hypothesis(tokens, float(log_p), score, ended))
    return beam.sort(hypotheses)


@pytest.mark.parametrize("penalty", [0, 0.6, 1.0, 2])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_all_hypotheses_equal_those_read_one_by_one(width, penalty):
    beam, sentences = Beam(width, penalty), 150
    buffers, limits = random_search(width, sentences, seed=width)
    if width == 1:
        buffers.parents.zero_()
    tasks = [SearchTask(n) for n in [1, *limits.tolist()]]  # the first has left the buffers before
    backpointers, ids = Backpointers(tasks, beam, LONGEST, TOKEN_IDS), np.arange(sentences) + 1
    backpointers.fetch(buffers, ids, START, 5)
    backpointers.fetch(buffers, ids, START, LONGEST)
    done = np.flatnonzero(np.arange(sentences) % 3)
    backpointers.finish(buffers, ids, done, START)
    for i, task in enumerate(tasks[1:]):
        expected = one_by_one(buffers, i, task.max_length, beam) if i % 3 else []
        assert task.hypotheses == expected
    hypotheses = [hypothesis for task in tasks for hypothesis in task.hypotheses]
    assert {type(token) for h in hypotheses for token in h.tokens} == {int}
    assert {type(h.log_p) for h in hypotheses} | {type(h.score) for h in hypotheses} == {float}
    assert {h.ended for h in hypotheses} == {True, False} and any(not h.tokens for h in hypotheses)


def test_a_search_without_finished_sentences_stores_nothing():
    buffers, limits = random_search(2, 3, seed=0)
    tasks = [SearchTask(n) for n in limits.tolist()]
    Backpointers(tasks, Beam(2), LONGEST, TOKEN_IDS).finish(
        buffers, np.arange(3), np.zeros(0, np.int64), START
    )
    assert not any(task.hypotheses for task in tasks)


def test_a_sentence_without_hypotheses_is_an_error():
    buffers, limits = random_search(2, 3, seed=0)
    buffers.ended[1], buffers.last[1] = 0, -torch.inf
    tasks = [SearchTask(n, index=i) for i, n in enumerate(limits.tolist())]
    with pytest.raises(OptionError, match="sentence 2 no output with a finite score"):
        Backpointers(tasks, Beam(2), LONGEST, TOKEN_IDS).finish(buffers, np.arange(3), np.arange(3), START)


@pytest.mark.parametrize("penalty", [0, 0.6, 1.0, 3, 100])
def test_scores_of_arrays_equal_single_scores_exactly(penalty):
    beam, draw = Beam(4, penalty), np.random.default_rng(0)
    log_p, length = draw.normal(-20, 9, 3000), draw.integers(0, 300, 3000)
    assert beam.scores(log_p, length).tolist() == [
        beam.score(p, n) for p, n in zip(log_p.tolist(), length.tolist(), strict=True)
    ]
    assert beam.scores(log_p[:0], length[:0]).shape == (0,)
