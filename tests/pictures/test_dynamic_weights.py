"""The attention matrix is a weight matrix that depends on the input; that of a linear layer does not."""

import torch
from torch.autograd.functional import jacobian

import regard


def test_attention_is_a_matrix_of_the_input_and_a_linear_layer_a_fixed_one():
    """The derivative of an output with respect to what is mixed is the matrix that mixes it."""
    mixing = torch.nn.Linear(5, 5, dtype=torch.float64)
    matrices = {"attention": [], "linear": []}
    for _ in range(2):
        query, key, value = (torch.randn(1, 1, 5, 3, dtype=torch.float64) for _ in range(3))
        of_attention = jacobian(lambda v, q=query, k=key: regard.attend(q, k, v), value)
        matrices["attention"].append(of_attention[0, 0, :, 0, 0, 0, :, 0])
        matrices["linear"].append(jacobian(mixing, value[0, 0, :, 0]))
        assert torch.allclose(matrices["attention"][-1], regard.weights(query, key)[0, 0])
        assert torch.equal(matrices["linear"][-1], mixing.weight)
    assert torch.equal(*matrices["linear"])
    assert not torch.allclose(*matrices["attention"], atol=0.01)
