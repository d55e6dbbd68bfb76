"""The search finds what it says: greedy by the definition, and with room for all texts the very best of them."""

import itertools

import pytest
import torch

from regard.data.tokenizer import BOS, EOS
from regard.decoding.search import Beam, search
from regard.decoding.translate import translate_tokens
from regard.errors import OptionError
from tests.models.small import DECODERS, ENCODERS, make, make_batch

VOCAB = 7


def tiny(decoder="transformer"):
    return make(ENCODERS["gru"], DECODERS[decoder], vocab=VOCAB).eval()


def log_p(model, source, text, ended):
    """log p of a text by teacher forcing, PAD and BOS never written."""
    target = torch.tensor([[BOS, *text]])
    scores = model(source, target)[0]
    scores[:, [0, BOS]] = -torch.inf
    found = torch.log_softmax(scores, -1)
    words = [*text, EOS] if ended else text
    return float(sum(found.detach()[i, w] for i, w in enumerate(words)))


@pytest.mark.parametrize("decoder", ["none", "bahdanau", "input feeding", "transformer"])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_with_room_for_all_finds_the_best_of_all_texts(decoder, penalty):
    model, source, limit = tiny(decoder), torch.tensor([[4, 5, 6, 3]]), 3
    words = [1, 4, 5, 6]
    every = {}
    for n in range(limit):
        for text in itertools.product(words, repeat=n):
            every[text] = log_p(model, source, list(text), True) / (n + 1) ** penalty
    for text in itertools.product(words, repeat=limit):
        every[text] = log_p(model, source, list(text), False) / limit**penalty
    found = search(model, model.encode(source), torch.tensor([BOS]), [limit], Beam(100, penalty))[0]
    best = max(every, key=every.get)
    assert found[0].tokens == list(best)
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(every[tuple(hypothesis.tokens)], abs=1e-9)


@pytest.mark.parametrize("decoder", DECODERS)
def test_beam_one_is_the_greedy_loop(decoder):
    model, batch = make(ENCODERS["transformer"], DECODERS[decoder]).eval(), make_batch()
    sentences = [row[: n - 1].tolist() for row, n in zip(batch.source, batch.source_lengths, strict=True)]
    found = translate_tokens(model, sentences, beam=Beam(1), max_length=12)
    for sentence, texts in zip(sentences, found, strict=True):
        text, source = [], torch.tensor([[*sentence, EOS]])
        while len(text) < 12:
            scores = model(source, torch.tensor([[BOS, *text]]))[0, -1]
            scores[[0, BOS]] = -torch.inf
            word = int(scores.argmax())
            if word == EOS:
                break
            text.append(word)
        assert texts[0].tokens == text


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("decoder", ["simple", "bahdanau", "transformer"])
def test_a_sentence_is_translated_alike_alone_and_in_any_company(size, decoder):
    model = make(ENCODERS["gru"], DECODERS[decoder]).eval()
    sentences = [torch.randint(4, 20, (n,)).tolist() for n in (1, 9, 3, 3, 12, 5)]
    together = translate_tokens(model, sentences, beam=Beam(size))
    for sentence, texts in zip(sentences, together, strict=True):
        alone = translate_tokens(model, [sentence], beam=Beam(size))[0]
        assert [h.tokens for h in alone] == [h.tokens for h in texts]
        assert [h.score for h in alone] == pytest.approx([h.score for h in texts], abs=1e-12)


def test_texts_come_best_first_and_are_all_different():
    model = tiny()
    found = translate_tokens(model, [[4, 5]], beam=Beam(5))[0]
    assert len(found) == 5 and len({(*h.tokens, h.ended) for h in found}) == 5
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def test_an_empty_sentence_gives_no_text():
    assert translate_tokens(tiny(), [[], [4]], beam=Beam(2))[0] == []


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_beam_that_cannot_be_is_refused(size):
    with pytest.raises(OptionError, match="beam"):
        Beam(size)
