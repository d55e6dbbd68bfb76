"""Checks that the batch, its order and the number of workers change no bit of a translation."""

from regard.decoding.beam import Beam
from regard.decoding.limits import Limits
from regard.pipelines.translate import translate_tokens


def tokens_and_scores(result):
    return [[(h.tokens, h.log_p) for h in texts] for texts in result]


def assert_batches_change_nothing(engine, sentences, beam):
    """Translate each sentence alone, assert that batches give the same bits, and return the result."""

    def outputs(texts, **limits):
        return tokens_and_scores(
            translate_tokens(engine, texts, strategy=Beam(beam), limits=Limits(**limits))
        )

    alone = [translate_tokens(engine, [sentence], strategy=Beam(beam))[0] for sentence in sentences]
    expected = tokens_and_scores(alone)
    assert outputs(sentences) == expected
    assert outputs(sentences[::-1])[::-1] == expected
    assert outputs(sentences, batch_tokens=40) == expected  # sentences join as others finish
    assert outputs(sentences, workers=3, batch_tokens=64) == expected
    return alone
