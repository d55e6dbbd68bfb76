"""Random generators and recurrent stream state of a process, as safetensors bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from regard.models.memory import DecoderState

JSON = "json"  # name of the tensor that holds the JSON values


def pack(values: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """Return JSON values and tensors as bytes."""
    text = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
    return save({JSON: text, **{name: x.detach().cpu().contiguous() for name, x in tensors.items()}})


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the values and tensors of `pack`."""
    tensors = load(content)
    values = json.loads(tensors.pop(JSON).numpy().tobytes())
    return values, tensors


def get_rng_state(device: torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the states of all generators that training may use: torch (CPU and device), Python, numpy."""
    version, internal, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global one)
    values = {
        "python": [version, list(internal), gauss],
        "numpy": [kind, np.asarray(key).tolist(), position, has_gauss, cached],
    }
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    return values, tensors


def set_rng_state(values: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> None:
    """Restore all generators; one that was not saved (the GPU's of a run on a CPU) is unchanged."""
    version, internal, gauss = values["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, key, position, has_gauss, cached = values["numpy"]
    np.random.set_state((kind, np.array(key, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)


@contextmanager
def preserve_rng_state(device: torch.device) -> Iterator[None]:
    """Restore all generators at the end of the context, so that validation does not affect training."""
    state = get_rng_state(device)
    try:
        yield
    finally:
        set_rng_state(*state, device)


def seed_all(value: int) -> None:
    """Seed all generators."""
    torch.manual_seed(value)  # of all devices
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002


def detach_stream_state(state: object) -> DecoderState | None:
    """Return the recurrent state without its autograd graph; None if there is none."""
    if not isinstance(state, DecoderState) or not state.hidden:
        return None
    return DecoderState(hidden=[tuple(x.detach() for x in layer) for layer in state.hidden])


def stream_tensors(state: DecoderState | None) -> dict[str, Tensor]:
    """Return the recurrent state by name; stream.0.1 is the cell state of an LSTM's first layer."""
    layers = [] if state is None else state.hidden
    return {f"stream.{i}.{j}": x for i, layer in enumerate(layers) for j, x in enumerate(layer)}


def stream_state(tensors: dict[str, Tensor], device: torch.device) -> DecoderState | None:
    """Return the recurrent state from its named tensors."""
    layers: dict[int, list[Tensor]] = {}
    for name in sorted(n for n in tensors if n.startswith("stream.")):
        layers.setdefault(int(name.split(".")[1]), []).append(tensors[name].to(device))
    return DecoderState(hidden=[tuple(layers[i]) for i in sorted(layers)]) if layers else None
