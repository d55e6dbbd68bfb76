"""Pictures are well-formed, escaped and show the weights, in every format; with and without matplotlib.

Covers picture.py, canvas.py, colors.py, labels.py, matrix_picture.py, head_grid.py, attention_views.py,
pictured.py, figures.py.
"""

import itertools
import re
import sys
import warnings
from importlib.util import find_spec
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.figure import Figure

import regard
from regard.errors import OptionError, RegardError, ShapeError
from regard.pictures import HeadGrid, MatrixPicture, save_pictures
from regard.pictures import picture as picture_module
from regard.pictures.attention_views import attention_picture
from regard.pictures.colors import LEVELS, level, ramp
from regard.pictures.labels import clean, ems, shorten
from regard.pictures.matrix_picture import MAX_TOKENS, groups_of, merge

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "<script>alert(1)</script>",
    "]]>&amp;",
    '" onload="alert(1)',
    "$x^{$",
    "שלום",
    "漢字",
    "\x00\x1b[31m",
    "\ud800",
    "👩‍👩‍👧",
    "▁",
    "a\nb",
    "e\u0301" * 30,
]


def draw(rows, columns, view="heatmap", **options):
    torch.manual_seed(1)
    weights = torch.randn(len(rows), len(columns)).mul(2).softmax(-1)
    return MatrixPicture(weights, rows, columns, view, **options), weights


def grid(layers=2, heads=3, size=5):
    torch.manual_seed(1)
    return HeadGrid({f"layer {i}": torch.randn(heads, size, size).softmax(-1) for i in range(layers)})


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("view", ["heatmap", "lines", "text"])
@pytest.mark.parametrize("tokens", [HOSTILE, ["a", "b"], [f"token{i}" for i in range(60)]])
def test_every_view_is_well_formed_and_has_no_scripts_links_or_ids(view, tokens):
    svg = draw(tokens, tokens, view, title=HOSTILE[0], note="a note")[0].svg()
    root = ElementTree.fromstring(svg)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "circle", "path", "text"}
    assert not any(name.startswith("on") or name in ("id", "href") for e in root.iter() for name in e.attrib)
    assert "<script" not in svg and "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_tokens_are_shown_escaped():
    tokens = ["<b>", "&", "ok"]
    picture, _ = draw(tokens, tokens)
    assert {"<b>", "&", "ok"} <= set(texts(picture.svg()))  # unchanged after parsing
    assert "&lt;b&gt;" in picture.svg() and "&lt;b&gt;" in picture._repr_html_()


def test_the_numbers_of_a_heat_map_are_the_weights():
    rows, columns = ["p", "q", "r"], ["a", "b", "c", "d"]
    picture, weights = draw(rows, columns)
    result = re.findall(r"<title>(\w) → (\w): ([\d.]+)</title>", picture.svg())
    assert len(result) == 12
    for row, column, number in result:
        expected = float(weights[rows.index(row), columns.index(column)])
        assert float(number) == pytest.approx(expected, abs=5e-5)
    written = [text for text in texts(picture.svg()) if re.fullmatch(r"\.\d\d|1", text)]
    assert written == [f"{w:.2f}".lstrip("0") for w in weights.flatten().tolist() if w >= 0.005]


def test_colours_follow_the_weights():
    picture, weights = draw(["p", "q", "r"], list("abcd"))
    rectangles = ElementTree.fromstring(picture.svg()).iter(f"{SVG}rect")
    cells = [element for element in rectangles if element.find(f"{SVG}title") is not None]
    steps = [int(cell.attrib["class"][1:]) for cell in cells]
    high = float(weights.max())
    assert steps == [round(w / high * LEVELS) for w in weights.double().flatten().tolist()]
    assert len(set(ramp())) == len(set(ramp(dark=True))) == LEVELS + 1
    for colors, direction in ((ramp(), -1), (ramp(dark=True), 1)):
        brightness = [sum(int(c[i : i + 2], 16) * k for i, k in ((1, 3), (3, 6), (5, 1))) for c in colors]
        assert all((b - a) * direction > 0 for a, b in itertools.pairwise(brightness))


def test_lines_are_as_wide_as_the_weights():
    picture, weights = draw(list("pqr"), list("abcd"), "lines")
    result = {}
    for path in ElementTree.fromstring(picture.svg()).iter(f"{SVG}path"):
        result[path.find(f"{SVG}title").text.split(":")[0]] = float(path.attrib["stroke-width"])
    weight_of = {
        f"{r} → {c}": float(weights[i, j]) for i, r in enumerate("pqr") for j, c in enumerate("abcd")
    }
    drawn = {name: w for name, w in weight_of.items() if w >= 0.03 * float(weights.max())}
    assert set(result) == set(drawn)
    for name, weight in drawn.items():
        assert result[name] == pytest.approx(max(0.5, 7 * weight / float(weights.max())), abs=0.01)


