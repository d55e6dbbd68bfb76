"""The examples of CONTRIBUTING.md: each adds a part, uses it and removes it."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"
SECTIONS = re.findall(r"^## (Add .+?)$(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_every_kind_of_part_has_a_section() -> None:
    kinds = (
        "a corpus", "a decoder", "a kernel", "a mask", "a measure", "a normalizer", "a pooling", "a recipe",
        "a schedule", "a search strategy", "a symmetrization", "a task", "a tokenizer", "an attention edit",
        "an energy", "an export format", "an importer", "an input", "an optimizer",
    )  # fmt: skip
    assert [title for title, _ in SECTIONS] == [f"Add {kind}" for kind in kinds]


@pytest.mark.parametrize(("title", "text"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_the_example_of_a_section_runs(
    title: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 1, f"{title!r} needs one complete example"
    assert "assert " in blocks[0], f"the example of {title!r} checks nothing"
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks[0], f"CONTRIBUTING.md: {title}", "exec"), {"__name__": "__main__"})
