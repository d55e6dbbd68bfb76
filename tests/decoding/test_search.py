"""Tests of search.py, batching.py, beam.py and strategy.py: searches find the best hypotheses, in any
batch.

Covers scoring.py, token_stream.py.
"""

import _thread
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from regard.data.tokenizer import BOS, EOS
from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints
from regard.decoding.limits import Limits
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask
from regard.errors import OptionError
from regard.pipelines.translate import start, translate_tokens
from tests.decoding.enumeration import SOURCE, VOCAB, all_outputs, near_ties, ranked, tiny
from tests.models.small import DECODERS, ENCODERS, make, make_batch

SENTENCES = [
    [5],
    [4, 19, 7, 6, 12, 9, 9, 15, 4],
    [8, 8, 11],
    [17, 5, 4],
    [6, 13, 4, 9, 18, 10, 7, 7, 16, 4, 5, 12],
    [9, 5, 8, 6, 14],
]


def as_tuples(results):
    return [[(h.tokens, h.ended, h.score) for h in texts] for texts in results]


def as_approx_tuples(results):
    """Expected value for `as_tuples`, with a tolerance on scores."""
    return [[(h.tokens, h.ended, pytest.approx(h.score, abs=1e-11)) for h in texts] for texts in results]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_large_beam_finds_all_outputs_sorted_by_score(decoder, penalty):
    model = tiny(decoder)
    expected = ranked(all_outputs(model, 3), penalty)
    outputs = translate_tokens(model, [SOURCE], strategy=Beam(100, penalty), limits=Limits(max_length=3))[0]
    assert [((*h.tokens,), h.ended) for h in outputs] == [text for text, _ in expected]
    assert [h.score for h in outputs] == pytest.approx([score for _, score in expected], abs=1e-10)


def test_a_small_beam_equals_the_definition():
    model, size, limit = tiny(), 3, 5
    log_p = all_outputs(model, limit)

    def prefix(text):
        return np.logaddexp.reduce([p for (tokens, _), p in log_p.items() if tokens[: len(text)] == text])

    beam, finished = [((), 0.0)], []
    for n in range(limit):
        candidates = [(text, True, log_p[text, True]) for text, _ in beam] if n < limit else []
        candidates += [
            ((*text, token), False, prefix((*text, token))) for text, _ in beam for token in (1, 4, 5, 6)
        ]
        candidates.sort(key=lambda c: -c[2])
        finished += [(text, p / (n + 1)) for text, ended, p in candidates[:size] if ended]
        beam = [(text, p) for text, ended, p in candidates if not ended][:size]
        if len(finished) >= size:
            break
    finished += [(text, p / limit) for text, p in beam][: max(0, size - len(finished))]
    outputs = translate_tokens(model, [SOURCE], strategy=Beam(size), limits=Limits(max_length=limit))[0]
    expected = sorted(finished, key=lambda t: -t[1])[:size]
    assert [(*h.tokens,) for h in outputs] == [text for text, _ in expected]
    assert [h.score for h in outputs] == pytest.approx([score for _, score in expected], abs=1e-8)


@pytest.mark.parametrize("decoder", DECODERS)
def test_beam_one_is_the_greedy_loop_without_caches(decoder):
    model, batch = make(ENCODERS["transformer"], DECODERS[decoder]).eval(), make_batch()
    sentences = [row[: n - 1].tolist() for row, n in zip(batch.source, batch.source_lengths, strict=True)]
    outputs = translate_tokens(model, sentences, strategy=Beam(1), limits=Limits(max_length=12))
    for sentence, texts in zip(sentences, outputs, strict=True):
        text, source, log_p = [], torch.tensor([[*sentence, EOS]]), 0.0
        while len(text) < 12:
            scores = model(source, torch.tensor([[BOS, *text]]))[0, -1].detach()
            scores[[0, BOS]] = -torch.inf
            token = int(scores.argmax())
            log_p += float(torch.log_softmax(scores, -1)[token])
            if token == EOS:
                break
            text.append(token)
        assert texts[0].tokens == text and texts[0].ended == (len(text) < 12)
        assert texts[0].log_p == pytest.approx(log_p, abs=1e-10)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_sentence_is_translated_the_same_alone_and_in_a_batch(size, decoder):
    model = make(ENCODERS["gru"], DECODERS[decoder]).eval()
    alone = [translate_tokens(model, [sentence], strategy=Beam(size))[0] for sentence in SENTENCES]
    assert as_tuples(translate_tokens(model, SENTENCES, strategy=Beam(size))) == as_approx_tuples(alone)
    assert as_tuples(translate_tokens(model, SENTENCES[::-1], strategy=Beam(size))[::-1]) == as_approx_tuples(
        alone
    )
    assert as_tuples(
        translate_tokens(model, SENTENCES, strategy=Beam(size), limits=Limits(batch_tokens=30 * size))
    ) == as_approx_tuples(alone)
    assert as_tuples(
        translate_tokens(model, SENTENCES, strategy=Beam(size), limits=Limits(workers=3))
    ) == as_approx_tuples(alone)


