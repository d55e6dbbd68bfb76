"""The README and the documentation do what they show: every Python block runs, block after block."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_every_python_block_runs(page, capsys):
    names = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)
    assert capsys.readouterr().out  # each page prints something to look at


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
