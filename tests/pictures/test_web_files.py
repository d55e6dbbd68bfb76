"""JavaScript and CSS lose comments and indentation on their way to a browser, and nothing else."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import regard
from regard.pictures.web_files import compact, compact_file

PACKAGE = Path(regard.__file__).parent
SCRIPTS = sorted([*PACKAGE.joinpath("explorer").rglob("*.js"), *PACKAGE.joinpath("pictures").glob("*.js")])


def test_comments_indentation_and_empty_lines_are_removed():
    text = "// A module.\n\n/**\n * Two\n * lines.\n */\nconst f = (x) =>\n  x; // kept\n  /* one */\n"
    assert compact(text) == "const f = (x) =>\nx; // kept\n"
    assert compact("a {\n  color: red; /* kept */\n}\n") == "a {\ncolor: red; /* kept */\n}\n"


def test_only_javascript_and_css_are_changed():
    content = b"  <p>\n  // text\n"
    assert compact_file("index.html", content) == compact_file("icon.svg", content) == content
    assert compact_file("app.js", content) == compact_file("style.css", content) == b"<p>\n"


STRINGS = r"""
const { readFileSync } = require("node:fs");
const literals = (text) => text.match(/"(?:[^"\\\n]|\\.)*"/g) ?? [];
const [a, b] = process.argv.slice(1).map((path) => literals(readFileSync(path, "utf8")));
console.log(JSON.stringify([a.length, b.length, a.every((x, i) => x === b[i])]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_compacted_scripts_parse_and_keep_their_strings(tmp_path):
    assert len(SCRIPTS) > 25
    for script in SCRIPTS:
        lines = script.read_text(encoding="utf-8").split("\n")
        code = "\n".join(line for line in lines if not line.strip().startswith(("//", "*", "/*")))
        before, after = tmp_path / "before.mjs", tmp_path / "after.mjs"
        before.write_text(code, encoding="utf-8")
        after.write_text(compact(script.read_text(encoding="utf-8")), encoding="utf-8")
        done = subprocess.run(["node", "--check", after], capture_output=True, text=True)
        assert done.returncode == 0, (script.name, done.stderr)
        printed = subprocess.run(
            ["node", "-e", STRINGS, before, after], capture_output=True, text=True
        ).stdout
        first, second, same = json.loads(printed)
        assert first == second and same, script.name
