"""Saving and restoring of random generators and stream state."""

import random

import numpy as np
import torch

from regard.models.memory import DecoderState
from regard.training import rng_state

CPU = torch.device("cpu")


def random_numbers():
    # numpy's global generator, which libraries use
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(3).tolist(),  # noqa: NPY002
        np.random.randn(),  # noqa: NPY002
        torch.rand(3).tolist(),
    )


def test_every_generator_is_restored_from_its_packed_state():
    rng_state.seed_all(3)
    random_numbers()
    values, tensors = rng_state.get_rng_state(CPU)
    content = rng_state.pack({"random": values}, tensors)
    expected = random_numbers()
    rng_state.seed_all(99)
    assert random_numbers() != expected
    values, tensors = rng_state.unpack(content)
    rng_state.set_rng_state(values["random"], tensors, CPU)
    assert random_numbers() == expected


def test_preserve_rng_state_restores_all_generators():
    rng_state.seed_all(3)
    expected = random_numbers()
    rng_state.seed_all(3)
    with rng_state.preserve_rng_state(CPU):
        random_numbers()
    assert random_numbers() == expected


def test_stream_state_is_detached_and_restored():
    hidden = [(torch.randn(2, 3, requires_grad=True) * 2, torch.randn(2, 3)), (torch.randn(2, 4),)]
    detached = rng_state.detach_stream_state(DecoderState(hidden=hidden))
    assert not detached.hidden[0][0].requires_grad
    _, tensors = rng_state.unpack(rng_state.pack({}, rng_state.stream_tensors(detached)))
    restored = rng_state.stream_state(tensors, CPU)
    for layer, before in zip(restored.hidden, hidden, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(layer, before, strict=True))


def test_a_model_without_recurrent_state_has_no_stream_state():
    assert (
        rng_state.detach_stream_state(None) is None and rng_state.detach_stream_state(DecoderState()) is None
    )
    assert rng_state.stream_state({}, CPU) is None
