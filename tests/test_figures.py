"""The committed figures of the documentation are those that docs/images/draw.py draws."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
IMAGES = Path(__file__).parent.parent / "docs" / "images"
sys.path.insert(0, str(IMAGES))
try:
    import draw
finally:
    sys.path.remove(str(IMAGES))


def test_every_figure_is_committed_and_every_committed_one_is_drawn():
    assert {path.stem for path in IMAGES.glob("*.svg")} == set(draw.FIGURES)


@pytest.mark.parametrize("name", [name for name, (_, model) in draw.FIGURES.items() if model is None])
def test_a_figure_without_a_model_is_up_to_date(name, tmp_path):
    function, _ = draw.FIGURES[name]
    function().save(tmp_path / "new.svg")
    new, old = (path.read_text(encoding="utf-8") for path in (tmp_path / "new.svg", IMAGES / f"{name}.svg"))
    assert NUMBER.sub("0", new) == NUMBER.sub("0", old)
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (new, old)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.02)  # processors round differently


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.stem)
def test_figures_are_small_valid_and_follow_the_theme(path):
    text = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in text and "<title>" in text
    assert len(text) < 60_000


@pytest.mark.slow
def test_the_script_names_an_unknown_figure():
    done = subprocess.run([sys.executable, IMAGES / "draw.py", "mask"], capture_output=True, text=True)
    assert done.returncode != 0 and "mask" in done.stderr
