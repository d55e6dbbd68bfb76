"""Draw decoders: recurrent with and without attention, Bahdanau's, the Transformer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from regard.attention.energy import Additive, Bilinear, Cosine, Dot, ScaledDot
from regard.diagrams.computation_graph import Node, numbered
from regard.diagrams.drawn_encoders import (
    FAINT,
    DrawnSequence,
    attention_rows,
    describe_stack,
    feed_forward_row,
    recurrent_rows,
)
from regard.models.cross_attention import (
    AdditiveCrossAttention,
    ProjectedCrossAttention,
    StateCrossAttention,
)
from regard.models.decoder import BahdanauDecoder, CopiedInitialState, InputFeedingDecoder, RecurrentDecoder
from regard.models.transformer import TransformerDecoder

NAMES: dict[type, str] = {
    AdditiveCrossAttention: "additive attention",
    ProjectedCrossAttention: "projected attention",
}
ENERGY_NAMES: dict[type, str] = {
    Dot: "dot-product attention",
    ScaledDot: "scaled dot-product attention",
    Cosine: "cosine attention",
    Bilinear: "bilinear attention",
    Additive: "additive attention",
}
SHORT_CIRCUIT = "Attention is a short-circuit: every source state reaches every target step over one edge."
BOTTLENECK = "Without attention, all of the source passes through one vector."


def describe_decoder(decoder: nn.Module) -> str:
    """The kind of a decoder in a few words."""
    if isinstance(decoder, TransformerDecoder):
        return "Transformer decoder"
    if isinstance(decoder, BahdanauDecoder):
        return f"Bahdanau's {describe_stack(decoder.stack)} decoder"
    if isinstance(decoder, RecurrentDecoder):
        name = _attention_name(decoder.attention)
        tail = "" if decoder.initial_state is None else " without attention"
        return f"{describe_stack(decoder.stack)} decoder" + (f" with {name}" if decoder.attention else tail)
    return type(decoder).__name__


def _attention_name(attention: nn.Module | None) -> str:
    if isinstance(attention, StateCrossAttention):
        return ENERGY_NAMES.get(type(attention.energy), "attention")
    return NAMES.get(type(attention), "attention")


def draw_decoder(sequence: DrawnSequence, decoder: nn.Module, memory: DrawnSequence | None) -> None:
    """Draw a decoder above its input tokens; `memory` is the drawn encoder, None for language models."""
    sequence.embed(getattr(decoder, "position", None))
    if isinstance(decoder, BahdanauDecoder):
        _bahdanau(sequence, decoder, memory)
    elif isinstance(decoder, TransformerDecoder):
        _transformer(sequence, decoder, memory)
    elif isinstance(decoder, RecurrentDecoder):
        _recurrent(sequence, decoder, memory)
    else:  # of another package
        sequence.layer(lambda i: "layer", "layer", type(decoder).__name__)


def attend_to(
    sequence: DrawnSequence, queries: Sequence[Node], memory: DrawnSequence, highlighted: int = 1
) -> None:
    """Edges from every source state to every query; those of one query are highlighted."""
    for i, query in enumerate(queries):
        for state in memory.top:
            strength = 1.0 if i == min(highlighted, len(queries) - 1) else FAINT
            sequence.graph.edge(state, query, "attends", strength=strength)
    if SHORT_CIRCUIT not in sequence.graph.remarks:
        sequence.graph.remarks.append(SHORT_CIRCUIT)


def _rise_above(sequence: DrawnSequence, memory: DrawnSequence, rows: float = 2.0) -> float:
    """Rows to climb so that edges from the encoder's states fan out below the next row."""
    return max(1.0, memory.row + rows - sequence.row)


def _recurrent(sequence: DrawnSequence, decoder: RecurrentDecoder, memory: DrawnSequence | None) -> None:
    recurrent_rows(sequence, decoder.stack, "s" if memory else "h")
    states, attention = sequence.top, decoder.attention
    if memory is None:
        return
    _initial_state(sequence, states[0], decoder.initial_state, memory, alone=attention is None)
    if attention is None:
        return
    caption = _attention_name(attention)
    sequence.layer(
        lambda i: numbered("a", i + 1),
        "attention",
        f"{caption} → context",
        rise=_rise_above(sequence, memory),
    )
    contexts = sequence.top
    attend_to(sequence, contexts, memory)
    if isinstance(decoder, InputFeedingDecoder):
        for context, state in zip(contexts, states[1:], strict=False):
            sequence.graph.edge(context, state, "attends", dashed=True)
        sequence.graph.remarks.append("Input feeding: the context is part of the next step's input (dashed).")
    sequence.layer(lambda i: "[s; c]", "layer", "state and context, concatenated")


def _bahdanau(sequence: DrawnSequence, decoder: BahdanauDecoder, memory: DrawnSequence | None) -> None:
    assert memory is not None  # Bahdanau's decoder attends to an encoder
    graph, embedded = sequence.graph, sequence.top
    row = sequence.row + _rise_above(sequence, memory)
    contexts = [
        graph.node(x - 0.34, row, numbered("c", i + 1), "attention", width=36)
        for i, x in enumerate(sequence.columns)
    ]
    graph.caption(row, "additive attention → context c", sequence.side)
    sequence.row, sequence.top = row, embedded
    recurrent_rows(sequence, decoder.stack, "s")
    lowest = [node for node in graph.nodes if node.row == row + 1 and node.column in sequence.columns]
    for i, (context, state) in enumerate(zip(contexts, lowest, strict=True)):
        graph.edge(context, state, "attends")
        if i:
            graph.edge(sequence.top[i - 1], context, "flow", dashed=True)  # the query
    attend_to(sequence, contexts, memory)
    _initial_state(sequence, lowest[0], decoder.initial_state, memory, alone=False)
    graph.remarks.append("The query is the state before (dashed); the context enters the recurrence.")


def _initial_state(
    sequence: DrawnSequence, first: Node, module: nn.Module | None, memory: DrawnSequence, *, alone: bool
) -> None:
    """The edge from the encoder to the decoder's first state; without attention it is the only one."""
    copied, mean = isinstance(module, CopiedInitialState), getattr(module, "of", "final") == "mean"
    for state in memory.top if mean else memory.top[-1:]:
        sequence.graph.edge(state, first, "flow", strength=1.0 if alone else 0.7)
    if alone:
        what = "a copy of" if copied else "a map of"
        which = "the mean of the states" if mean else "the last state"
        sequence.graph.remarks.append(f"{BOTTLENECK} The first state is {what} {which}.")


def _transformer(sequence: DrawnSequence, decoder: TransformerDecoder, memory: DrawnSequence | None) -> None:
    layer: Any = decoder.layers[0]
    start = sequence.row + 1
    attention_rows(sequence, layer, causal=True)
    if memory is not None and layer.cross is not None:
        sequence.layer(
            lambda i: "attend",
            "attention",
            f"cross-attention, {layer.cross.heads} heads",
            rise=_rise_above(sequence, memory),
        )
        attend_to(sequence, sequence.top, memory)
    feed_forward_row(sequence, layer)
    sequence.repeat(start, len(decoder.layers))
