"""Attention options with weights or tensors are trained, saved, copied and moved with their layer."""

import copy
import pickle

import pytest
import torch
from torch import nn

import regard
from regard import Causal, MultiHead, Padding
from regard.attention import Dense, Documents, Dot, Mask, RelativeBuckets
from regard.attention.bias import Bias, DenseBias, PositionBias
from regard.attention.normalize import CustomNormalizer, Normalizer
from regard.layers import SlicedMultiHead

T = 5
LAYERS = [MultiHead, SlicedMultiHead]


class WeightedDot(nn.Module):
    """An energy with a weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, query, key):
        return query @ self.weight @ key.transpose(-1, -2)


class Slope(nn.Module):
    """A bias with a weight, of two positions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(()))

    def forward(self, t, s):
        return self.weight * (t - s).abs()


class Tempered(nn.Module):
    """A normaliser with a weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(()))

    def forward(self, scores):
        return torch.softmax(scores * self.weight, -1)


class OwnBias(Bias):
    """A user-defined bias that is not a module but contains one."""

    def __init__(self):
        self.table = nn.Embedding(2 * T, 1)

    def values(self, grid, query):
        return self.table((grid.k - grid.position()) + T)[..., 0]


class OwnNormalizer(Normalizer):
    """A user-defined normaliser with a parameter."""

    def __init__(self):
        self.power = nn.Parameter(torch.ones(()) * 0.7)

    def rows(self, scores):
        return torch.softmax(scores * self.power, -1)


LEARNED = {
    "energy that is a module": (lambda: dict(energy=WeightedDot()), "options.energy.function.weight"),
    "bias that is a module": (lambda: dict(bias=Slope()), "options.bias.function.weight"),
    "bias of positions": (lambda: dict(bias=PositionBias(Slope())), "options.bias.function.weight"),
    "bias that is a parameter": (
        lambda: dict(bias=nn.Parameter(torch.randn(2, T, T))),
        "options.bias.tensor",
    ),
    "dense bias of a parameter": (
        lambda: dict(bias=DenseBias(nn.Parameter(torch.randn(T, T)))),
        "options.bias.tensor",
    ),
    "user-defined bias": (lambda: dict(bias=OwnBias()), "options.bias.table.weight"),
    "normaliser that is a module": (lambda: dict(normalize=Tempered()), "options.normalize.function.weight"),
    "normaliser around a module": (
        lambda: dict(normalize=CustomNormalizer(Tempered())),
        "options.normalize.function.weight",
    ),
    "user-defined normaliser": (lambda: dict(normalize=OwnNormalizer()), "options.normalize.power"),
    "gate that is a parameter": (lambda: dict(gate=nn.Parameter(torch.randn(T, T))), "gate"),
    "gate around a parameter": (
        lambda: dict(gate=DenseBias(nn.Parameter(torch.randn(T, T)))),
        "options.gate.tensor",
    ),
    "gate around a module": (lambda: dict(gate=PositionBias(Slope())), "options.gate.function.weight"),
    "gate that is a module": (lambda: dict(gate=RelativeBuckets(2)), "gate.weight"),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", LEARNED)
def test_weights_of_an_option_are_weights_of_the_layer(kind, name):
    options, key = LEARNED[name]
    layer, x = kind(8, 2, **options()), torch.randn(3, T, 8)
    assert key in layer.state_dict() and key in dict(layer.named_parameters())
    layer(x).square().sum().backward()
    assert layer.get_parameter(key).grad.abs().sum() > 0


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", LEARNED)
def test_the_registered_weights_are_the_ones_used(kind, name):
    options, key = LEARNED[name]
    layer, x = kind(8, 2, **options()), torch.randn(3, T, 8)
    before = layer(x)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.get_parameter(key).add_(torch.randn_like(copied.get_parameter(key)))
    changed = copied(x)
    torch.testing.assert_close(layer(x), before)  # the original is unchanged
    assert not torch.allclose(changed, before)  # the copy uses its own weights
    parameters = {key: copied.get_parameter(key).detach()}
    torch.testing.assert_close(torch.func.functional_call(layer, parameters, (x,)), changed)
    layer.load_state_dict(copied.state_dict())
    torch.testing.assert_close(layer(x), changed)
    torch.testing.assert_close(pickle.loads(pickle.dumps(copied))(x), changed)
    torch.testing.assert_close(copied.double()(x.double()).float(), changed)
    assert all(p.device.type == "meta" for p in copied.to("meta").parameters())


WITHOUT_WEIGHTS = {
    "bias": lambda: dict(bias=torch.randn(T, T)),
    "dense bias": lambda: dict(bias=DenseBias(torch.randn(2, T, T))),
    "gate": lambda: dict(gate=torch.rand(T, T)),
    "boolean gate": lambda: dict(gate=torch.rand(T, T) > 0.3),
    "dense gate": lambda: dict(gate=DenseBias(torch.rand(T, T))),
    "mask": lambda: dict(mask=torch.rand(T, T) > 0.3),
    "dense mask": lambda: dict(mask=Dense(torch.rand(T, T) > 0.3)),
    "padding": lambda: dict(mask=Padding([5, 3, 4])),
    "documents": lambda: dict(mask=Documents.of_lengths([2, 3])),
    "combined masks": lambda: dict(
        mask=Causal() & ~Padding(torch.tensor([1, 2, 0])) | Documents.of_lengths([2, 3])
    ),
    "offsets": lambda: dict(mask=Causal(offset=torch.tensor([0, 1, 2]))),
}


def tensors_of(x):
    """All tensors of an option, also of the masks it is made of."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for part in vars(x).values() if isinstance(part, torch.Tensor | Mask) for t in tensors_of(part)]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
