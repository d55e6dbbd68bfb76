"""Random generators and streams, there and back."""

import random

import numpy as np
import torch

from regard.models.memory import DecoderState
from regard.training import rng_state

CPU = torch.device("cpu")


def drawn():
    # numpy's old generator is the one that libraries draw from
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(3).tolist(),  # noqa: NPY002
        np.random.randn(),  # noqa: NPY002
        torch.rand(3).tolist(),
    )


def test_every_generator_goes_on_where_it_was_after_packing_and_unpacking():
    rng_state.seed(3)
    drawn()
    values, tensors = rng_state.randomness(CPU)
    content = rng_state.pack({"random": values}, tensors)
    want = drawn()
    rng_state.seed(99)
    assert drawn() != want
    values, tensors = rng_state.unpack(content)
    rng_state.set_randomness(values["random"], tensors, CPU)
    assert drawn() == want


def test_nothing_drawn_inside_undisturbed_is_seen_outside():
    rng_state.seed(3)
    want = drawn()
    rng_state.seed(3)
    with rng_state.undisturbed(CPU):
        drawn()
    assert drawn() == want


def test_the_state_of_a_stream_is_cut_from_its_graph_and_restored():
    hidden = [(torch.randn(2, 3, requires_grad=True) * 2, torch.randn(2, 3)), (torch.randn(2, 4),)]
    carried = rng_state.detached(DecoderState(hidden=hidden))
    assert not carried.hidden[0][0].requires_grad
    _, tensors = rng_state.unpack(rng_state.pack({}, rng_state.stream_tensors(carried)))
    back = rng_state.stream_state(tensors, CPU)
    for layer, before in zip(back.hidden, hidden, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(layer, before, strict=True))


def test_a_model_without_a_recurrent_state_carries_nothing():
    assert rng_state.detached(None) is None and rng_state.detached(DecoderState()) is None
    assert rng_state.stream_state({}, CPU) is None
