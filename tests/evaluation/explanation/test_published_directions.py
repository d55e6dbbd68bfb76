"""The published direction on SST-2: attention agrees with gradients without context only."""

import pytest

import regard
from regard.data import corpora
from regard.evaluation import faithfulness
from regard.evaluation.explanation.explained_inputs import load_inputs

POOLING = "model.pooling={kind: attention, energy: additive}"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not corpora.find("sst2").present(), reason="needs the corpus sst2"),
]


def test_context_breaks_the_correlation(tmp_path):
    """Jain & Wallace 2019, SST: τ with gradients is 0.61 without context, 0.35 over a BiLSTM."""
    taus = {}
    for recipe in ("sst2-attention", "sst2-rnn"):
        options = [POOLING, "training.epochs=3", "training.threads=1", "training.device=cpu"]
        folder = regard.train(recipe, folder=tmp_path / recipe, overrides=options, quiet=True).folder
        inputs = load_inputs(folder, "cpu")
        texts = inputs.draw(["sst2"], "test", limit=40, seed=0)
        means = faithfulness(inputs.model, texts, measures=["correlation"]).means
        taus[recipe] = [means[f"tau_{name}"].value for name in ("gradient", "leave_one_out")]
    assert all(tau > 0.4 for tau in taus["sst2-attention"])
    assert all(tau < 0.3 for tau in taus["sst2-rnn"])
