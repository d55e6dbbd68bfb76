"""The version is stated once, in version.py; every other file that names it agrees."""

import re
from pathlib import Path

import yaml

from regard.version import __version__

ROOT = Path(__file__).parent.parent


def test_the_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == __version__


def test_the_package_takes_its_version_from_the_module():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text and 'path = "src/regard/version.py"' in text
    assert __version__ not in text


def test_issue_templates_and_workflows_are_valid_yaml():
    files = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(files) >= 5
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict), file


def test_ci_runs_what_the_makefile_offers():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"make lint", "make test"} <= set(commands)
    assert all(command.removeprefix("make ") in targets for command in commands)
