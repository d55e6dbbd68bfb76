"""A recurrence over a whole sentence as ONNX's own operators RNN, GRU and LSTM.

Left to itself, torch.onnx writes such a recurrence down for one length of sentence. So it is given one operator instead, and told
what ONNX has for it. ONNX takes the lengths of the sentences too, so batches may be padded.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.recurrent import RecurrentStack, RecurrentState
from regard.models.encoder import RecurrentEncoder

GATES = {
    "rnn": [0],
    "gru": [1, 0, 2],
    "lstm": [0, 3, 1, 2],
}  # ONNX's order in torch's: z r n of r z n; i o f c of i f c o


@torch.library.custom_op("regard::recurrence", mutates_args=())
def recurrence(
    x: Tensor, lengths: Tensor, w: Tensor, r: Tensor, b: Tensor, cell: str, hidden: int, directions: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, S, dim) → states (batch, S, width), last state and last cell (batch, width)."""
    raise NotImplementedError("this stands for an operator of ONNX and is not computed here")


@recurrence.register_fake
def _(
    x: Tensor, lengths: Tensor, w: Tensor, r: Tensor, b: Tensor, cell: str, hidden: int, directions: int
) -> tuple[Tensor, Tensor, Tensor]:
    width = hidden * directions
    last = x.new_empty(x.shape[0], width)
    return x.new_empty(x.shape[0], x.shape[1], width), last, torch.empty_like(last)


class AsOperator(nn.Module):
    """A RecurrentStack that reads from its beginning, as operators of ONNX."""

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
        found: RecurrentState = []
        for i, width in enumerate(self.stack.widths):
            w, r, b = (getattr(self, f"{name}_{i}") for name in "wrb")
            x, h, c = recurrence(x, lengths, w, r, b, self.cell, width // w.shape[0], w.shape[0])
            found.append((h, c) if self.cell == "lstm" else (h,))
        return x, found


def _weights(layer: Any, cell: str) -> dict[str, Tensor]:
    """(directions, gates · hidden, ·) of input and state, and both biases side by side."""
    ends = ["", "_reverse"] if layer.bidirectional else [""]
    take = lambda name: torch.stack([_reordered(getattr(layer, f"{name}_l0{end}"), cell) for end in ends])  # noqa: E731
    return {
        "w": take("weight_ih"),
        "r": take("weight_hh"),
        "b": torch.cat([take("bias_ih"), take("bias_hh")], -1),
    }


def _reordered(x: Tensor, cell: str) -> Tensor:
    gates = x.detach().chunk(len(GATES[cell]))
    return torch.cat([gates[i] for i in GATES[cell]])


def with_operators(model: Any) -> Any:
    """A copy of a translator whose encoder's recurrences are operators of ONNX."""
    model = copy.deepcopy(model)
    for part in model.encoder.modules():
        if isinstance(part, RecurrentEncoder):
            part.stack = AsOperator(part.stack)  # type: ignore[assignment]
    return model


def translations() -> dict[Any, Any]:
    """What torch.onnx writes for the operator."""
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
        beside = lambda x: op.Reshape(op.Transpose(x, perm=[1, 0, 2]), op.Constant(value_ints=[0, -1]))  # noqa: E731
        # (S, directions, batch, hidden) → (batch, S, width)
        states = op.Reshape(op.Transpose(states, perm=[2, 0, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
        return states, beside(last), beside(memory)

    return {torch.ops.regard.recurrence.default: write}
