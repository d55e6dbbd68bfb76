"""What a process remembers beside the weights: its random generators and the state of a stream it reads, as safetensors bytes."""

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

JSON = "json"  # the tensor that holds everything which is not a tensor


def pack(values: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """JSON values and tensors in one run of bytes."""
    text = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
    return save({JSON: text, **{name: x.detach().cpu().contiguous() for name, x in tensors.items()}})


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `pack` was given."""
    tensors = load(content)
    values = json.loads(tensors.pop(JSON).numpy().tobytes())
    return values, tensors


def randomness(device: torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The states of every generator a training step may draw from: torch's of the CPU and of the device, Python's, numpy's."""
    version, internal, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the one others may draw from)
    values = {
        "python": [version, list(internal), gauss],
        "numpy": [kind, np.asarray(key).tolist(), position, has_gauss, cached],
    }
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    return values, tensors


def set_randomness(values: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> None:
    """Put every generator back. One that was not saved, as the GPU's of a run begun on a CPU, goes on as it is."""
    version, internal, gauss = values["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, key, position, has_gauss, cached = values["numpy"]
    np.random.set_state((kind, np.array(key, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Nothing drawn inside changes what is drawn after: validation leaves no trace in training."""
    kept = randomness(device)
    try:
        yield
    finally:
        set_randomness(*kept, device)


def seed(value: int) -> None:
    """Seed every generator."""
    torch.manual_seed(value)  # the devices' too
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002


def detached(state: object) -> DecoderState | None:
    """The state of a stream, cut from the graph of the batch that made it; None where nothing is carried on."""
    if not isinstance(state, DecoderState) or not state.hidden:
        return None
    return DecoderState(hidden=[tuple(x.detach() for x in layer) for layer in state.hidden])


def stream_tensors(state: DecoderState | None) -> dict[str, Tensor]:
    """The recurrent state by layer and part: stream.0.1 is the second part (an LSTM's cell) of the first layer."""
    layers = [] if state is None else state.hidden
    return {f"stream.{i}.{j}": x for i, layer in enumerate(layers) for j, x in enumerate(layer)}


def stream_state(tensors: dict[str, Tensor], device: torch.device) -> DecoderState | None:
    """The state that `stream_tensors` took apart."""
    layers: dict[int, list[Tensor]] = {}
    for name in sorted(n for n in tensors if n.startswith("stream.")):
        layers.setdefault(int(name.split(".")[1]), []).append(tensors[name].to(device))
    return DecoderState(hidden=[tuple(layers[i]) for i in sorted(layers)]) if layers else None
