"""The README and the documentation do what they show: every Python block runs, block after block."""

import re
from pathlib import Path

import pytest
import torch

import regard
from regard.attention.normalize import Softmax
from regard.attention.watching import Seen

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_every_python_block_runs(page, capsys):
    names = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)
        for name, seen in names.items():
            if isinstance(seen, Seen):
                check_something_was_seen(f"{page.name}: {name}", seen)
    assert capsys.readouterr().out  # each page prints something to look at


def check_something_was_seen(where, seen):
    """What a page watches is worth a look: every query attends to some key, and under softmax the weights of its row sum to 1."""
    assert len(seen), f"{where} saw nothing"
    for name in seen:
        for recorded in seen.calls(name):
            rows = recorded.weights(stage="normalised").double().sum(-1)
            assert bool((rows > 0).all()), f"{where}[{name!r}]: a query attends to nothing"
            if type(recorded.call.normalize) is Softmax:
                assert rows == pytest.approx(torch.ones(rows.shape), abs=1e-4), f"{where}[{name!r}]"


def test_a_page_that_shows_attention_to_nothing_is_found_out():
    layer = regard.MultiHead(12, heads=3, mask=regard.Causal())
    with regard.watch(layer) as seen:
        layer(torch.randn(2, 5, 12), torch.randn(2, 7, 12), mask=~regard.Causal())
    with pytest.raises(AssertionError, match="attends to nothing"):
        check_something_was_seen("a page", seen)


def test_the_readme_shows_the_operator_in_twenty_lines():
    first = [line for line in blocks(ROOT / "README.md")[0].splitlines() if line.strip()]
    assert len(first) <= 20
    text = "\n".join(first)
    assert all(name in text for name in ("regard.attend", "regard.explain", "regard.watch"))


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_no_page_names_a_machine():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        assert not re.search(r"(?<![\w.~])/(root|home|tmp|work)/", page.read_text(encoding="utf-8"))
