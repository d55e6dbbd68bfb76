"""Draw encoders and the layers that they share with decoders: recurrence, self-attention, convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attend import weights
from regard.attention.position import Channel, Learned, Sinusoidal
from regard.diagrams.computation_graph import Graph, Node, Side, numbered
from regard.layers.multihead import SlicedMultiHead
from regard.models.attention_options import ChannelPosition, NoPosition, NormalizedPosition
from regard.models.encoder import (
    ConvolutionalEncoder,
    EmbeddingEncoder,
    RecurrentEncoder,
    StackedEncoder,
    TextCnnEncoder,
)
from regard.models.transformer import TransformerEncoder, TransformerLayer

FAINT = 0.3  # opacity of the edges to queries that are not highlighted


class DrawnSequence:
    """One sequence in a graph: the columns of its tokens, and the nodes of its highest row so far."""

    def __init__(self, graph: Graph, columns: Sequence[float], side: Side) -> None:
        self.graph, self.columns = graph, list(columns)
        self.side: Side = side
        self.row, self.top = 0.0, list[Node]()

    def __len__(self) -> int:
        return len(self.columns)

    def tokens(self, labels: Sequence[str], caption: str) -> None:
        self.top = [
            self.graph.node(x, 0, label, "token") for x, label in zip(self.columns, labels, strict=True)
        ]
        self.graph.caption(0, caption, self.side)

    def layer(
        self, label: Callable[[int], str], style: str, caption: str, *, rise: float = 1.0, joined: bool = True
    ) -> list[Node]:
        """Add a row of nodes, each above one of the highest row; return the row below."""
        below, self.row = self.top, self.row + rise
        self.top = [self.graph.node(x, self.row, label(i), style) for i, x in enumerate(self.columns)]
        if caption:
            self.graph.caption(self.row, caption, self.side)
        for a, b in zip(below, self.top, strict=True) if joined else ():
            self.graph.edge(a, b)
        return below

    def embed(self, position: nn.Module | None, extra: str = "") -> None:
        name = position_name(position)
        self.layer(
            lambda i: "e + p" if name else "e", "layer", f"embedding{extra}" + (f" + {name}" if name else "")
        )

    def repeat(self, first: float, count: int) -> None:
        """Mark the rows from `first` as a layer that is repeated `count` times."""
        if count > 1:
            self.graph.band((first, self.row), (self.columns[0], self.columns[-1]), f"× {count}")


def position_name(position: nn.Module | None) -> str:
    """What is added to the embeddings, in words; empty if nothing is."""
    if position is None or isinstance(position, NoPosition):
        return ""
    if isinstance(position, NormalizedPosition):
        return f"{position_name(position.position)}, normalized"
    names: list[tuple[type, str]] = [(Sinusoidal, "sinusoidal positions"), (Learned, "learned positions")]
    names += [(ChannelPosition, "position as a channel"), (Channel, "position as a channel")]
    return next((name for kind, name in names if isinstance(position, kind)), "positions")


def recurrent_rows(sequence: DrawnSequence, stack: Any, symbol: str) -> None:
    """Draw a recurrent stack: one row per layer, or one that is marked as repeated."""
    count = len(stack.widths)
    for number in range(count if count <= 2 else 1):
        name = f"{describe_stack(stack)}, width {stack.widths[number]}" + (
            f", layer {number + 1}" if count == 2 else ""
        )
        sequence.layer(lambda i: numbered(symbol, i + 1), "state", name)
        for a, b in zip(sequence.top, sequence.top[1:], strict=False):
            sequence.graph.edge(a, b, "flow", shift=-6 if stack.bidirectional else 0)
            if stack.bidirectional:
                sequence.graph.edge(b, a, "flow", shift=6)
    if count > 2:
        sequence.repeat(sequence.row, count)


def attention_rows(sequence: DrawnSequence, layer: TransformerLayer, *, causal: bool) -> None:
    """Draw the self-attention of a Transformer layer: an edge for every key that a query may see."""
    attention: Any = layer.attention
    allowed = allowed_keys(attention, len(sequence), causal)
    kind = "masked self-attention" if causal else "self-attention"
    details = [f"{attention.heads} heads" if attention.heads > 1 else "1 head", *_variants(attention)]
    below = sequence.layer(lambda i: "attend", "attention", f"{kind}, {', '.join(details)}", joined=False)
    highlighted = len(sequence) - 1 if causal else len(sequence) // 2
    for i, query in enumerate(sequence.top):
        for j, key in enumerate(below):
            strength = 1.0 if i == highlighted else FAINT
            if allowed[i, j] and i != j:
                sequence.graph.edge(key, query, "attends", strength=strength)
        sequence.graph.edge(below[i], query, "attends" if allowed[i, i] else "edge")


def feed_forward_row(sequence: DrawnSequence, layer: TransformerLayer) -> None:
    feed: Any = layer.feed
    norm = {"post": "post-norm", "pre": "pre-norm", "none": "no norm"}[str(layer.around_feed.place)]
    width = feed.W2.weight.shape[1]
    sequence.layer(lambda i: "FF", "layer", f"feed-forward {width}, {feed.activation}; residual, {norm}")


def allowed_keys(attention: Any, length: int, causal: bool) -> Tensor:
    """(length, length): True where a query may attend to a key."""
    from regard.attention.position_masks import Causal

    layer_mask = attention.mask
    mask = layer_mask if not causal else Causal() if layer_mask is None else Causal() & layer_mask
    x = torch.zeros(1, 1, length, 2, device="cpu")
    return weights(x, x, mask=mask)[0, 0] > 0


def _variants(attention: Any) -> list[str]:
    """What differs from plain scaled dot-product attention with softmax."""
    names = ["sliced"] if isinstance(attention, SlicedMultiHead) else []
    energy, normalize = type(attention.energy).__name__, type(attention.normalize).__name__
    names += [energy] if energy != "ScaledDot" else []
    names += [normalize] if normalize != "Softmax" else []
    names += [type(attention.bias).__name__] if attention.bias is not None else []
    return names + (["Rotary"] if attention.rotary is not None else [])


def describe_stack(stack: Any) -> str:
    return f"{'bidirectional ' if stack.bidirectional else ''}{stack.cell.upper()}"


def describe_encoder(encoder: nn.Module) -> str:
    """The kind of an encoder in a few words."""
    if isinstance(encoder, RecurrentEncoder):
        return f"{describe_stack(encoder.stack)} encoder"
    if isinstance(encoder, StackedEncoder):
        return f"self-attention on {describe_encoder(encoder.below)}".removesuffix(" encoder") + " encoder"
    kinds: list[tuple[type, str]] = [
        (TransformerEncoder, "Transformer encoder"),
        (TextCnnEncoder, "convolutions"),
    ]
    kinds += [(ConvolutionalEncoder, "convolutional encoder"), (EmbeddingEncoder, "bag of words")]
    return next((name for kind, name in kinds if isinstance(encoder, kind)), type(encoder).__name__)


def draw_encoder(sequence: DrawnSequence, encoder: nn.Module, extra: str = "") -> None:
    """Draw an encoder above the tokens of a sequence."""
    sequence.embed(getattr(encoder, "position", None), extra)
    _draw_layers(sequence, encoder)


def _draw_layers(sequence: DrawnSequence, encoder: nn.Module) -> None:
    if isinstance(encoder, RecurrentEncoder):
        recurrent_rows(sequence, encoder.stack, "h")
    elif isinstance(encoder, TransformerEncoder):
        first: Any = encoder.layers[0]
        start = sequence.row + 1
        attention_rows(sequence, first, causal=False)
        feed_forward_row(sequence, first)
        sequence.repeat(start, len(encoder.layers))
    elif isinstance(encoder, ConvolutionalEncoder):
        kernels: list[Any] = list(encoder.layers)
        _convolution_row(sequence, [kernels[0].kernel], f"convolution, kernel {kernels[0].kernel}, residual")
        sequence.repeat(sequence.row, len(kernels))
    elif isinstance(encoder, TextCnnEncoder):
        kernels = [layer.kernel for layer in encoder.layers]  # type: ignore[union-attr]
        _convolution_row(sequence, kernels, f"convolutions, kernels {', '.join(map(str, kernels))}")
    elif isinstance(encoder, StackedEncoder):
        _draw_layers(sequence, encoder.below)
        _draw_layers(sequence, encoder.above)
    elif not isinstance(encoder, EmbeddingEncoder):
        sequence.layer(lambda i: "layer", "layer", type(encoder).__name__)  # of another package


def _convolution_row(sequence: DrawnSequence, kernels: Sequence[int], caption: str) -> None:
    """An edge for every neighbour inside the widest kernel."""
    widest = max(kernels)
    below = sequence.layer(lambda i: "conv", "layer", caption, joined=False)
    for i, node in enumerate(sequence.top):
        for j, neighbour in enumerate(below):
            if -((widest - 1) // 2) <= j - i <= widest // 2:
                sequence.graph.edge(neighbour, node)
