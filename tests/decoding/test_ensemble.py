"""Tests of ensemble.py: an ensemble decodes with the mean probability of its models."""

import pytest
import torch

from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints
from regard.decoding.ensemble import Ensemble
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.errors import OptionError
from regard.pipelines.generate import generate
from regard.pipelines.translate import stream, translate, translate_tokens
from tests.decoding.enumeration import BOS, EOS, SOURCE, TOKENS, log_probabilities, tiny
from tests.decoding.small_models import LINES, language_model, translator
from tests.models.small import DECODERS, ENCODERS, make


def rank_all_outputs(models, limit):
    """Every output scored with the mean probability at each step, best first by log p / length."""
    source = torch.tensor([[*SOURCE, EOS]])
    scores, unfinished = {}, {(): 0.0}
    for n in range(limit):
        extended = {}
        for text, log_p in unfinished.items():
            target = torch.tensor([[BOS, *text]])
            p = (
                torch.stack(
                    [log_probabilities(model(source, target)[0, -1].detach()).exp() for model in models]
                )
                .mean(0)
                .log()
            )
            scores[text, True] = (log_p + float(p[EOS])) / (n + 1)
            extended |= {(*text, token): log_p + float(p[token]) for token in TOKENS}
        unfinished = extended
    scores |= {(text, False): p / limit for text, p in unfinished.items()}
    return sorted(scores.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("kinds", [("transformer", "bahdanau"), ("dot", "input feeding", "none")])
def test_a_large_beam_ranks_by_the_mean_of_probabilities(kinds):
    models = [tiny(kind) for kind in kinds]
    expected = rank_all_outputs(models, 3)
    outputs = translate_tokens(Ensemble(models), [SOURCE], strategy=Beam(100), limits=Limits(max_length=3))[0]
    assert [((*h.tokens,), h.ended) for h in outputs] == [text for text, _ in expected]
    assert [h.score for h in outputs] == pytest.approx([score for _, score in expected], abs=1e-9)


def test_an_ensemble_of_one_model_is_the_model():
    model = translator()
    assert translate(LINES, Ensemble([model]), beam=3) == translate(LINES, model, beam=3)
    assert translate(LINES, Ensemble([model, model]), beam=3) == translate(LINES, model, beam=3)


@pytest.mark.parametrize(
    "options",
    [
        dict(strategy=Beam(3)),
        dict(strategy=Sample(count=2, seed=1)),
        dict(constraints=TokenConstraints(no_repeat=1)),
    ],
)
def test_batches_and_workers_change_nothing(options):
    models = Ensemble([make(ENCODERS["gru"], DECODERS[kind]).eval() for kind in ("dot", "bahdanau")])
    assert models.can_join
    sentences = [[5], [4, 9, 7, 6, 12, 9], [8, 8, 11]]
    alone = [[h.tokens for h in translate_tokens(models, [s], **options)[0]] for s in sentences]
    for limits in ({}, dict(limits=Limits(workers=2)), dict(limits=Limits(batch_tokens=12))):
        assert [
            [h.tokens for h in texts] for texts in translate_tokens(models, sentences, **options, **limits)
        ] == alone


def test_an_ensemble_streams_and_generates():
    translators = Ensemble([translator(), translator("bahdanau")])
    assert "".join(stream(LINES[0], translators)) == translate(LINES[:1], translators)[0]
    assert not translators.can_join
    models = [language_model(), language_model("none")]
    assert generate(["the cat"], Ensemble(models), limits=Limits(max_length=9))[0].hypotheses[0].tokens


def test_incompatible_models_are_errors():
    with pytest.raises(OptionError, match="at least one model"):
        Ensemble([])
    with pytest.raises(
        OptionError, match="model 2 of the ensemble has another source tokenizer than model 1"
    ):
        Ensemble([translator(), translator(kind="word")])
    with pytest.raises(OptionError, match="not of both"):
        Ensemble([translator(), language_model()])
