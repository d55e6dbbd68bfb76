"""Tests of constraints.py, grid_beam.py and limits.py: searches with constraints find the best of all allowed
outputs.
"""

import numpy as np
import pytest
import torch

from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints
from regard.decoding.grid_beam import advance
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.errors import OptionError
from regard.pipelines.translate import translate_tokens
from tests.decoding.enumeration import SOURCE, all_outputs, ranked, tiny
from tests.models.small import DECODERS, ENCODERS, make

LIMIT = 4
FEW = ["input feeding", "bahdanau", "transformer"]


def contains(text, phrase):
    return any(text[i : i + len(phrase)] == tuple(phrase) for i in range(len(text) - len(phrase) + 1))


def repeats(text, n):
    grams = [text[i : i + n] for i in range(len(text) - n + 1)]
    return len(grams) != len(set(grams))


def outputs(model, **constraints):
    """All outputs and scores of a beam that is large enough to keep every one."""
    hypotheses = translate_tokens(
        model,
        [SOURCE],
        strategy=Beam(400),
        constraints=TokenConstraints(**constraints),
        limits=Limits(max_length=LIMIT),
    )[0]
    return [(((*h.tokens,), h.ended), h.score) for h in hypotheses]


def allowed(model, is_allowed):
    """All outputs that satisfy the rule, best first, with their scores."""
    texts = ranked(all_outputs(model, LIMIT))
    return [(text, pytest.approx(score, abs=1e-9)) for text, score in texts if is_allowed(text[0])]


@pytest.mark.parametrize("decoder", FEW)
def test_a_minimum_length_allows_all_longer_outputs(decoder):
    model = tiny(decoder)
    assert outputs(model, min_length=2) == allowed(model, lambda text: len(text) >= 2)


