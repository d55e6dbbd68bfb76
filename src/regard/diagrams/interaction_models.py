"""Draw models of pairwise interactions: from the linear model to the factorisation machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from regard.diagrams.computation_graph import Graph, Node, numbered


def interaction_model(model: Any, steps: int) -> Graph:
    """Draw an estimator of `regard.interactions`, whether fitted or not, over `steps` predictors."""
    from regard.interactions import factorization, linear_models

    if isinstance(model, factorization._FactorizationMachine):
        return _factorization_machine(model, steps)
    if isinstance(model, factorization._MatrixFactorization):
        return _matrix_factorization(model, steps)
    if isinstance(model, linear_models._Polynomial2):
        return _polynomial(model, steps)
    graph, inputs = _inputs("Linear model: y = wᵀx + b", steps)
    _output(graph, inputs, inputs, False, row=1.6)
    return graph


def _inputs(title: str, steps: int, caption: str = "predictors x") -> tuple[Graph, list[Node]]:
    graph = Graph(title, legend={"attention": "interaction", "layer": "linear part", "output": "prediction"})
    inputs = [graph.node(i, 0, numbered("x", i + 1), "token") for i in range(steps)]
    graph.caption(0, caption, "left")
    return graph, inputs


def _output(graph: Graph, terms: Sequence[Node], inputs: Sequence[Node], linear: bool, row: float) -> None:
    """ŷ, the sum of the terms and of the linear part."""
    middle = (inputs[0].column + inputs[-1].column) / 2
    y = graph.node(middle, row, "ŷ", "output")
    graph.caption(row, "sum, plus bias" if terms or linear else "sum", "left")
    for term in terms:
        graph.edge(term, y)
    if linear:
        weights = graph.node(max(node.column for node in graph.nodes) + 1.2, 1.2, "wᵀx", "layer")
        for x in inputs:
            graph.edge(x, weights, strength=0.4)
        graph.edge(weights, y)


def _factorization_machine(model: Any, steps: int) -> Graph:
    rendle = model.form == "rendle"
    formula = "Σ ⟨v_i, v_j⟩ x_i x_j" if rendle else "(Wx)ᵀ(Vx)"
    graph, inputs = _inputs(f"Factorisation machine: ŷ = {formula} + wᵀx + b", steps)
    middle = (steps - 1) / 2
    names = ["V x"] if rendle else ["W x", "V x"]
    factors = [
        graph.node(middle + (i - (len(names) - 1) / 2) * 1.6, 1.2, name, "attention", width=64)
        for i, name in enumerate(names)
    ]
    graph.caption(1.2, f"{model.factors} factors: every predictor as a vector", "left")
    for factor in factors:
        for x in inputs:
            graph.edge(x, factor, "attends", strength=0.7)
    product = graph.node(middle, 2.2, "product", "attention", width=70)
    graph.caption(2.2, "products of pairs" if rendle else "dot product", "left")
    for factor in factors:
        graph.edge(factor, product, "attends")
    _output(graph, [product], inputs, bool(model.linear), row=3.2)
    graph.remarks.append(
        "xᵀWᵀVx is a score of all pairs of predictors; attention scores all pairs of positions likewise."
    )
    return graph


def _matrix_factorization(model: Any, steps: int) -> Graph:
    graph, inputs = _inputs("Matrix factorisation: ŷ = (W x₁)ᵀ(V x₂) + wᵀx + b", steps, "one-hot user, item")
    half = max(1, steps // 2)
    graph.nodes[:] = [
        Node(n.column, n.row, "user" if i < half else "item", n.style) for i, n in enumerate(graph.nodes)
    ]
    inputs, factors = list(graph.nodes), []
    for name, one_hot in (("W x₁", inputs[:half]), ("V x₂", inputs[half:])):
        middle = sum(x.column for x in one_hot) / len(one_hot)
        factors.append(graph.node(middle, 1.2, name, "attention", width=64))
        for x in one_hot:
            graph.edge(x, factors[-1], "attends")
    graph.caption(1.2, f"{model.factors} factors", "left")
    product = graph.node((steps - 1) / 2, 2.2, "product", "attention", width=70)
    graph.caption(2.2, "dot product", "left")
    for factor in factors:
        graph.edge(factor, product, "attends")
    _output(graph, [product], inputs, bool(model.biases), row=3.2)
    return graph


def _polynomial(model: Any, steps: int) -> Graph:
    graph, inputs = _inputs("Polynomial model of order 2: ŷ = xᵀWx + wᵀx + b", steps)
    pairs = list(combinations(range(steps), 2))
    terms = []
    for i, (a, b) in enumerate(pairs):
        column = (steps - 1) / 2 + (i - (len(pairs) - 1) / 2) * 0.78
        terms.append(graph.node(column, 1.6, f"{numbered('x', a + 1)}{numbered('x', b + 1)}", "attention"))
        for end in (a, b):
            graph.edge(inputs[end], terms[-1], "attends", strength=0.7)
    graph.caption(1.6, "a weight for each pair, squares not drawn", "left")
    _output(graph, terms, inputs, bool(model.linear), row=3.2)
    return graph
