"""Export recurrent encoders as the ONNX operators RNN, GRU and LSTM.

torch.onnx would unroll a recurrence for one fixed length. A custom operator stands for it in the traced model
and is translated to the ONNX operator, which also takes lengths, so batches can be padded.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.recurrent import RecurrentStack, RecurrentState
from regard.models.encoder import RecurrentEncoder

# ONNX's order of gates in torch's: z r n of r z n; i o f c of i f c o.
GATES = {"rnn": [0], "gru": [1, 0, 2], "lstm": [0, 3, 1, 2]}


@torch.library.custom_op("regard::recurrence", mutates_args=())
def recurrence(
    x: Tensor, lengths: Tensor, w: Tensor, r: Tensor, b: Tensor, cell: str, hidden: int, directions: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, S, dim) → states (batch, S, width), last state and last cell (batch, width)."""
    raise NotImplementedError("this operator stands for an ONNX operator and is only traced")


@recurrence.register_fake
def _(
    x: Tensor, lengths: Tensor, w: Tensor, r: Tensor, b: Tensor, cell: str, hidden: int, directions: int
) -> tuple[Tensor, Tensor, Tensor]:
    width = hidden * directions
    last = x.new_empty(x.shape[0], width)
    return x.new_empty(x.shape[0], x.shape[1], width), last, torch.empty_like(last)


class RecurrentOperators(nn.Module):
    """A RecurrentStack made of the custom operator, starting from zero states."""

    def __init__(self, stack: RecurrentStack) -> None:
        super().__init__()
        self.stack, self.cell, self.width = stack, stack.cell, stack.width
        for i, layer in enumerate(stack.layers):
            for name, x in _weights(layer, stack.cell).items():
                self.register_buffer(f"{name}_{i}", x)

    def forward(
        self, x: Tensor, state: RecurrentState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        assert state is None and lengths is not None
        last_states: RecurrentState = []
        for i, width in enumerate(self.stack.widths):
            w, r, b = (getattr(self, f"{name}_{i}") for name in "wrb")
            x, h, c = recurrence(x, lengths, w, r, b, self.cell, width // w.shape[0], w.shape[0])
            last_states.append((h, c) if self.cell == "lstm" else (h,))
        return x, last_states


def _weights(layer: Any, cell: str) -> dict[str, Tensor]:
    """Return w and r, (directions, gates · hidden, ·), and b, the biases of the input, then of the state."""
    suffixes = ["", "_reverse"] if layer.bidirectional else [""]

    def take(name: str) -> Tensor:
        return torch.stack([_reordered(getattr(layer, f"{name}_l0{suffix}"), cell) for suffix in suffixes])

    return {
        "w": take("weight_ih"),
        "r": take("weight_hh"),
        "b": torch.cat([take("bias_ih"), take("bias_hh")], -1),
    }


def _reordered(x: Tensor, cell: str) -> Tensor:
    gates = x.detach().chunk(len(GATES[cell]))
    return torch.cat([gates[i] for i in GATES[cell]])


def with_operators(model: Any) -> Any:
    """Return a copy of a translator whose recurrent encoders use the custom operator."""
    model = copy.deepcopy(model)
    for module in model.encoder.modules():
        if isinstance(module, RecurrentEncoder):
            module.stack = RecurrentOperators(module.stack)  # type: ignore[assignment]
    return model


def translations() -> dict[Any, Any]:
    """Return the translation table for torch.onnx: the custom operator as RNN, GRU or LSTM."""
    from onnxscript import INT32, opset18

    op: Any = opset18

    def write(x: Any, lengths: Any, w: Any, r: Any, b: Any, cell: str, hidden: int, directions: int) -> Any:
        lengths = op.Cast(lengths, to=INT32.dtype)
        given = (op.Transpose(x, perm=[1, 0, 2]), w, r, b, lengths)
        options: dict[str, Any] = {
            "hidden_size": hidden,
            "direction": "bidirectional" if directions == 2 else "forward",
        }
        if cell == "lstm":
            states, last, memory = op.LSTM(*given, **options)
        else:
            states, last = (
                op.GRU(*given, linear_before_reset=1, **options)
                if cell == "gru"
                else op.RNN(*given, **options)
            )
            memory = last
        # (directions, batch, hidden) → (batch, width)
        join = lambda x: op.Reshape(op.Transpose(x, perm=[1, 0, 2]), op.Constant(value_ints=[0, -1]))  # noqa: E731
        # (S, directions, batch, hidden) → (batch, S, width)
        states = op.Reshape(op.Transpose(states, perm=[2, 0, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
        return states, join(last), join(memory)

    return {torch.ops.regard.recurrence.default: write}
