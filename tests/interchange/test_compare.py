"""Tests of compare.py: near-ties are distinguished from differences."""

import pytest
import torch

from regard.data.tokenizer import EOS
from regard.interchange.export.compare import UnequalError, compare, greedy, require_equal, sample_prompts
from tests.interchange.small_models import LAYER, make


class LastTokenChanged:
    """A runner that generates what regard generates, except for the last token."""

    def __init__(self, model):
        self.model = model

    def generate(self, prompt, limit):
        tokens = [token for token in greedy(self.model, prompt, limit).tokens if token != EOS]
        return [*tokens[:-1], tokens[-1] + 1]

    def log_probs(self, prompt, tokens):
        return greedy(self.model, prompt, len(tokens)).log_probs


@pytest.fixture
def model():
    result = make(LAYER, LAYER, output_bias=True)
    with torch.no_grad():
        result.output.projection.bias[EOS] = -99  # outputs of some length
    return result


def test_a_changed_token_is_an_error(model):
    with pytest.raises(UnequalError, match="0 of 4 sample sentences with identical tokens.*nothing was kept"):
        require_equal(model, LastTokenChanged(model), "another runtime")


def test_a_changed_token_at_a_near_tie_is_counted(model):
    with torch.no_grad():  # equal scores for all tokens: every step is a tie
        model.output.projection.weight.zero_()
        model.output.projection.bias[EOS + 1 :] = 0
    result = compare(model, LastTokenChanged(model), sample_prompts(model))
    assert (result.equal, result.near_ties) == (0, 4) and result.passed
    assert "4 with a near-tie" in str(result)