def test_tensors_of_an_option_move_with_the_layer_and_are_not_saved(kind, name):
    options = WITHOUT_WEIGHTS[name]()
    plain, layer, x = kind(8, 2), kind(8, 2, **options), torch.randn(3, T, 8)
    assert layer.state_dict().keys() == plain.state_dict().keys()
    layer.load_state_dict(plain.state_dict())
    (option,) = options  # its name
    before = layer(x)
    assert not torch.allclose(before, plain(x))
    torch.testing.assert_close(copy.deepcopy(layer)(x), before)
    torch.testing.assert_close(layer.double()(x.double()).float(), before)
    moved = tensors_of(getattr(layer.to("meta"), option))
    assert [t.device.type for t in moved] == ["meta"] * len(tensors_of(options[option]))


def test_an_option_can_be_replaced():
    layer = MultiHead(8, 2, bias=torch.randn(T, T), mask=Padding([2, 3, 4]), gate=torch.rand(T, T))
    x = torch.randn(3, T, 8)
    layer.bias, layer.mask, layer.gate = regard.ALiBi(2), Causal(), None
    plain = MultiHead(8, 2, bias=regard.ALiBi(2), mask=Causal())
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), plain(x))
    layer.bias = nn.Parameter(torch.zeros(T, T))
    layer.mask, layer.gate = torch.ones(T, T, dtype=torch.bool), torch.ones(T, T)
    torch.testing.assert_close(layer(x), without_options(layer)(x))  # these options change nothing
    assert "bias" in dict(layer.named_parameters()) and "mask" in dict(layer.named_buffers())


def without_options(layer):
    """A layer with the same projections and no options."""
    plain = MultiHead(8, 2)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if k in plain.state_dict()})
    return plain


def test_an_option_without_tensors_stays_the_same_object():
    mask, energy = Causal(), Dot()
    layer = MultiHead(8, 2, mask=mask, energy=energy)
    assert layer.mask is mask and layer.energy is energy


def test_a_layer_with_registered_options_compiles():
    layer = MultiHead(8, 2, bias=nn.Parameter(torch.randn(T, T)), mask=Padding([2, 3, 4]))
    x = torch.randn(3, T, 8)
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x), layer(x))
