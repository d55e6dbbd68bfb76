"""seed_variance.py: differences between models of one recipe."""

import pytest

from regard.errors import DataError, OptionError
from regard.evaluation import seed_variance
from regard.evaluation.explanation.comparisons import jensen_shannon, total_variation
from regard.evaluation.explanation.explained_models import explained_model
from regard.evaluation.explanation.probe import Probe
from tests.evaluation.explanation import small_models

TEXTS = ["three one seven", "two five"]


def test_a_model_does_not_differ_from_itself():
    model = small_models.classifier()
    result = seed_variance([model, model], TEXTS)
    assert result.divergence == result.change == [0.0, 0.0] and result.tau == pytest.approx([1, 1])


def test_differences_are_means_over_pairs():
    models = [small_models.classifier(seed=seed) for seed in range(3)]
    probes = [Probe(explained_model(model), TEXTS[0]) for model in models]
    pairs = [(0, 1), (0, 2), (1, 2)]
    shares = [probe.attention / probe.attention.sum() for probe in probes]
    divergence = sum(float(jensen_shannon(shares[a], shares[b])) for a, b in pairs) / 3
    change = sum(float(total_variation(probes[a].distribution, probes[b].distribution)) for a, b in pairs) / 3
    result = seed_variance(models, TEXTS)
    assert result.divergence[0] == pytest.approx(divergence) and result.change[0] == pytest.approx(change)
    assert result.means["divergence"].count == 2 and "3 seeds" in str(result)


def test_taggers_and_translators_compare_the_same_output():
    model = small_models.tagger()
    assert seed_variance([model, model], TEXTS, seed=2).change == [0.0, 0.0]


def test_models_of_frames_are_compared():
    models = [small_models.frame_classifier(seed=seed) for seed in (0, 0, 1)]
    sequences = [small_models.frames(5), small_models.frames(3, seed=1)]
    assert seed_variance(models[:2], sequences).change == [0.0, 0.0]
    assert min(seed_variance(models, sequences).divergence) > 0
    for unlike in (small_models.frame_classifier(labels=("a", "b", "c")), small_models.classifier()):
        with pytest.raises(DataError, match="different vocabularies or labels"):
            seed_variance([models[0], unlike], sequences)


def test_one_model_or_another_vocabulary_is_refused():
    with pytest.raises(OptionError, match="at least two"):
        seed_variance([small_models.classifier()], TEXTS)
    other = small_models.classifier()
    other.source_tokenizer = type(other.source_tokenizer).train(["five two seven one three"], "word", 20)
    for unlike in (other, small_models.classifier(labels=("a", "b", "c"))):
        with pytest.raises(DataError, match="different vocabularies or labels"):
            seed_variance([small_models.classifier(), unlike], TEXTS)
