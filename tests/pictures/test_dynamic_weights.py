"""The attention matrix is a weight matrix that depends on the input; that of a linear layer does not."""

import torch
from torch.autograd.functional import jacobian

import regard


def test_the_attention_matrix_depends_on_the_input_and_that_of_a_linear_layer_does_not():
    """An output is a matrix times the values, so its derivative by the values is this matrix."""
    mixing = torch.nn.Linear(5, 5, dtype=torch.float64)
    matrices = {"attention": [], "linear": []}
    for _ in range(2):
        query, key, value = (torch.randn(1, 1, 5, 3, dtype=torch.float64) for _ in range(3))
        derivative = jacobian(lambda v, q=query, k=key: regard.attend(q, k, v), value)
        matrices["attention"].append(derivative[0, 0, :, 0, 0, 0, :, 0])
        matrices["linear"].append(jacobian(mixing, value[0, 0, :, 0]))
        assert torch.allclose(matrices["attention"][-1], regard.weights(query, key)[0, 0])
        assert torch.equal(matrices["linear"][-1], mixing.weight)
    assert torch.equal(*matrices["linear"])
    assert not torch.allclose(*matrices["attention"], atol=0.01)
