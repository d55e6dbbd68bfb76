"""`regard.draw`: every kind of model and recipe as a graph with the right edges, legible as SVG.

Covers drawing.py, computation_graph.py, drawn_encoders.py, drawn_decoders.py, model_drawings.py,
interaction_models.py, cli/draw.py.
"""

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
import torch

import regard
from regard import interactions
from regard.cli import main
from regard.diagrams.computation_graph import HEIGHT, _Layout
from regard.errors import FolderError, OptionError, RecipeError, RegardError
from regard.pictures.labels import ems
from regard.recipe.loading import recipe_files
from tests.decoding.model_folders import translator

TRANSFORMER = {"kind": "transformer", "layers": 3, "heads": 2}
TRANSLATORS = {
    "transformer": (TRANSFORMER, TRANSFORMER),
    "bahdanau": ({"kind": "recurrent"}, {"kind": "bahdanau"}),
    "deep bahdanau": ({"kind": "recurrent", "layers": 2}, {"kind": "bahdanau", "layers": 2}),
    "no attention": (
        {"kind": "recurrent", "bidirectional": False},
        {"kind": "recurrent", "attention": "none", "initial_state": "copy"},
    ),
    "mean": ({"kind": "convolutional"}, {"kind": "recurrent", "attention": "none", "initial_state": "mean"}),
    "projected": (
        {"kind": "recurrent", "layers": 3},
        {"kind": "recurrent", "attention": "projected"},
    ),
    "input feeding": (
        {"kind": "stacked"},
        {"kind": "recurrent", "attention": "bilinear", "input_feeding": True},
    ),
    "hybrid": (TRANSFORMER, {"kind": "bahdanau"}),
}
TEXT_MODELS = {
    "attention pooling": {"kind": "classifier", "encoder": {"kind": "recurrent"}, "pooling": "attention"},
    "bag of words": {"kind": "classifier", "encoder": {"kind": "embedding"}, "pooling": "mean"},
    "text-cnn": {"kind": "classifier", "head": {"layers": 1}},
    "concat": {"kind": "classifier", "pooling": {"kind": "concat", "of": ["mean", "attention"]}},
    "last": {"kind": "classifier", "encoder": {"kind": "recurrent"}, "pooling": "last"},
    "tagger": {"kind": "tagger", "encoder": {"kind": "convolutional"}},
    "tagger without a CRF": {"kind": "tagger", "crf": False},
    "embedder": {"kind": "embedder", "encoder": TRANSFORMER},
}
ESTIMATORS = ("Linear", "Polynomial2", "MatrixFactorization", "FactorizationMachine")


def model_of(name):
    if name in TRANSLATORS:
        encoder, decoder = TRANSLATORS[name]
        return regard.build({"dim": 16, "encoder": encoder, "decoder": decoder}, 20, 20)
    if name in TEXT_MODELS:
        return regard.build({"dim": 16, **TEXT_MODELS[name]}, 20, 8)
    if name in ESTIMATORS:
        return getattr(interactions, name)()
    if name == "rendle":
        return interactions.FactorizationMachine(form="rendle")
    decoder = TRANSFORMER if name == "language model" else {"kind": "recurrent", "layers": 2}
    return regard.build({"dim": 16, "decoder": decoder}, None, 20)


EVERY = (*TRANSLATORS, *TEXT_MODELS, *ESTIMATORS, "rendle", "language model", "recurrent language model")


def edges(graph, style):
    """Edges of a style as pairs of labels."""
    return [(edge.start.label, edge.end.label) for edge in graph.edges if edge.style == style]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("steps", [2, 4, 7])
def test_every_model_is_drawn_without_overlaps(name, steps):
    graph = regard.draw(model_of(name), steps)
    ElementTree.fromstring(graph.svg())
    layout = _Layout(graph)
    boxes = [(layout.x(n.column) - n.width / 2, layout.y(n.row), n.width) for n in graph.nodes]
    for (x, y, w), (u, v, z) in combinations(boxes, 2):
        assert abs(y - v) > HEIGHT or x + w < u or u + z < x  # no two nodes overlap
    for node in graph.nodes:  # a label fits its box at a size that can be read
        assert ems(node.label) * 8 <= node.width
    rows = [(caption.row, caption.side) for caption in graph.captions]
    assert len(set(rows)) == len(rows)  # one caption per row and side
    canvas = graph.canvas()
    for shape in canvas.shapes:
        x, y = getattr(shape, "x", 1), getattr(shape, "y", 1)
        assert 0 <= x <= canvas.width + 1 and 0 <= y <= canvas.height + 1


@pytest.mark.parametrize("name", ["transformer", "bahdanau", "projected", "input feeding", "hybrid"])
def test_attention_is_an_edge_from_every_source_state_to_every_target_step(name):
    graph = regard.draw(model_of(name), steps=3)
    side = {node: "source" if node.column < 3 else "target" for node in graph.nodes}
    # A context node of Bahdanau's stands to the left of its column, still right of the source.
    across = [e for e in graph.edges if e.style == "attends" and side[e.start] == "source" != side[e.end]]
    assert len(across) == 9 and len({(e.start, e.end) for e in across}) == 9
    assert any("short-circuit" in remark for remark in graph.remarks)


