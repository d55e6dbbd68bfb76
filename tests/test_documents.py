"""The README and the documentation do what they show: every Python block runs, block after block."""

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import regard
from regard.attention.normalize import Softmax
from regard.attention.watching import Seen
from regard.decoding.engine import why_not
from regard.decoding.engine.cpp_engine import _why_not_here
from tests.test_public_names import SUBPACKAGES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_every_python_block_runs(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", True)  # a page disables it
    if page.name == "README.md":
        train_small()
    names = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)
        for name, seen in names.items():
            if isinstance(seen, Seen):
                check_something_was_seen(f"{page.name}: {name}", seen)
    assert capsys.readouterr().out  # each page prints something to look at
    if page.name == "README.md":
        check_int8_where_the_machine_can(names["model"], names["engine"])


def train_small():
    """The model that the README loads, runs/small, trained for some steps."""
    short = (
        "model.dim=64 data.limit=500 tokenizer.size=400 schedule.warmup=10 "
        "training.steps=20 training.validate_every=20"
    )
    regard.train("small", folder="runs/small", overrides=short.split(), quiet=True)


def check_int8_where_the_machine_can(model, engine):
    """The example does not fall back to float32 for a reason of its own, such as the width of its heads."""
    reason = why_not(model, "int8")
    assert engine.precision == "int8" if reason is None else reason == _why_not_here("int8"), reason


def check_something_was_seen(where, seen):
    """Every query attends to some key, and under softmax the weights of its row sum to 1."""
    assert len(seen), f"{where} saw nothing"
    for name in seen:
        for recorded in seen.calls(name):
            rows = recorded.weights(stage="normalised").double().sum(-1)
            assert bool((rows > 0).all()), f"{where}[{name!r}]: a query attends to nothing"
            if type(recorded.call.normalize) is Softmax:
                assert rows == pytest.approx(torch.ones(rows.shape), abs=1e-4), f"{where}[{name!r}]"


ONE_LINE = {
    "REGARD_NATIVE=0": ("", "float32 instead of int8, by PyTorch: REGARD_NATIVE=0 switches it off"),
    "no AVX-512": (
        "build_cpp._cpu_flags = lambda: 'flags : fpu avx2'",
        "by PyTorch: this processor has no AVX-512",
    ),
}


@pytest.mark.parametrize("machine", ["REGARD_NATIVE=0", "no AVX-512"])
@pytest.mark.slow
def test_the_readme_runs_and_is_true_without_native_code(machine, tmp_path):
    """In a subprocess, as on a machine without native code; stderr has one line that names the engine."""
    patch, message = ONE_LINE[machine]
    code = f"""
from pathlib import Path
from tests.test_documents import ROOT, blocks, train_small
from regard.attention.kernels import build_cpp
{patch}
train_small()
names = {{}}
for block in blocks(ROOT / "README.md"):
    exec(compile(block, "README.md", "exec"), names)
assert names["engine"] is names["model"]
"""
    native = {"REGARD_NATIVE": "0"} if machine == "REGARD_NATIVE=0" else {}
    environment = {
        **os.environ,
        "REGARD_CACHE": str(tmp_path),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        **native,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "int8" in line]
    assert len(lines) == 1 and message in lines[0], done.stderr
    assert done.stdout.splitlines()[-1]  # what the last line of the examples translates


def test_a_page_that_shows_attention_to_nothing_fails():
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


def imports(page):
    """What the Python blocks of a page import from regard, as (package, name)."""
    for block in re.findall(r"^```(?:python|py)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "regard":
                yield from ((node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names if alias.name.startswith("regard."))


@pytest.mark.parametrize("page", [p for p in PAGES if list(imports(p))], ids=lambda p: p.name)
def test_pages_import_public_names_only(page):
    """Pages import from `regard` or from a subpackage that lists the name in `__all__`."""
    for package, name in imports(page):
        assert package.count(".") <= 1, f"{page.name}: from {package} import {name}"
        assert name in import_module(package).__all__, f"{page.name}: {package} does not list {name}"


def find(dotted):
    """The module or object of a dotted name such as regard.layers.Convolution; raises if there is none."""
    result = regard
    parts = dotted.split(".")[1:]
    for i, part in enumerate(parts):
        result = getattr(result, part, None) or import_module(f"regard.{'.'.join(parts[: i + 1])}")
    return result


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_in_the_text_exist(page):
    names = re.findall(r"`(regard(?:\.\w+)+)", page.read_text(encoding="utf-8"))
    assert [dotted for dotted in names if find(dotted) is None] == []


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        links = re.findall(r"\]\(([^)#: ]+)(?: \"[^\"]*\")?\)", prose)
        broken += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_picture_carries_the_command_that_made_it(page):
    """As its title, which browsers show when the pointer is over the picture."""
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    for picture in pictures:
        path, _, command = picture.partition(" ")
        name = Path(path).stem
        if path.endswith(".png"):
            assert command.endswith(' python -m pytest tests/explorer/test_screenshots.py"'), picture
        elif path.startswith("lessons/"):
            assert command == f'"make lessons LESSONS={int(name[:2])}"', picture
        else:
            assert command == f'"python docs/images/draw.py {name}"', picture


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_section_with_a_dated_measurement_names_its_command(page):
    for section in re.split(r"^(?=#{1,3} )", page.read_text(encoding="utf-8"), flags=re.M):
        if re.search(r"\b20\d\d-\d\d-\d\d\b", section):
            prose = re.sub(r"!\[[^\]]*\]\([^)]+\)", "", section)
            named = (
                re.search(r"(?:^|`)(?:regard|python|make|pytest) ", prose, re.M) or "images/draw.py)" in prose
            )
            assert named, section.split("\n", 1)[0]


def test_every_page_is_linked_from_the_home_page_and_in_the_navigation():
    home, navigation = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/index.md", "mkdocs.yml"))
    for page in PAGES:
        if page.name not in ("README.md", "index.md"):
            assert f"]({page.name})" in home, page.name
            assert f": {page.name}\n" in navigation, page.name


def test_every_subpackage_with_public_names_has_an_api_page():
    for package in SUBPACKAGES:
        page = ROOT / "docs" / "api" / f"{package}.md"
        assert page.read_text(encoding="utf-8").endswith(f"::: regard.{package}\n")


def test_no_page_names_a_machine():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        assert not re.search(r"(?<![\w.~])/(root|home|tmp|work)/", page.read_text(encoding="utf-8"))
