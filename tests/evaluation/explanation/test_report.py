"""report.py and svg_plots.py: a page that loads nothing, with text escaped and valid SVG."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from regard.errors import OptionError
from regard.evaluation import MeasureOptions, faithfulness
from regard.evaluation.explanation.report import page
from regard.evaluation.explanation.svg_plots import histogram, lines, scatter
from tests.evaluation.explanation import small_models
from tests.evaluation.explanation.small_models import TRANSFORMER


@pytest.fixture(scope="module")
def result():
    model = small_models.classifier(TRANSFORMER, labels=("<b>no</b>", "yes & more"))
    options = MeasureOptions(permutations=5, adversary_steps=2)
    return faithfulness(model, ["one two three", "five", "<script>alert(1)</script> one"], options=options)


def test_the_page_is_complete_and_loads_nothing(result, tmp_path):
    path = result.report(tmp_path / "report.html")
    html = path.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>") and html.rstrip().endswith("</html>")
    links = html.replace('xmlns="http://www.w3.org/2000/svg"', "")  # names a format, loads nothing
    assert not re.search(r"(src|href)=|url\(|@import|<script|https?:", links)
    assert "<b>no</b>" not in html
    plots = re.findall(r"<svg.*?</svg>", html, re.S)
    assert len(plots) == 7
    for plot in plots:
        ElementTree.fromstring(plot)
    assert "nan" not in "".join(plots) and "attention rollout" in html


def test_text_is_escaped(result):
    html = page(result, "<i>title</i> & more", ["<u>note</u>"])
    assert "<i>" not in html and "<u>" not in html and "&lt;i&gt;title&lt;/i&gt; &amp; more" in html


def test_the_page_of_frames_names_frames_and_sequences():
    frames = small_models.frames(6)
    html = page(faithfulness(small_models.frame_classifier(), [frames], measures=["correlation"]), "t")
    assert "1 sequences" in html and "the frames of a sequence agree" in html and "Darker frames" in html
    assert "6 frames of 3 channels" in html and "tokens of a text" not in html


def test_a_folder_that_is_missing_or_in_place_of_the_file_is_an_error(result, tmp_path):
    with pytest.raises(OptionError, match="does not exist"):
        result.report(tmp_path / "nowhere" / "report.html")
    with pytest.raises(OptionError, match="is a folder"):
        result.report(tmp_path)


def test_a_histogram_counts_every_value():
    values = [-5.0, 0.0, 0.01, 0.99, 1.0, 7.0]
    root = ElementTree.fromstring(histogram(values, "t", ("x", "y"), (0, 1), bins=2))
    bars = root.findall("{*}rect[@class='blue']")
    assert len(bars) == 2 and {bar.get("height") for bar in bars} == {bars[0].get("height")}  # 3 and 3


def test_points_are_where_their_values_are():
    root = ElementTree.fromstring(scatter([(0, 0), (1, 1)], "t", ("x", "y"), ((0, 1), (0, 1))))
    (low, high) = [(float(c.get("cx")), float(c.get("cy"))) for c in root.findall("{*}circle")]
    assert low[0] < high[0] and low[1] > high[1]  # y points down in SVG
    drawn = lines({"<a>": [(0, 0), (1, 1)]}, "t", ("x", "y"), ((0, 1), (0, 1)))
    assert "&lt;a&gt;" in drawn and ElementTree.fromstring(drawn).find("{*}path[@class='weight']") is not None