def test_a_grid_has_a_matrix_for_every_layer_and_head():
    svg = grid(2, 3).svg()
    assert [text for text in texts(svg) if text.startswith(("head", "layer"))] == [
        "head 0", "head 1", "head 2", "layer 0", "layer 1",
    ]  # fmt: skip
    frames = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}rect") if e.attrib["class"] == "frame"]
    assert len(frames) == 2 * 3 + 1  # and one for the color scale


def test_long_inputs_are_merged_and_their_rows_still_sum_to_one():
    tokens = [f"w{i}" for i in range(500)]
    picture, _ = draw(tokens, tokens, title="long")
    merged = picture.merged()
    assert merged.weights.shape == (len(groups_of(500, MAX_TOKENS)),) * 2 and len(merged.rows) <= MAX_TOKENS
    assert torch.allclose(merged.weights.sum(-1), torch.ones(len(merged.rows), dtype=torch.float64))
    assert merged.note == "each row is up to 6 of 500 tokens; each column is up to 6 of 500 tokens"
    assert len(picture.svg()) < 400_000
    x = torch.arange(12.0).reshape(3, 4)
    assert merge(x, 0, [(0, 2), (2, 3)]).tolist() == [[2, 3, 4, 5], [8, 9, 10, 11]]
    assert merge(x, 1, [(0, 3), (3, 4)]).tolist() == [[3, 3], [15, 7], [27, 11]]


def test_labels_do_not_overlap_on_the_axes():
    tokens = [f"token{i}" for i in range(96)]
    svg = draw(tokens, tokens)[0].svg()
    rows = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.get("text-anchor") == "end"]
    positions = sorted(float(e.attrib["y"]) for e in rows if (e.text or "").startswith("token"))
    size = float(rows[0].attrib["font-size"])
    assert len(positions) > 20 and min(b - a for a, b in itertools.pairwise(positions)) >= size


def test_labels_are_readable():
    assert [clean(token) for token in ("▁the", "Ġthe", "▁", "\n", "a▁b", "")] == [
        "the",
        "the",
        "␣",
        "⏎",
        "a b",
        "␣",
    ]
    assert clean("a\x00b") == "a\ufffdb"
    assert shorten("short") == "short" and shorten("x" * 50).endswith("…") and ems(shorten("x" * 50)) <= 9
    assert ems("漢字") == pytest.approx(2.1) and ems("e\u0301") == ems("e")


def test_weights_that_are_not_numbers_or_negative_can_be_drawn():
    weights = torch.tensor([[float("nan"), 0.5], [-0.5, float("inf")]])
    picture = MatrixPicture(weights, ["a", "b"], ["c", "d"])
    assert picture.value_range == (-0.5, 0.5)
    ElementTree.fromstring(picture.svg())
    assert level(float("nan"), 0, 1) == 0 and level(1.0, 0, 1) == LEVELS and level(0.0, 0.0, 0.0) == 0


@pytest.mark.parametrize("suffix", ["svg", "html", "png", "pdf"])
@pytest.mark.parametrize(
    "make", [lambda: draw(HOSTILE, HOSTILE)[0], lambda: draw(["a"], ["b"], "lines")[0], grid]
)
def test_pictures_are_saved_in_every_format(tmp_path, suffix, make):
    if suffix == "pdf" and make is not grid:
        pytest.skip("PDF is tested with the grid alone")
    path = make().save(tmp_path / f"x.{suffix}")
    start = {"svg": b"<svg", "html": b"<!doctype html>", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start) and list(tmp_path.iterdir()) == [path]


def test_a_page_contains_several_pictures(tmp_path):
    path = save_pictures([draw(["<i>"], ["b"], title="<script>")[0], grid()], tmp_path / "x.html")
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and "<script" not in page and "src=" not in page
    with pytest.raises(OptionError, match=r"x\.svg holds one picture, got 2"):
        save_pictures([grid(), grid()], tmp_path / "x.svg")


@pytest.mark.parametrize("name", ["x.gif", "x", "missing/x.svg"])
def test_a_file_that_cannot_be_written_is_refused_in_one_sentence(tmp_path, name):
    with pytest.raises(OptionError, match=r"ends in \.svg, \.html, \.png or \.pdf|its folder does not exist"):
        grid().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_svg_and_html_work_and_the_rest_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(
        picture_module, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name)
    )
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "regard.pictures.figures", raising=False)
    picture = grid()
    assert picture.save(tmp_path / "x.svg").is_file() and picture.save(tmp_path / "x.html").is_file()
    for call in (picture.plot, draw(["a"], ["b"])[0].plot, draw(["a"], ["b"], "text")[0].plot):
        with pytest.raises(OptionError, match=r'plot needs matplotlib; pip install "regard\[plot\]"'):
            call()
    with pytest.raises(
        OptionError, match=r"writing x\.png needs matplotlib; .* or name a file that ends in \.svg"
    ):
        picture.save(tmp_path / "x.png")


@pytest.mark.parametrize("view", ["heatmap", "lines", "text"])
def test_plot_returns_a_figure_with_the_weights(view):
    picture, weights = draw(HOSTILE, HOSTILE[:5], view)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = picture.plot()
        figure.canvas.draw()  # raises if a label is parsed as mathematics
    assert isinstance(figure, Figure)
    if view == "heatmap":
        (image,) = figure.axes[0].images
        assert torch.allclose(torch.tensor(image.get_array()), weights.double())


