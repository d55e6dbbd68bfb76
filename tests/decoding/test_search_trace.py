"""Tests of search_trace.py: the search tree equals teacher forcing, and results equal those of Beam."""

from collections import defaultdict

import pytest
import torch

import regard
from regard.data.tokenizer import BOS, EOS
from regard.decoding import Beam, Constraints, TracedBeam
from regard.errors import OptionError
from regard.models.autoregressive import log_probabilities
from tests.serving.server import write_model

TEXT = "ein kleiner Hund"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(3)
    return write_model(tmp_path_factory.mktemp("translator"))


@pytest.mark.parametrize("options", [(1,), (3,), (4, 0.0)])
def test_the_results_are_those_of_the_same_beam_without_a_trace(model, options):
    limits = regard.Limits(max_length=12, workers=1)
    strategy = TracedBeam(*options)
    traced = regard.translate(TEXT, model, strategy=strategy, nbest=options[0], limits=limits)
    plain = regard.translate(TEXT, model, strategy=Beam(*options), nbest=options[0], limits=limits)
    assert [h.all_tokens for h in traced.hypotheses] == [h.all_tokens for h in plain.hypotheses]
    assert [h.score for h in traced.hypotheses] == pytest.approx([h.score for h in plain.hypotheses])
    for hypothesis in traced.hypotheses:
        nodes = strategy.trace.find(hypothesis)
        assert strategy.trace.tokens(nodes[-1]) == hypothesis.all_tokens
        assert strategy.trace.nodes[nodes[-1]].log_p == pytest.approx(hypothesis.log_p)


@pytest.mark.parametrize("size", [1, 3])
def test_every_node_has_the_probability_of_its_tokens_and_the_best_are_kept(model, size):
    strategy = TracedBeam(size, pruned=2)
    translation = regard.translate(TEXT, model, strategy=strategy, limits=regard.Limits(max_length=6))
    source = torch.tensor([[*translation.source_tokens, EOS]])
    steps = defaultdict(list)
    for node in strategy.trace.nodes[1:]:
        tokens = strategy.trace.tokens(node.index)
        with torch.no_grad():
            scores = log_probabilities(model(source, torch.tensor([[BOS, *tokens[:-1]]])))[0]
        assert node.log_p == pytest.approx(float(scores[range(len(tokens)), tokens].sum()))
        assert node.step == len(tokens) and node.score == pytest.approx(node.log_p / node.step)
        steps[node.step].append(node)
    for nodes in steps.values():
        assert [node.rank for node in nodes] == sorted(node.rank for node in nodes)
        assert sum(node.status == "pruned" for node in nodes) <= 2
        kept = [node.log_p for node in nodes if node.status == "kept"]
        pruned = [node.log_p for node in nodes if node.status == "pruned" and node.token != EOS]
        assert len(kept) <= size and (not kept or not pruned or min(kept) >= max(pruned))
        for node in nodes:
            assert strategy.trace.nodes[node.parent].status == "kept"


def test_a_prefix_is_a_chain_without_alternatives(model):
    strategy = TracedBeam(3)
    constraints = Constraints(prefix="Üb")
    translation = regard.translate(TEXT, model, strategy=strategy, constraints=constraints)
    assert translation.startswith("Üb")
    first, second = [[n for n in strategy.trace.nodes if n.step == step] for step in (1, 2)]
    assert [len(first), len(second)] == [1, 1] and len(strategy.trace.nodes) > 6


def test_one_trace_is_for_one_sentence(model):
    with pytest.raises(OptionError, match="records one sentence"):
        regard.translate([TEXT, "zwei"], model, strategy=TracedBeam(2))
    with pytest.raises(OptionError, match="required"):
        regard.translate(TEXT, model, strategy=TracedBeam(2), constraints=Constraints(required=["Hu"]))
    with pytest.raises(OptionError, match="pruned"):
        TracedBeam(2, pruned=-1)
    with pytest.raises(OptionError, match="one group"):
        TracedBeam(4, groups=2)