@pytest.mark.parametrize("decoder", FEW)
@pytest.mark.parametrize("phrases", [((4,),), ((4, 5),), ((5, 5), (6, 4, 6), (1,))])
def test_forbidden_phrases_exclude_exactly_the_outputs_with_them(decoder, phrases):
    model = tiny(decoder)
    assert outputs(model, forbidden=phrases) == allowed(
        model, lambda text: not any(contains(text, phrase) for phrase in phrases)
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_ngram_is_repeated(n):
    model = tiny()
    assert outputs(model, no_repeat=n) == allowed(model, lambda text: not repeats(text, n))


@pytest.mark.parametrize("decoder", FEW)
@pytest.mark.parametrize("prefix", [(5,), (4, 4), (6, 1, 5)])
def test_all_outputs_begin_with_the_prefix(decoder, prefix):
    model = tiny(decoder)
    assert outputs(model, prefixes=[prefix]) == allowed(model, lambda text: text[: len(prefix)] == prefix)


def test_a_prefix_has_priority_over_other_constraints():
    outputs = translate_tokens(
        tiny(),
        [SOURCE],
        strategy=Beam(4),
        constraints=TokenConstraints(no_repeat=1, forbidden=((4,),), prefixes=[(4, 4, 4)]),
    )[0]
    assert all(h.tokens[:3] == [4, 4, 4] and not repeats((*h.tokens[2:],), 1) for h in outputs)


REQUIRED = [
    [(4,)],
    [(4, 5)],
    [(4,), (6,)],
    [(5, 5, 6)],
    [(4, 5), (5, 6)],
    [(4, 4, 5)],
    [(1,), (4,), (5,), (6,)],
    [(4,), (4, 5)],
]


@pytest.mark.parametrize("required", REQUIRED)
def test_a_large_beam_finds_exactly_the_outputs_with_required_phrases(required):
    model = tiny()
    assert outputs(model, required=[required]) == allowed(
        model, lambda text: all(contains(text, phrase) for phrase in required)
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_required_phrases_work_with_every_decoder(decoder):
    model = tiny(decoder)
    assert outputs(model, required=[[(4, 5), (6,)]]) == allowed(
        model, lambda text: contains(text, (4, 5)) and 6 in text
    )


@pytest.mark.parametrize("required", REQUIRED)
@pytest.mark.parametrize("size", [1, 2])
def test_a_small_beam_contains_the_required_phrases(required, size):
    model = tiny()
    log_p = all_outputs(model, LIMIT + 2)
    (hypotheses,) = translate_tokens(
        model,
        [SOURCE],
        strategy=Beam(size),
        constraints=TokenConstraints(required=[required]),
        limits=Limits(max_length=LIMIT + 2),
    )
    assert len(hypotheses) == size
    for h in hypotheses:
        assert all(contains((*h.tokens,), phrase) for phrase in required)
        assert h.log_p == pytest.approx(log_p[(*h.tokens,), h.ended], abs=1e-9)


def test_required_phrases_with_prefix_and_other_constraints():
    def is_allowed(text):
        return text[:1] == (5,) and contains(text, (4, 6)) and not repeats(text, 1)

    model = tiny()
    assert outputs(model, required=[[(4, 6)]], prefixes=[(5,)], no_repeat=1) == allowed(model, is_allowed)


def test_required_phrases_of_some_sentences_do_not_change_the_others():
    model = make(ENCODERS["gru"], DECODERS["transformer"]).eval()
    sentences = [[5, 9], [4, 9, 7, 6], [8, 8, 11, 5, 4]]
    unconstrained = translate_tokens(model, sentences, strategy=Beam(3))
    constrained = translate_tokens(
        model, sentences, strategy=Beam(3), constraints=TokenConstraints(required=[[], [(18,), (7, 12)], []])
    )
    assert [[h.tokens for h in constrained[i]] for i in (0, 2)] == [
        [h.tokens for h in unconstrained[i]] for i in (0, 2)
    ]
    assert all(18 in h.tokens and contains((*h.tokens,), (7, 12)) for h in constrained[1])
    alone = translate_tokens(
        model, sentences[1:2], strategy=Beam(3), constraints=TokenConstraints(required=[[(18,), (7, 12)]])
    )[0]
    assert [h.tokens for h in alone] == [h.tokens for h in constrained[1]]


def test_progress_in_a_phrase_is_its_longest_matching_beginning():
    phrase = [4, 4, 5]
    progress = (0,)
    history = []
    for token in (4, 4, 4, 6, 4, 5, 4, 4, 5, 6):
        progress = advance([phrase], progress, token)
        history.append(progress[0])
    assert history == [1, 2, 2, 0, 1, 0, 1, 2, 3, 3]


def test_constraints_depend_on_the_tokens_of_each_row_only():
    tokens = np.array([[4, 5, 4, 0], [4, 5, 4, 5], [7, 7, 7, 7]], np.int32)
    lengths = np.array([3, 1, 4])
    log_p = torch.zeros(3, 9)
    TokenConstraints(no_repeat=2, forbidden=((4, 8),)).apply(log_p, tokens, lengths)
    assert [torch.isinf(row).nonzero()[:, 0].tolist() for row in log_p] == [[5, 8], [8], [7]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(constraints=TokenConstraints(required=[[(4, 5, 6)]]), limits=Limits(max_length=2)),
            "have 3 tokens, and the translation may have 2",
        ),
        (
            dict(constraints=TokenConstraints(prefixes=[(4, 5, 6)]), limits=Limits(max_length=2)),
            "have 3 tokens, and the translation may have 2",
        ),
        (
            dict(constraints=TokenConstraints(forbidden=((5,),), required=[[(4, 5)]])),
            "a required word of sentence 1 is also forbidden",
        ),
        (
            dict(constraints=TokenConstraints(min_length=9), limits=Limits(max_length=8)),
            "min_length 9 is more than max_length 8",
        ),
        (
            dict(strategy=Sample(seed=1), constraints=TokenConstraints(required=[[(4,)]])),
            "required needs a beam without groups",
        ),
        (
            dict(strategy=Beam(4, groups=2), constraints=TokenConstraints(required=[[(4,)]])),
            "required needs a beam without groups",
        ),
        (
            dict(
                constraints=TokenConstraints(forbidden=((4, 5), (5, 4), (6,), (1,)), required=[[(4,), (5,)]]),
                limits=Limits(max_length=3),
            ),
            "no output of at most 3 tokens",
        ),
    ],
)
def test_contradicting_constraints_are_errors(options, message):
    with pytest.raises(OptionError, match=message):
        translate_tokens(tiny(), [SOURCE], **options)


def test_invalid_token_constraints_are_errors():
    for options in (dict(min_length=-1), dict(no_repeat=1.5), dict(forbidden=((),))):
        with pytest.raises(OptionError):
            TokenConstraints(**options)