@pytest.mark.parametrize("encoder", ["transformer", "convolutional", "attention on gru"])
def test_padding_does_not_reach_the_encoder(encoder):
    model = make(ENCODERS[encoder], DECODERS["transformer"]).eval()
    alone = [translate_tokens(model, [sentence], strategy=Beam(3))[0] for sentence in SENTENCES]
    assert as_tuples(translate_tokens(model, SENTENCES, strategy=Beam(3))) == as_approx_tuples(alone)


@pytest.mark.parametrize("decoder", ["none", "dot", "projected", "bilinear", "input feeding", "bahdanau"])
def test_sentences_that_join_a_running_batch_are_translated_the_same(decoder):
    model = make(ENCODERS["gru"], DECODERS[decoder]).eval()
    assert model.can_join
    running, tasks = Search(model, Beam(3)), [SearchTask(25, sentence) for sentence in SENTENCES]
    with torch.inference_mode():
        for i, task in enumerate(tasks):  # add a sentence every three steps
            running.add([task], *start(model, [task]))
            for _ in range(3 if i < 5 else 100):
                if running:
                    running.step()
    assert as_tuples([task.hypotheses for task in tasks]) == as_approx_tuples(
        translate_tokens(model, SENTENCES, strategy=Beam(3), limits=Limits(max_length=25))
    )


def test_sentences_cannot_join_a_transformer_batch():
    assert not tiny("transformer").can_join


def test_in_float32_only_near_ties_depend_on_the_batch():
    model = make(ENCODERS["transformer"], DECODERS["transformer"], dim=64).float().eval()
    draw = torch.Generator().manual_seed(0)
    sentences = [torch.randint(4, 20, (n,), generator=draw).tolist() for n in list(range(1, 16)) * 2]
    together = translate_tokens(model, sentences, strategy=Beam(2), limits=Limits(max_length=12))
    alone = [
        translate_tokens(model, [sentence], strategy=Beam(2), limits=Limits(max_length=12))[0]
        for sentence in sentences
    ]
    margin = [texts[0].score - texts[1].score for texts in alone]
    differ, tied = near_ties([t[0].tokens for t in together], [t[0].tokens for t in alone], margin)
    print(f"{differ} of {len(sentences)} differ, {tied} of them near-ties")
    assert differ == tied


def test_hypotheses_are_sorted_and_distinct():
    outputs = translate_tokens(tiny(), [[4, 5]], strategy=Beam(5))[0]
    assert len(outputs) == 5 and len({(*h.tokens, h.ended) for h in outputs}) == 5
    assert [h.score for h in outputs] == sorted((h.score for h in outputs), reverse=True)


def test_a_hypothesis_that_did_not_end_has_maximum_length():
    for limit in (1, 2, 4):
        outputs = translate_tokens(tiny(), [SOURCE], strategy=Beam(6), limits=Limits(max_length=limit))[0]
        assert all(len(h.tokens) == limit for h in outputs if not h.ended)
        assert all(len(h.tokens) < limit for h in outputs if h.ended)


def test_one_group_is_the_plain_beam():
    model = make(ENCODERS["gru"], DECODERS["transformer"]).eval()
    assert as_tuples(
        translate_tokens(model, SENTENCES, strategy=Beam(4, groups=1, diversity=9.0))
    ) == as_approx_tuples(translate_tokens(model, SENTENCES, strategy=Beam(4)))


def test_diverse_groups_equal_the_definition():
    """Two groups of two: the second is penalised for each token that the first chose at the same step."""
    model, limit, strength = tiny(), 4, 0.7
    log_p = all_outputs(model, limit)

    def prefix(text):
        return np.logaddexp.reduce([p for (tokens, _), p in log_p.items() if tokens[: len(text)] == text])

    beams, finished = [[((), 0.0)], [((), 0.0)]], [[], []]
    for n in range(limit):
        chosen = []
        for g in range(2):
            if len(finished[g]) >= 2:
                continue
            candidates = [(text, EOS, log_p[text, True]) for text, _ in beams[g]]
            candidates += [
                (text, token, prefix((*text, token))) for text, _ in beams[g] for token in (1, 4, 5, 6)
            ]
            candidates.sort(key=lambda c: strength * chosen.count(c[1]) - c[2])
            finished[g] += [(text, p / (n + 1)) for text, token, p in candidates[:2] if token == EOS]
            beams[g] = [((*text, token), p) for text, token, p in candidates if token != EOS][:2]
            chosen += [token for _, token, _ in candidates[:2]]
    expected = {
        text: score
        for g in range(2)
        for text, score in (
            *finished[g],
            *((t, p / limit) for t, p in beams[g][: max(0, 2 - len(finished[g]))]),
        )
    }
    outputs = translate_tokens(
        model, [SOURCE], strategy=Beam(4, groups=2, diversity=strength), limits=Limits(max_length=limit)
    )[0]
    assert {(*h.tokens,) for h in outputs} == set(expected)
    for h in outputs:
        assert h.score == pytest.approx(expected[(*h.tokens,)], abs=1e-8)