def test_without_attention_one_edge_joins_encoder_and_decoder():
    graph = regard.draw(model_of("no attention"), steps=4)
    across = [e for e in graph.edges if e.start.column < 4 <= e.end.column]
    assert [(e.start.label, e.end.label) for e in across] == [("h₄", "s₁")]
    assert not edges(graph, "attends")
    assert graph.remarks == [
        "Without attention, all of the source passes through one vector. "
        "The first state is a copy of the last state."
    ]


def test_bahdanaus_query_is_the_state_before_and_its_context_enters_the_recurrence():
    graph = regard.draw(model_of("bahdanau"), steps=3)
    dashed = [(e.start.label, e.end.label) for e in graph.edges if e.dashed]
    assert dashed == [("s₁", "c₂"), ("s₂", "c₃")]
    assert {("c₁", "s₁"), ("c₂", "s₂"), ("c₃", "s₃")} <= set(edges(graph, "attends"))
    backwards = [pair for pair in edges(graph, "flow") if pair in (("h₂", "h₁"), ("h₃", "h₂"))]
    assert len(backwards) == 2  # the encoder reads in both directions


def test_input_feeding_gives_the_context_to_the_next_step():
    graph = regard.draw(model_of("input feeding"), steps=3)
    assert [(e.start.label, e.end.label) for e in graph.edges if e.dashed] == [("a₁", "s₂"), ("a₂", "s₃")]
    assert "Input feeding: the context is part of the next step's input (dashed)." in graph.remarks


def test_self_attention_has_the_edges_that_its_mask_allows():
    def pairs(**options):
        model = regard.build({"dim": 16, "decoder": {**TRANSFORMER, **options}}, None, 20)
        graph = regard.draw(model, steps=4)
        chosen = [e for e in graph.edges if e.end.style == "attention" and e.style == "attends"]
        return {(int(e.end.column), int(e.start.column)) for e in chosen}

    assert pairs() == {(i, j) for i in range(4) for j in range(i + 1)}
    window = {"kind": "window", "left": 1}
    assert pairs(mask=window) == {(i, j) for i in range(4) for j in range(4) if i - 1 <= j <= i}
    encoder = regard.draw(model_of("embedder"), steps=4)
    assert len([e for e in encoder.edges if e.end.style == "attention"]) == 16


def test_repeated_layers_are_marked():
    graph = regard.draw(model_of("transformer"))
    assert [band.label for band in graph.bands] == ["× 3", "× 3"]
    assert "feed-forward 2048, relu; residual, post-norm" in [caption.text for caption in graph.captions]


def test_attention_pooling_weighs_every_state_by_a_query():
    graph = regard.draw(model_of("attention pooling"), steps=4)
    assert edges(graph, "attends") == [(f"h{n}", "attend") for n in "₁₂₃₄"]
    assert ("query", "attend") in edges(graph, "flow")


def test_a_crf_joins_neighbouring_tags():
    with_crf, without = (regard.draw(model_of(n), steps=3) for n in ("tagger", "tagger without a CRF"))
    chain = {("t₁", "t₂"), ("t₂", "t₃")}
    assert chain <= set(edges(with_crf, "edge")) and not chain & set(edges(without, "edge"))


@pytest.mark.parametrize("name", sorted(recipe_files()))
def test_every_recipe_can_be_drawn(name):
    try:
        graph = regard.draw(name, steps=2)
    except (FolderError, RecipeError) as error:  # it starts from a model that is not installed here
        pytest.skip(str(error))
    assert len(graph.nodes) > 4 and graph.svg().startswith("<svg")


def test_the_command_draws_a_folder_and_a_recipe_with_overrides(tmp_path, capfd):
    def run(*arguments):
        main.app(["draw", *map(str, arguments)], standalone_mode=False)
        return capfd.readouterr().err

    folder, path = translator(tmp_path / "model"), tmp_path / "x.svg"
    assert run(folder, "-o", path, "--steps", 3) == f"regard: drawn in {path}\n"
    assert "bilinear attention" in path.read_text(encoding="utf-8")
    run("small", "model.decoder={kind: bahdanau}", "-o", path)
    assert "Transformer encoder → Bahdanau&#x27;s GRU decoder" in path.read_text(encoding="utf-8")
    run("small", "-o", tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "empty").mkdir()
    for arguments, kind, message in (
        (("small", "-o", tmp_path / "x.gif"), OptionError, "ends in"),
        (("smal", "-o", path), RecipeError, "small"),
        ((tmp_path / "empty", "-o", path), FolderError, "empty"),
        ((folder, "dim=3", "-o", path), OptionError, "is a model folder, which dim=3 cannot change"),
        (("small", "model.dimm=3", "-o", path), RecipeError, "dimm"),
    ):
        with pytest.raises(kind, match=message):
            run(*arguments)


def test_wrong_arguments_are_errors_of_one_sentence():
    model = model_of("bahdanau")
    for call in (
        lambda: regard.draw(torch.nn.Linear(2, 2)),
        lambda: regard.draw(None),
        lambda: regard.draw(model, 1),
        lambda: regard.draw(model, 13),
        lambda: regard.draw(model, overrides=["a=b"]),
    ):
        with pytest.raises(RegardError) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_recipe_as_a_mapping_is_drawn_and_shown_in_a_notebook():
    graph = regard.draw({"model": {"dim": 8, "encoder": {"kind": "recurrent"}}, "data": "tatoeba-sample"})
    html = graph._repr_html_()
    assert html.count("<svg") == 1 and "<script" not in html
    assert re.search(r"bidirectional GRU encoder → Transformer decoder", html)
