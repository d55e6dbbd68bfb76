"""The published direction on SST-2 and polarity: attention agrees with gradients without context only."""

import pytest

import regard
from regard.data import corpora
from regard.evaluation import faithfulness
from regard.evaluation.explanation.explained_inputs import load_inputs

POOLING = "model.pooling={kind: attention, energy: additive}"
NO_HIDDEN_LAYER = "model.head.layers=0"  # as in the recipes of sst2
BILSTM = "model.encoder={kind: recurrent, cell: lstm, width: 128}"
CORPORA = {  # without context, with context: recipe and overrides
    "sst2": (("sst2-attention",), ("sst2-rnn",)),
    "sentence-polarity": (
        ("polarity", NO_HIDDEN_LAYER),
        ("polarity", NO_HIDDEN_LAYER, "model.dim=64", BILSTM),
    ),
}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("corpus", CORPORA)
def test_context_breaks_the_correlation(corpus, tmp_path):
    """Jain & Wallace 2019, SST: τ with gradients is 0.61 without context, 0.35 over a BiLSTM."""
    if not corpora.find(corpus).present():
        pytest.skip(f"needs the corpus {corpus}")
    taus = []
    for name, (recipe, *changed) in zip(("words", "context"), CORPORA[corpus], strict=True):
        options = [POOLING, *changed, "training.epochs=3", "training.threads=1", "training.device=cpu"]
        folder = regard.train(recipe, folder=tmp_path / name, overrides=options, quiet=True).folder
        inputs = load_inputs(folder, "cpu")
        texts = inputs.draw([], None, limit=40, seed=0)  # of the test set
        means = faithfulness(inputs.model, texts, measures=["correlation"]).means
        taus.append([means[f"tau_{measure}"].value for measure in ("gradient", "leave_one_out")])
    without, with_context = taus
    assert all(tau > 0.4 for tau in without)
    assert all(tau < 0.3 for tau in with_context)