def test_diverse_groups_do_not_depend_on_the_batch():
    model = make(ENCODERS["gru"], DECODERS["transformer"]).eval()
    beam = Beam(6, groups=3, diversity=1.0)
    assert as_tuples(translate_tokens(model, SENTENCES, strategy=beam)) == as_approx_tuples(
        [translate_tokens(model, [s], strategy=beam)[0] for s in SENTENCES]
    )


def test_strong_diversity_starts_every_group_with_another_token():
    outputs = translate_tokens(
        tiny(), [SOURCE], strategy=Beam(3, groups=3, diversity=1e3), limits=Limits(max_length=3)
    )[0]
    assert len({tuple(h.tokens[:1]) for h in outputs}) == 3


def test_an_empty_sentence_has_no_hypotheses():
    assert translate_tokens(tiny(), [[], [4]], strategy=Beam(2))[0] == []


def test_a_model_in_training_is_searched_without_dropout_and_stays_in_training():
    model = tiny()
    expected = translate_tokens(model, [SOURCE])
    model.train()
    assert as_tuples(translate_tokens(model, [SOURCE])) == as_approx_tuples(expected)
    assert model.training


def test_a_process_ends_after_its_workers_have_freed_their_tensors():
    """Python 3.11 aborts if a daemon thread frees a tensor while it exits."""
    code = """if True:
        import threading, time
        import torch
        from regard.decoding.batching import run_workers

        class Slow:
            tensors = [torch.ones(2)]
            def __del__(self):
                time.sleep(0.5)
                self.tensors.clear()
                print("freed", flush=True)

        memory = threading.local()
        def work():
            memory.kept = Slow()  # freed after the last line of the thread
        run_workers(work, 2, threading.Event())
        print("end", flush=True)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["end", "freed", "freed"]


def test_an_interrupt_stops_all_workers_at_once():
    model, before = make(ENCODERS["gru"], DECODERS["transformer"]).eval(), threading.active_count()
    steps, step = [], model.step

    def interrupted(*args):
        steps.append(1)
        if len(steps) == 5:
            _thread.interrupt_main()
        return step(*args)

    model.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        translate_tokens(
            model,
            [[5, 9]] * 400,
            constraints=TokenConstraints(min_length=199),
            limits=Limits(workers=2, batch_tokens=30, max_length=200),
        )
    assert len(steps) < 4000  # of 8000
    deadline = time.monotonic() + 60  # a finished thread is counted for a moment
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before and torch.get_num_threads() == 1


def test_an_error_in_a_worker_is_raised_and_threads_are_restored():
    model, before = tiny(), torch.get_num_threads()
    with pytest.raises(IndexError):
        translate_tokens(model, [[4], [5], [VOCAB + 1]], limits=Limits(workers=2))  # not in the vocabulary
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(((dict(size=size)), "beam must be an integer of at least 1") for size in (0, -1, 1.5, True)),
        (dict(size=4, groups=3), "cannot be divided into 3 equal groups"),
        (dict(length_penalty=float("nan")), "length_penalty must be a finite number"),
        (dict(coverage_penalty=-1), "coverage_penalty must be a finite number of at least 0"),
        (dict(diversity="much"), "diversity must be a finite number"),
    ],
)
def test_wrong_beam_options_are_errors(options, message):
    with pytest.raises(OptionError, match=message):
        Beam(**options)


@pytest.mark.parametrize("name", ["max_length", "batch_tokens", "workers"])
def test_wrong_limits_are_errors(name):
    for value in (0, -3, 1.5, True):
        with pytest.raises(OptionError, match=f"{name} must be an integer of at least 1"):
            Limits(**{name: value})


def test_length_limits_of_a_batch_are_independent():
    model = tiny()
    tasks = [SearchTask(n, SOURCE) for n in (1, 4, 2)]
    running = Search(model, Beam(2))
    with torch.inference_mode():
        running.add(tasks, *start(model, tasks))
        while running:
            running.step()
    for task in tasks:
        limits = Limits(max_length=task.max_length)
        alone = translate_tokens(model, [SOURCE], strategy=Beam(2), limits=limits)
        assert as_tuples([task.hypotheses]) == as_approx_tuples(alone)
