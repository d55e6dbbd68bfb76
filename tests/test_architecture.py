"""docs/architecture.md names files and folders that exist, and every folder of the package."""

import re
from pathlib import Path

import regard

PACKAGE = Path(regard.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_path_exists():
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", PAGE.replace("`src/regard/`", ""))
    assert len(paths) > 60
    missing = [
        path for path in paths if not ((PACKAGE / path).exists() or path == "kernels/" or path == "engine/")
    ]
    assert missing == []


def test_every_folder_is_listed():
    listed = set(re.findall(r"^\| `(\w+)/` \|", PAGE, re.M))
    assert listed == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