def test_plot_draws_into_given_axes():
    axes = Figure().subplots()
    figure = draw(list("ab"), list("abc"))[0].plot(axes)
    assert figure is axes.figure and len(axes.images) == 1
    with pytest.raises(OptionError, match="axes must be matplotlib Axes, got str"):
        draw(list("ab"), list("abc"))[0].plot("axes")


def test_a_grid_is_plotted_with_one_axes_per_head():
    figure = grid(2, 3).plot()
    assert len([axes for axes in figure.axes if axes.images]) == 6


def test_wrong_input_is_an_error_of_one_sentence():
    weights = torch.ones(2, 3, 4) / 4
    for call in (
        lambda: attention_picture({"": weights}, "heat"),
        lambda: attention_picture({"": weights}, head=2),
        lambda: attention_picture({"": weights}, head=True),
        lambda: attention_picture({"": weights}, "grid", head=1),
        lambda: attention_picture({"": weights}, rows=["a"]),
        lambda: attention_picture({"": weights}, rows=[1, 2, 3]),
        lambda: MatrixPicture(weights[0], ["a"], ["b"]),
        lambda: MatrixPicture(torch.zeros(0, 2), [], ["a", "b"]),
        lambda: HeadGrid({}),
        lambda: HeadGrid({"a": weights[0]}),
        lambda: grid().save(3),
    ):
        with pytest.raises(RegardError) as error:
            call()
        assert "\n" not in str(error.value)
    with pytest.raises(ShapeError, match="rows must have a token for each of the 3 rows, got 1"):
        attention_picture({"": weights}, rows=["a"])


def test_recorded_attention_can_be_drawn(tmp_path):
    layer = regard.MultiHead(16, heads=4).eval()
    with torch.no_grad(), regard.watch(layer) as seen:
        layer(torch.randn(2, 5, 16))
    recorded = seen["self"]
    tokens = ["the", "cat", "<sat>", "on", "it"]
    path = recorded.save(tmp_path / "x.svg", rows=tokens, batch=1, head=2)
    result = re.findall(r": ([\d.]+)</title>", path.read_text(encoding="utf-8"))
    weights = recorded.weights(batch=1, head=2).flatten().tolist()
    assert [float(number) for number in result] == pytest.approx(weights, abs=5e-5)
    mean = recorded.plot(rows=tokens).axes[0].images[0].get_array()
    assert torch.allclose(torch.tensor(mean), recorded.weights(batch=0).double().mean(0))
    assert texts(recorded.picture("lines", rows=tokens).svg())
    assert recorded._repr_html_().count("head ") == 4
    assert texts(seen.picture().svg())
    with pytest.raises(OptionError, match=r"nothing called '3\.\*' was seen; the names are self"):
        seen.picture("3.*")
    with pytest.raises(OptionError, match="leave axes out"):
        recorded.plot("grid", axes=Figure().subplots())


def test_everything_that_watch_returns_can_be_drawn(tmp_path, monkeypatch):
    """`seen` itself, not only one of its calls: plot, save in four formats, and the display in notebooks."""
    model = torch.nn.Transformer(16, 2, 1, 1, 16, batch_first=True).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(1, 4, 16), torch.randn(1, 3, 16))
    assert len(seen) == 3
    for shown in (seen._repr_html_(), seen.picture().svg()):
        assert all(name[:20] in shown for name in seen)
        assert {"head 0", "head 1"} <= set(texts(shown[shown.index("<svg") : shown.index("</svg>") + 6]))
    starts = {"svg": b"<svg", "html": b"<!doctype html>", "png": b"\x89PNG", "pdf": b"%PDF"}
    for suffix, start in starts.items():
        assert seen.save(tmp_path / f"x.{suffix}").read_bytes().startswith(start)
    images = [image for axes in seen.plot("encoder.*").axes for image in axes.images]
    weights = seen["encoder.layers.0.self_attn"].weights(batch=0).double()
    assert len(images) == 2
    assert torch.allclose(torch.tensor(images[1].get_array()), weights[1])
    with pytest.raises(OptionError, match=r"ends in \.svg"):
        seen.save(tmp_path / "x.txt")
    monkeypatch.setattr("regard.attention.watching.MAX_SHOWN", 10)
    assert seen._repr_html_() is None
    with regard.watch(model) as nothing:
        pass
    assert nothing._repr_html_() is None


def test_notebooks_show_nothing_for_an_expired_or_a_huge_call(monkeypatch):
    layer, calls = regard.MultiHead(16, heads=4), []
    with regard.watch(layer, on_call=lambda name, recorded: calls.append(recorded)):
        layer(torch.randn(1, 5, 16))
    assert calls[0]._repr_html_() is None
    monkeypatch.setattr("regard.attention.recorded.MAX_SHOWN", 10)
    with regard.watch(layer) as seen:
        layer(torch.randn(1, 5, 16))
    assert seen["self"]._repr_html_() is None
