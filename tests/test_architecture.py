"""docs/architecture.md names files and folders that exist, and every folder of the package."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import regard

PACKAGE = Path(regard.__file__).parent
TESTS = Path(__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_path_exists():
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", PAGE.replace("`src/regard/`", ""))
    assert len(paths) > 60
    missing = [
        path for path in paths if not ((PACKAGE / path).exists() or path == "kernels/" or path == "engine/")
    ]
    assert missing == []


WAYS = {
    "A call to `attend`": 4,
    "From a file to the loss": 7,
    "From the shell to a translated file": 7,
    "A checkpoint": 2,
}  # the files that a main line may have


@pytest.mark.parametrize("title", WAYS)
def test_a_way_through_the_code_has_as_many_files_as_the_table_says(title):
    section = PAGE.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0]
    row = re.search(rf"^\| {re.escape(title)} \| (\d+) \| (\d+) \|$", PAGE, re.M | re.I)
    main_line, with_helpers = map(int, row.groups())
    steps = re.findall(r"^\d\. .*?`((?:\w+/)+\w+\.\w+)`", section, re.M | re.S)
    assert len(re.findall(r"^\d\. ", section, re.M)) == len(set(steps)) == main_line <= WAYS[title]
    assert len(set(re.findall(r"`((?:\w+/)+\w+\.\w+)`", section))) == with_helpers


def test_every_folder_is_listed():
    listed = set(re.findall(r"^\| `(\w+)/` \|", PAGE, re.M))
    assert listed == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_every_folder_has_five_questions():
    questions = PAGE.split("## Where is", 1)[1]
    counts = {
        path.parent.name: questions.count(f"| `{path.parent.name}/") for path in PACKAGE.glob("*/__init__.py")
    }
    assert {folder: count for folder, count in counts.items() if count < 5} == {}


def test_no_two_modules_share_a_name_or_differ_by_a_plural():
    names = Counter(
        re.sub(r"(?<=[hsx])es$|s$", "", module.stem)
        for module in PACKAGE.rglob("*.py")
        if module.name not in ("__init__.py", "__main__.py") and module.parent.name != "cli"
    )
    # attention/mask.py is the class Mask, huggingface/masks.py the masks that Transformers passes.
    assert [name for name, count in names.items() if count > 1] == ["mask"]


def test_every_module_has_a_test_of_its_name_or_is_named_at_the_top_of_one():
    tests = {
        path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for path in TESTS.rglob("test_*.py")
    }
    without = []
    for module in sorted(PACKAGE.rglob("*.py")):
        inside = module.relative_to(PACKAGE)
        folder = TESTS / inside.parts[0] if len(inside.parts) > 1 else TESTS
        same_folder = {path: top for path, top in tests.items() if path.is_relative_to(folder)}
        named = any(path.name == f"test_{module.name}" for path in same_folder)
        mention = rf"(?<![/\w]){re.escape(module.name)}\b"
        covered = any(re.search(mention, top) for top in same_folder.values())
        covered = covered or any(str(inside) in top for top in tests.values())
        if module.name not in ("__init__.py", "__main__.py") and not named and not covered:
            without.append(str(inside))
    assert not without


def test_lines_have_at_most_110_columns():
    """ruff checks Python. JavaScript may have longer texts, and a regular expression."""
    names = ("*.cpp", "*.yaml", "*.js", "*.css")
    files = [path for name in names for path in PACKAGE.rglob(name)]
    files += (TESTS.parent / "recipes").glob("*.yaml")
    assert len(files) > 60
    long = [
        f"{path.name}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 110 and not (path.suffix == ".js" and re.search(r'["`]|^  /', line))
    ]
    assert long == []


# Names with one meaning in several files: what the server sends is named as what the pipelines return, each
# task has its output formats, two kernels their autograd function; Linear is linear in both places.
SAME_MEANING = {
    "Document", "Hypothesis", "Label", "Span", "Tagged", "Translation",
    "JsonFormat", "TableFormat", "TextFormat", "_Additive", "Linear",
}  # fmt: skip


def test_a_class_name_has_one_meaning():
    names = Counter(
        node.name
        for module in PACKAGE.rglob("*.py")
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == SAME_MEANING


# Python kills daemon threads at exit; one that is using a tensor at that moment aborts the process.
DAEMONS = {
    "cli/explore.py": "opens a browser",
    "data/text_files.py": "decompresses, and waits while nobody reads",
    "files/progress.py": "writes to standard error",
    "serving/request_batching.py": "serve() closes the workers",
}


def test_threads_that_hold_tensors_are_not_daemon_threads():
    daemons = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "daemon=True" in path.read_text(encoding="utf-8")
    }
    assert daemons == set(DAEMONS)
