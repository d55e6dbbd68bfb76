"""Draw models: translators, language models, classifiers, taggers and embedders."""

from __future__ import annotations

from typing import Any

from torch import nn

from regard.diagrams.computation_graph import Graph, Node, numbered
from regard.diagrams.drawn_decoders import describe_decoder, draw_decoder
from regard.diagrams.drawn_encoders import DrawnSequence, describe_encoder, draw_encoder
from regard.models.classifier import Classifier
from regard.models.decoder import BahdanauDecoder
from regard.models.embedder import Embedder
from regard.models.frames import FrameProjection
from regard.models.language_model import LanguageModel
from regard.models.pooling import AttentionPooling, ConcatPooling, RecurrentPooling
from regard.models.tagger import Tagger
from regard.models.translator import Translator


def translator(model: Translator, steps: int) -> Graph:
    decoder_name = describe_decoder(model.decoder)
    graph = Graph(f"Translator, unrolled in time: {describe_encoder(model.encoder)} → {decoder_name}")
    encoder = DrawnSequence(graph, range(steps), "left")
    encoder.tokens([numbered("x", i + 1) for i in range(steps)], _input_caption(model, "source tokens"))
    draw_encoder(encoder, model.encoder)
    decoder = DrawnSequence(graph, [steps + 0.9 + i for i in range(steps)], "right")
    decoder.tokens(_decoder_inputs(steps), "tokens generated so far")
    draw_decoder(decoder, model.decoder, encoder)
    _predict(decoder, " of [s; c; e]" if isinstance(model.decoder, BahdanauDecoder) else "")
    return graph


def language_model(model: LanguageModel, steps: int) -> Graph:
    graph = Graph(f"Language model, unrolled in time: {describe_decoder(model.decoder)}")
    sequence = DrawnSequence(graph, range(steps), "left")
    sequence.tokens(_decoder_inputs(steps), "tokens so far")
    draw_decoder(sequence, model.decoder, None)
    _predict(sequence)
    return graph


def _input_caption(model: Any, text: str) -> str:
    """The caption of the encoder's input: `text`, or frames of numbers."""
    if isinstance(model.source, FrameProjection):
        return "frames of numbers"
    return text


def _decoder_inputs(steps: int) -> list[str]:
    """Labels of BOS and the tokens generated so far."""
    return ["<s>", *(numbered("y", i) for i in range(1, steps))]


def _predict(sequence: DrawnSequence, features: str = "") -> None:
    sequence.layer(lambda i: "p(y)", "output", f"linear{features}, softmax over the vocabulary")
    sequence.layer(lambda i: numbered("y", i + 1), "token", "next token")


def classifier(model: Classifier, steps: int) -> Graph:
    graph = Graph(f"Classifier: {describe_encoder(model.encoder)}")
    pooled, row = _pooled(graph, model, steps)
    for layer in model.head.hidden:
        row += 1
        node = graph.node(pooled.column, row, "layer")
        graph.caption(row, f"hidden layer, {layer.out_features} {model.head.activation}", "left")  # type: ignore[union-attr]
        graph.edge(pooled, node)
        pooled = node
    label = graph.node(pooled.column, row + 1, "p(label)", "output", width=70)
    graph.caption(row + 1, f"linear, softmax over {model.head.labels.out_features} labels", "left")
    graph.edge(pooled, label)
    return graph


def embedder(model: Embedder, steps: int) -> Graph:
    graph = Graph(f"Embedder: {describe_encoder(model.encoder)}")
    pooled, row = _pooled(graph, model, steps)
    vector = graph.node(pooled.column, row + 1, "vector", "output", width=70)
    graph.caption(row + 1, f"divided by its length, {model.width} wide", "left")
    graph.edge(pooled, vector)
    return graph


def _pooled(graph: Graph, model: Any, steps: int) -> tuple[Node, float]:
    """Draw the encoder and the pooling; return the pooled node and its row."""
    sequence = DrawnSequence(graph, range(steps), "left")
    sequence.tokens([numbered("x", i + 1) for i in range(steps)], _input_caption(model, "tokens"))
    draw_encoder(sequence, model.encoder)
    return _pooling(sequence, model.pooling)


def _pooling(sequence: DrawnSequence, pooling: nn.Module) -> tuple[Node, float]:
    graph, middle, row = sequence.graph, (sequence.columns[0] + sequence.columns[-1]) / 2, sequence.row + 1.3
    name = type(pooling).__name__.removesuffix("Pooling").lower()
    if isinstance(pooling, AttentionPooling):
        node = graph.node(middle, row, "attend", "attention", width=64)
        query = graph.node(middle + 1.6, row, "query", "layer")
        queries, energy = len(pooling.query), type(pooling.attention.energy).__name__
        many = f"{queries} learned queries" if queries > 1 else "a learned query"
        graph.caption(row, f"attention pooling, {many}, {energy}", "left")
        graph.edge(query, node, "flow", dashed=True)
        for state in sequence.top:
            graph.edge(state, node, "attends")
        graph.remarks.append(
            "The learned query weighs the states: how much of each enters the text's vector."
        )
        return node, row
    style, label = ("state", name) if isinstance(pooling, RecurrentPooling) else ("layer", name)
    if isinstance(pooling, ConcatPooling):
        names = [type(p).__name__.removesuffix("Pooling").lower() for p in pooling.poolings]
        label, name = "concat", f"{', '.join(names)}, concatenated"
    node = graph.node(middle, row, label, style, width=70)
    graph.caption(row, f"{name} pooling", "left")
    attends = isinstance(pooling, ConcatPooling) and any(
        isinstance(p, AttentionPooling) for p in pooling.poolings
    )
    for state in sequence.top[-1:] if name == "last" else sequence.top:
        graph.edge(state, node, "attends" if attends else "edge")
    return node, row


def tagger(model: Tagger, steps: int) -> Graph:
    graph = Graph(f"Tagger: {describe_encoder(model.encoder)}")
    sequence = DrawnSequence(graph, range(steps), "left")
    words = "sub-word tokens" if model.subwords else "words"
    sequence.tokens([numbered("x", i + 1) for i in range(steps)], _input_caption(model, words))
    draw_encoder(sequence, model.encoder, "" if model.characters is None else ", characters")
    sequence.layer(lambda i: "scores", "layer", f"linear, {model.output.out_features} tags")
    chain = model.crf is not None
    sequence.layer(lambda i: numbered("t", i + 1), "output", "tags, linear-chain CRF" if chain else "tags")
    if chain:
        for a, b in zip(sequence.top, sequence.top[1:], strict=False):
            graph.edge(a, b, arrow=False)
    return graph
