"""Feed-forward and residual sublayers against their formulas: covers feedforward.py and residual.py."""

import pytest
import torch

from regard.errors import OptionError
from regard.layers.feedforward import FeedForward
from regard.layers.residual import Residual


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh"])
def test_feed_forward_is_two_linear_layers_with_an_activation_between(name):
    layer, x = FeedForward(4, 6, activation=name).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    f = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh}[name]
    expected = f(x @ layer.W1.weight.T + layer.W1.bias) @ layer.W2.weight.T + layer.W2.bias
    torch.testing.assert_close(layer(x), expected)


def test_swiglu_gates_one_half_with_the_other():
    layer, x = FeedForward(4, 6, activation="swiglu").double(), torch.randn(3, 4, dtype=torch.float64)
    a, b = (x @ layer.W1.weight.T + layer.W1.bias).chunk(2, -1)
    torch.testing.assert_close(layer(x), layer.W2(a * torch.sigmoid(a) * b))


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_the_norm_is_applied_after_or_before_the_sublayer_or_not_at_all(kind):
    x, f = torch.randn(3, 4, dtype=torch.float64), torch.sin
    norm = {
        "layer": lambda y: (
            (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        ),
        "rms": lambda y: y / (y.square().mean(-1, keepdim=True) + torch.finfo(y.dtype).eps).sqrt(),
    }[kind]
    expected = {"post": norm(x + f(x)), "pre": x + f(norm(x)), "none": x + f(x)}
    for position, output in expected.items():
        layer = Residual(4, norm=position, norm_kind=kind).double()
        torch.testing.assert_close(layer(x, f), output)


def test_unknown_names_are_refused_with_a_list_of_the_known_ones():
    with pytest.raises(OptionError, match="relu, gelu"):
        FeedForward(4, 6, activation="rely")
    with pytest.raises(OptionError, match="post, pre, none"):
        Residual(4, norm="before")
    with pytest.raises(OptionError, match="layer, rms"):
        Residual(4, norm_kind="batch")


@pytest.mark.parametrize("position", ["post", "pre"])
def test_under_autocast_post_norm_outputs_half_precision_and_pre_norm_float32(position):
    layer, x = Residual(16, norm=position), torch.randn(2, 5, 16)
    linear = torch.nn.Linear(16, 16)
    with torch.no_grad():
        layer.norm.weight.normal_(1, 0.1)
        layer.norm.bias.normal_(0, 0.1)
    expected = layer(x, linear)
    with torch.autocast("cpu", torch.bfloat16):
        result = layer(x, linear)
        twice = layer(result, linear)
    assert result.dtype == twice.dtype == (torch.bfloat16 if position == "post" else torch.float32)
    torch.testing.assert_close(result.float(), expected, rtol=0.05, atol=0.05)
    twice.float().sum().backward()
    assert layer.norm.weight.grad.dtype == torch.float32 and bool(layer.norm.weight.grad.isfinite().all())
